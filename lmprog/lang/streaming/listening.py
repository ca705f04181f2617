"""The text of a running generation, piece by piece, and the events that a stream shows of it.

Everything here happens on the receiving thread. Knows feeds, partial objects and how reasoning is
separated; it does not know calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmprog import wire
from lmprog.lang.ops.expressions import GenOp, SelectOp
from lmprog.lang.ops.tool_calls import OfferedTools
from lmprog.lang.streaming.feed import Feed, Text, Thought
from lmprog.lang.streaming.partial import PartialText
from lmprog.tool_calls.harmony import ThoughtText
from lmprog.tool_calls.reading import ParsedCall
from lmprog.tool_calls.thoughts import THOUGHT, Splitter, SplitText


def _var_of(op: GenOp[Any] | SelectOp) -> str | None:
    """The name in events: reasoning goes by the name of the answer that it is for."""
    is_thought = isinstance(op, GenOp) and op.is_thought
    return op.name.removesuffix(THOUGHT) if is_thought and op.name is not None else op.name


class Listening:
    """Takes the deltas of a generation's first result."""

    def __init__(self, op: GenOp[Any] | SelectOp, feed: Feed | None, path: tuple[int, ...]) -> None:
        marks = op.reasoning
        self.deltas: list[str] = []
        """The pieces of the text as the branch has it, in order."""
        self.reasoning_tokens: int | None = None
        self._var = _var_of(op)
        self._path = path
        self._feed = feed
        grows = (
            isinstance(op, GenOp)
            and op.constraint is not None
            and op.constraint.as_schema() is not None
            and op.tp is not str
        )
        self._partial = (
            PartialText(op.name, op.tp, path) if grows and isinstance(op, GenOp) else None
        )
        self._splitter = None if marks is None else Splitter(marks)
        offered = op.tp if isinstance(op, GenOp) else None
        self._calls = offered.stream() if isinstance(offered, OfferedTools) else None

    def take(self, delta: wire.Delta) -> None:
        """More text."""
        if delta.index != 0:
            return
        if self._splitter is None:
            self._add(delta.text, delta.tags)
            return
        if not self._splitter.answering:  # the marks are counted with the text between them
            self.reasoning_tokens = (self.reasoning_tokens or 0) + delta.num_tokens
        self._add_split(self._splitter.push(delta.text))

    def end(self) -> None:
        """Nothing more comes."""
        if self._splitter is not None:
            self._add_split(self._splitter.finish())
        if self._calls is not None:
            self._show(self._without_calls(self._calls.finish()))

    def _add_split(self, split: SplitText) -> None:
        if split.reasoning and self._feed is not None:
            self._feed.add(Thought(self._var, split.reasoning, self._path))
        if split.answer:
            self._add(split.answer)

    def _add(self, text: str, tags: Sequence[int] = ()) -> None:
        self.deltas.append(text)
        calls = self._calls
        self._show(text if calls is None else self._without_calls(calls.feed(text, tags)))
        if self._feed is not None:
            partial = None if self._partial is None else self._partial.feed(text)
            if partial is not None:
                self._feed.add(partial)

    def _without_calls(self, parts: Sequence[str | ParsedCall | ThoughtText]) -> str:
        """Leaves out calls of tools, which are in the value, and thoughts."""
        return "".join(part for part in parts if isinstance(part, str))

    def _show(self, text: str) -> None:
        if text and self._feed is not None:
            self._feed.add(Text(self._var, text, self._path))
