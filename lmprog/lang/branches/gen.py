"""Results of calls: `Gen[T]`, awaitable and blocking, typed, usable in later text before it is
known.

Reading it (`await gen`, `gen.value`) gives the value or raises why there is none, every time it is
read. In an f-string, a result that was not read is a mark that stays a reference when the text is
appended.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from lmprog import wire
from lmprog.errors import IncompleteValue, ValidationFailed
from lmprog.lang.branches.marks import mark_for
from lmprog.lang.branches.pending_call import PendingCall
from lmprog.lang.ops.checks import passed
from lmprog.lang.ops.expressions import GenOp, SelectOp
from lmprog.lang.ops.meta import Meta, Selected
from lmprog.lang.ops.text_patterns import TextPattern
from lmprog.lang.ops.tool_calls import OfferedTools
from lmprog.lang.ops.typed import value_of
from lmprog.lang.streaming.listening import marks_of_op

T = TypeVar("T")


class Gen(PendingCall, Generic[T]):
    """The result of one `gen` or `select`, perhaps still to come."""

    _values: list[T] | None = None
    _has_program_value = False
    """Whether the program itself has read the value, so that it knows it."""

    @property
    def value(self) -> T:
        """The (first) result; blocks. Raises why there is none."""
        return self.values[0]

    @property
    def values(self) -> list[T]:
        """All `n` results; blocks. The branch goes on from the first."""
        self.wait()
        values, self._has_program_value = self._read(), True
        return list(values)

    @property
    def reasoning(self) -> str | None:
        """The reasoning before the (first) answer; blocks. None unless it was to be separated."""
        self.wait()
        reply, marks = self.reply(), marks_of_op(self._op)
        if isinstance(self.thought, Gen):
            return self.thought.reasoning
        if marks is None or isinstance(reply, wire.Chosen):
            return None
        return marks.split(reply.outputs[0].text)[0]

    @property
    def captures(self) -> dict[str, str | None]:
        """What the named pieces of a pattern captured in the (first) result, None for what was left
        out; blocks. Empty where no pattern was asked for.
        """
        found, tp = self.value, getattr(self._op, "tp", None)
        return tp.captured(str(found)) if isinstance(tp, TextPattern) else {}

    @property
    def example(self) -> str | None:
        """A text of the pattern that was asked for, for rehearsals; None where there is none."""
        tp = getattr(self._op, "tp", None)
        return tp.example if isinstance(tp, TextPattern) else None

    @property
    def meta(self) -> Meta:
        """Tokens, finish reason, work, log-probabilities of the (first) result; blocks."""
        return self.metas[0]

    @property
    def metas(self) -> list[Meta]:
        """The same for all `n` results. The work is that of the whole call in each of them."""
        self.wait()
        reply = self.reply()
        if isinstance(reply, wire.Chosen):
            return [Meta(tokens=(), finish="select", stopped_by=None, usage=reply.usage)]
        thought = (self if self.thought is None else self.thought)._listening.reasoning_tokens
        return [
            Meta(
                tokens=output.tokens,
                finish=output.finish,
                stopped_by=output.stopped_by,
                usage=reply.usage,
                logprobs=output.logprobs,
                prompt_logprobs=reply.prompt_logprobs,
                next_logprobs=reply.next_logprobs,
                reasoning_tokens=thought if index == 0 else None,
                left_out=reply.left_out,
                score=output.score,
            )
            for index, output in enumerate(reply.outputs)
        ]

    def __await__(self) -> Generator[Any, None, T]:
        yield from self.wait_async().__await__()
        values, self._has_program_value = self._read(), True
        return values[0]

    def show(self) -> None:
        """Tells a streaming run that this is done; on the receiving thread."""
        feed = self.run.feed
        if feed is None or self.is_thought:
            return
        if self._is_checked:  # by the program's own code, which runs where the program reads it
            feed.changed()
        elif self.failure() is None:
            try:
                feed.value(self._listening.event_of(self._read()[0]), id(self.call))
            except ValidationFailed:
                feed.changed()  # raised where the program reads it
            self.was_read = False
        else:
            feed.changed()

    def _read(self) -> list[T]:
        if self._values is None:
            reply = self.reply()
            if isinstance(reply, wire.Chosen):
                found: list[Any] = [Selected.of(reply, cast(SelectOp, self._op).choices)]
            else:
                op = cast("GenOp[T]", self._op)
                if op.on_incomplete == "raise":
                    _refuse_incomplete(op.tp, reply.outputs)
                texts, tp = self._contents_of(reply), op.tp
                if isinstance(tp, OfferedTools):
                    said = zip(texts, reply.outputs, strict=True)
                    found = [tp.reply(text, output) for text, output in said]
                else:
                    found = [value_of(tp, text) for text in texts]
                if op.check is not None and not self.run.is_rehearsal:
                    for value, text in zip(found, texts, strict=True):
                        passed(op.check, value, text)
            self._values = found
            self._tell(found[0])
        self.was_read = True
        return self._values

    @property
    def _is_checked(self) -> bool:
        return isinstance(self._op, GenOp) and (self._op.check is not None or self._op.tries > 1)

    def _tell(self, value: object) -> None:
        """Tells a streaming run the value that has just been read, unless `show` has done so."""
        feed = self.run.feed
        if feed is not None and not self.is_thought:
            feed.value(self._listening.event_of(value), id(self.call))

    # --- inside text

    def __str__(self) -> str:
        """The text; blocks. On an event loop a pending result must be awaited first."""
        text, self._has_program_value = self.text, True
        return text

    def __format__(self, spec: str) -> str:
        """In an f-string: a mark, which becomes the result when the string is appended to a branch;
        the text once the program has read it. Whether the result has arrived makes no difference.
        """
        if spec:
            return format(self.value, spec)
        is_text = self._has_program_value or self.run.is_over
        return self.text if is_text else str(mark_for(self))

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            f"{self!r} is a pending result, not a sequence; read its .value, or await it"
        )

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self!r} is a pending result and neither true nor false; read its .value, or await it"
        )

    if (
        not TYPE_CHECKING
    ):  # type checkers refuse such a comparison by themselves, unless they see this

        def __eq__(self, other: object) -> bool:
            if isinstance(other, Gen):
                return self is other
            raise TypeError(
                f"{self!r} is a pending result and equal to no value; read its .value, or await it"
            )

        __hash__ = object.__hash__


def _refuse_incomplete(tp: object, outputs: Sequence[wire.Output]) -> None:
    """Raises where the token limit ended a typed value: it may be a value, but not the one that the
    model was writing.
    """
    for output in outputs:
        if isinstance(tp, OfferedTools) and not tp.is_cut(output):
            continue
        if tp is not str and output.finish == "length":
            raise IncompleteValue(
                f"max_tokens ended the value early, at {output.text!r}; give more tokens, or "
                "on_incomplete='keep' to have what there is",
                text=output.text,
            )
