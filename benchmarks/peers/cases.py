"""What all sides of the comparison do, as token ids that every side is given.

Texts are made of pieces that are one token each, so that a side that is given texts computes the
same tokens. Each round has texts of its own: no cache finds what an earlier round left.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.workloads.text import Pieces, Writer
from lmprog.runtime.text.tokenizer import HfTokenizer

ABOUT = {
    "prompt": "a prompt of 512 tokens, 1 token out",
    "stream": "a prompt of 128 tokens, 64 tokens out",
    "a": "{a} requests that share 1,000 tokens, 30 of their own, 16 out",
    "b": "one context of 600 tokens, {b} branches of 5 more, 40 out",
    "c": "{c} chats of 4 turns, 150 new tokens a turn, 32 out",
    "d": "{d} questions of 20 tokens behind 800 that they share, 4 choices scored",
}


class Cases:
    """Makes the cases of a round. `share` scales how many requests, branches, chats, questions."""

    def __init__(self, folder: Path, share: float) -> None:
        self._tokenizer = HfTokenizer(folder)
        self._pieces = Pieces(self._tokenizer)
        counts = {"a": 32, "b": 16, "c": 8, "d": 64}
        self.counts = {name: max(2, round(count * share)) for name, count in counts.items()}

    def text(self, output: Any, case: dict[str, Any]) -> Any:
        """An output as the text that it is; choices stay numbers."""
        if case["choices"] or isinstance(output, str):
            return output
        return self._tokenizer.decode(output)

    def of_round(self, number: int) -> dict[str, dict[str, Any]]:
        writer = Writer(self._pieces, f"round {number}", 1.0, 1.0)

        def ids(count: int) -> list[int]:
            return self._tokenizer.encode(writer.text(count))

        def case(shared: int, own: list[list[int]], out: int, **more: Any) -> dict[str, Any]:
            empty: dict[str, Any] = {"turns": [], "choices": []}
            return {"shared": ids(shared), "own": own, "out": out} | empty | more

        count = self.counts
        turns = [[ids(150) for _ in range(4)] for _ in range(count["c"])]
        return {
            "prompt": case(512, [[]], 1),
            "stream": case(128, [[]], 64),
            "a": case(1000, [ids(30) for _ in range(count["a"])], 16),
            "b": case(600, [ids(5) for _ in range(count["b"])], 40),
            "c": case(1, [], 32, turns=turns),
            "d": case(
                800, [ids(20) for _ in range(count["d"])], 0, choices=[ids(3) for _ in "abcd"]
            ),
        }
