"""lmprog as its users run it: programs, the wire, and a runtime process.

    python -m benchmarks.peers.lmprog_side FOLDER '{"dtype": "float32", "threads": 1}'

The clock counts this process and the runtime's.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import lmprog
from benchmarks.ledger import Tap
from benchmarks.peers.side_loop import Case, serve
from lmprog import launch
from lmprog.backends.client import RuntimeBackend
from lmprog.runtime.text.tokenizer import load_tokenizer


@lmprog.function
async def generations(s: lmprog.Branch, shared: str, own: list[str], num_new: int) -> list[str]:
    s.append(shared)
    branches = s.fork(len(own)) if len(own) > 1 else [s]
    for branch, text in zip(branches, own, strict=True):
        branch.append(text)
    pending = [branch.gen(max_tokens=num_new, min_tokens=num_new) for branch in branches]
    return list(await asyncio.gather(*pending))


@lmprog.function
async def chats(s: lmprog.Branch, turns: list[list[str]], num_new: int) -> list[str]:
    async def chat(branch: lmprog.Branch, texts: list[str]) -> list[str]:
        found = []
        for text in texts:
            branch.append(text)
            found.append(await branch.gen(max_tokens=num_new, min_tokens=num_new))
        return found

    branches = s.fork(len(turns))
    all_of = await asyncio.gather(*map(chat, branches, turns))
    return [answer for answers in all_of for answer in answers]


@lmprog.function
async def choices(s: lmprog.Branch, shared: str, own: list[str], options: list[str]) -> list[str]:
    s.append(shared)
    branches = s.fork(len(own))
    for branch, text in zip(branches, own, strict=True):
        branch.append(text)
    return list(await asyncio.gather(*[branch.select(options) for branch in branches]))


class Side:
    """A runtime and its tokenizer."""

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        self._tokenizer = load_tokenizer(Path(folder))
        self._process = launch.RuntimeProcess(folder, **{"kv_memory_mb": 2000, **options})
        # a tap asks for no healing: all sides compute the same tokens
        self._backend = RuntimeBackend(Tap(self._process.connect("comparison")))

    def run(self, case: Case) -> list[Any]:
        shared, own = self._text(case["shared"]), [self._text(ids) for ids in case["own"]]
        settings: dict[str, Any] = {
            "ignore_eos": True,
            "backend": self._backend,
            "temperature": 0.0,
        }
        if case["choices"]:
            options = [self._text(ids) for ids in case["choices"]]
            chosen = choices.using(**settings).run(shared, own, options).value
            return [[options.index(choice)] for choice in chosen]
        if case["turns"]:
            turns = [[self._text(ids) for ids in chat] for chat in case["turns"]]
            return list(chats.using(**settings).run(turns, case["out"]).value)
        return list(generations.using(**settings).run(shared, own, case["out"]).value)

    def clock(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._backend.close()
        self._process.close()

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids)


if __name__ == "__main__":
    side = Side(sys.argv[1], json.loads(sys.argv[2]))
    serve(side.run, side.clock)
    side.close()
