"""What is heard of a generation while it runs: its text piece by piece, and what a stream shows of
it.

Everything here happens on the receiving thread. Knows feeds, partial objects and how reasoning is
told apart; it does not know calls.
"""

from __future__ import annotations

from typing import Any

from lmprog import wire
from lmprog.lang.ops.expressions import GenOp, SelectOp
from lmprog.lang.streaming.feed import Feed
from lmprog.lang.streaming.partial import PartialText
from lmprog.lang.streaming.reasoning import THOUGHT, Marks, Splitter, SplitText


def marks_of_op(op: GenOp[Any] | SelectOp) -> Marks | None:
    return op.reasoning if isinstance(op, GenOp) else None


def _told_as(op: GenOp[Any] | SelectOp) -> str | None:
    """Under which name a stream tells it: reasoning goes by the name of what it is for."""
    is_thought = isinstance(op, GenOp) and op.is_thought
    return op.name.removesuffix(THOUGHT) if is_thought and op.name is not None else op.name


class Listening:
    """Hears the first of a generation's results."""

    def __init__(self, op: GenOp[Any] | SelectOp, feed: Feed | None) -> None:
        marks = marks_of_op(op)
        self.deltas: list[str] = []  # of the text as the branch has it, in order
        self.reasoning_tokens: int | None = None
        self._var = _told_as(op)
        self._feed = feed
        grows = (
            isinstance(op, GenOp)
            and isinstance(op.constraint, wire.JsonSchema)
            and op.tp is not str
        )
        self._partial = PartialText(op.name, op.tp) if grows and isinstance(op, GenOp) else None
        self._splitter = None if marks is None else Splitter(marks)

    def hear(self, delta: wire.Delta) -> None:
        """More text."""
        if delta.index != 0:
            return
        if self._splitter is None:
            self._tell(delta.text)
            return
        if not self._splitter.answering:  # the marks are counted with what stands between them
            self.reasoning_tokens = (self.reasoning_tokens or 0) + delta.num_tokens
        self._told(self._splitter.push(delta.text))

    def end(self) -> None:
        """Nothing more comes."""
        if self._splitter is not None:
            self._told(self._splitter.finish())

    def _told(self, told: SplitText) -> None:
        if told.reasoning and self._feed is not None:
            self._feed.thought(self._var, told.reasoning)
        if told.answer:
            self._tell(told.answer)

    def _tell(self, text: str) -> None:
        self.deltas.append(text)
        if self._feed is not None:
            self._feed.text(self._var, text)
            if self._partial is not None:
                self._feed.partial(self._partial.feed(text))
