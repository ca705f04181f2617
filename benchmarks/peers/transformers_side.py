"""`transformers` with the best caching that its own interfaces allow (`transformers.py`).

    python -m benchmarks.peers.transformers_side FOLDER [THREADS]

Run in lmprog's environment, which has it. Outputs are texts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.side_loop import Case, serve
from benchmarks.peers.transformers import Rows, TransformersPeer, warm_up


class Side:
    """A model that computes whole cases in lockstep."""

    def __init__(self, folder: str, threads: int) -> None:
        self._peer = TransformersPeer(Path(folder), threads)
        warm_up(self._peer)

    def run(self, case: Case) -> list[Any]:
        shared, own = self._text(case["shared"]), [self._text(ids) for ids in case["own"]]
        if case["turns"]:
            return self._chats(case)
        rows = self._peer.start([shared])
        if len(own) > 1:
            rows = rows.fork(len(own))
        rows.extend(own)
        if not case["choices"]:
            return rows.generate(case["out"])
        return self._chosen(rows, [self._text(ids) for ids in case["choices"]], len(own))

    def _chats(self, case: Case) -> list[str]:
        turns = [[self._text(ids) for ids in chat] for chat in case["turns"]]
        rows = self._peer.start([""] * len(turns))
        found = []
        for turn in zip(*turns, strict=True):
            rows.extend(turn)
            found.append(rows.generate(case["out"]))
        return [answer for chat in zip(*found, strict=True) for answer in chat]

    def _chosen(self, rows: Rows, options: list[str], count: int) -> list[list[int]]:
        return [[options.index(text)] for text in rows.select([options] * count)]

    def _text(self, ids: list[int]) -> str:
        return self._peer.tokenizer.decode(ids)


if __name__ == "__main__":
    side = Side(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    serve(side.run)
