"""Results of calls: `Gen[T]`, awaitable and blocking, typed, usable in later text before it is
known.

Reading it (`await gen`, `gen.value`) gives the value or raises why there is none, every time it is
read. In an f-string, a result that was not read is a mark that stays a reference when the text is
appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from lmprog import wire
from lmprog.errors import LmprogError, ValidationFailed
from lmprog.lang.branches.log import Item, flat, gens_of, plain_text
from lmprog.lang.branches.marks import call_of, mark_for, split
from lmprog.lang.branches.pending_call import PendingCall, RunContext, raise_at
from lmprog.lang.ops.expressions import GenOp, SelectOp
from lmprog.lang.ops.meta import Meta, Selected
from lmprog.lang.streaming.feed import Feed, Value

if TYPE_CHECKING:
    from lmprog.lang.ops.text_patterns import TextPattern

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
        reply, marks = self.reply(), self._op.reasoning
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
        found, pattern = self.value, self._pattern
        return {} if pattern is None else pattern.captured(str(found))

    @property
    def captured_names(self) -> tuple[str, ...]:
        """Of the named pieces of the pattern that was asked for."""
        pattern = self._pattern
        return () if pattern is None else tuple(pattern.names)

    @property
    def _pattern(self) -> TextPattern | None:
        """The pattern that was asked for."""
        tp = getattr(self._op, "tp", str)
        if tp is str:
            return None
        from lmprog.lang.ops.text_patterns import TextPattern

        return tp if isinstance(tp, TextPattern) else None

    @property
    def example(self) -> str | None:
        """A text of the pattern that was asked for, for rehearsals; None where there is none."""
        pattern = self._pattern
        return None if pattern is None else pattern.example

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
        thought = (self if self.thought is None else self.thought).thought_tokens
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
                feed.value(Value(self.name, self._read()[0], self.origin.path), id(self.call))
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
                texts = self._contents_of(reply)
                if op.tp is str:
                    found = list(texts)
                else:
                    from lmprog.lang.ops import typed

                    if op.on_incomplete == "raise":
                        typed.refuse_incomplete(op.tp, reply.outputs)
                    found = typed.values_of(op.tp, texts, reply.outputs)
                if op.check is not None and not self.run.is_rehearsal:
                    from lmprog.lang.ops.keywords import passed

                    for value, text in zip(found, texts, strict=True):
                        passed(op.check, value, text)
            self._values = found
            if self.run.feed is not None:
                self._tell(self.run.feed, found[0])
        self.was_read = True
        return self._values

    def outcome(self) -> Any:
        values = self._read()
        return values[0] if len(values) == 1 or self.keeps_one else list(values)

    def invalid(self) -> LmprogError | None:
        is_typed = isinstance(self._op, GenOp) and (self._op.tp is not str or self._is_checked)
        if not is_typed or self.run.is_rehearsal:
            return None
        try:
            self._read()
        except ValidationFailed as error:
            error.add_note(f"{self!r} was asked for at {self.site}, and nothing has read it")
            try:
                raise_at(self.site, error.with_traceback(None))
            except ValidationFailed as raised:
                return raised
        return None

    @property
    def _is_checked(self) -> bool:
        return isinstance(self._op, GenOp) and (self._op.check is not None or self._op.tries > 1)

    def _tell(self, feed: Feed, value: object) -> None:
        """Tells a streaming run the value that has just been read, unless `show` has done so."""
        if not self.is_thought:
            feed.value(Value(self.name, value, self.origin.path), id(self.call))

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

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying looks for such names before there is anything to show
            raise AttributeError(name)
        raise AttributeError(
            f"{self!r} is a pending result without {name!r}; to ask what the model wrote for it, "
            "read its .value, or await it"
        )

    def _refuse(self, *others: object) -> Any:
        raise TypeError(
            f"{self!r} is a pending result, and nothing can be computed with it; read its .value, "
            "or await it. To join it with text without waiting, write an f-string, or append both"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse
    __rtruediv__ = __mod__ = __getitem__ = __contains__ = __len__ = __int__ = __float__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse

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


@dataclass(frozen=True, slots=True)
class Gathered:
    """The values of one name in several joined branches, in their order."""

    parts: tuple[Var, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """Text with results in it: appended between two points of a branch, or set as a variable."""

    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Reasoned:
    """The reasoning before the answer of a result."""

    gen: Gen[Any]


@dataclass(frozen=True, slots=True)
class Captured:
    """What a named piece of a pattern captured in the (first) result."""

    gen: Gen[Any]
    name: str


Var: TypeAlias = "Gen[Any] | Gathered | Written | Reasoned | Captured | object"


def waited_for(var: Var) -> list[PendingCall]:
    """The results that `var` needs before it has a value."""
    if isinstance(var, Gen):
        return [var]
    if isinstance(var, Reasoned | Captured):
        return [var.gen]
    if isinstance(var, Gathered):
        return [gen for part in var.parts for gen in waited_for(part)]
    if isinstance(var, Written):
        return gens_of(list(var.items))
    return []


def value_now(var: Var) -> Any:
    """The value; blocks until there is one. A result with n > 1 is the list of all n."""
    if isinstance(var, Gen):
        var.wait()
        return var.outcome()
    if isinstance(var, Reasoned):
        return var.gen.reasoning
    if isinstance(var, Captured):
        return var.gen.captures[var.name]
    if isinstance(var, Gathered):
        return [value_now(part) for part in var.parts]
    if isinstance(var, Written):
        return plain_text(list(var.items))
    return var


async def settle(gens: Sequence[PendingCall]) -> None:
    """Waits, without blocking the thread, until all are done, well or not."""
    pending = [gen for gen in gens if not gen.done()]
    if pending:
        await asyncio.gather(*(gen.wait_async() for gen in pending))


class Variable:
    """A name's value, perhaps still to come: `await` it, or read `.value`, which blocks."""

    def __init__(self, var: Var) -> None:
        self._var = var

    @property
    def value(self) -> Any:
        return value_now(self._var)

    def contents(self) -> list[str | PendingCall]:
        """What it is in later text; of what was written, results that are pending stay so."""
        if isinstance(self._var, Written):
            items = flat(list(self._var.items))
            return [item for item in items if isinstance(item, str | PendingCall)]
        text = str(self.value)
        return [wire.Letters(text) if waited_for(self._var) else text]

    def __await__(self) -> Generator[Any, None, Any]:
        yield from settle(waited_for(self._var)).__await__()
        return value_now(self._var)

    def __str__(self) -> str:
        """The value as text; blocks."""
        return str(self.value)


def variable_of(value: object, run: RunContext) -> Var:
    """What a name stands for that is set to `value`: text with pending results keeps them."""
    if type(value) is not str:
        return value
    pieces = split(value)
    if all(isinstance(piece, str) for piece in pieces):
        return value
    return Written(
        tuple(piece if isinstance(piece, str) else call_of(piece, run) for piece in pieces)
    )
