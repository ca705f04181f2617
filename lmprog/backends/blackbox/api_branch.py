"""A branch of the channel: its ops in order, its position, and its calls' futures.

Belongs to one event loop. Knows what ops wait for, not what they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from lmprog import wire
from lmprog.backends.blackbox.answer_state import AnswerState
from lmprog.backends.blackbox.transcript import Item, ResultText, TurnBegin, TurnEnd
from lmprog.errors import Cancelled, LmprogError, ProgramError, ProtocolError

Texts: TypeAlias = "asyncio.Future[tuple[str, ...] | LmprogError]"
"""A call's texts once it is complete. The future never holds an exception: an error is a value
here.
"""


@dataclass(slots=True, eq=False)
class ApiCall:
    """A gen, select or read of a branch, from its arrival to its final reply."""

    op: wire.Generate | wire.Select | wire.Read
    texts: Texts
    deadline: float | None
    """On the event loop's clock."""
    task: asyncio.Task[object] | None = None
    why: LmprogError | None = None
    """The error it was cancelled with."""

    def end(self, why: LmprogError) -> None:
        """Cancels the call with error `why`, whether it runs or waits."""
        self.why = self.why or why
        if self.task is not None:
            self.task.cancel()


@dataclass(frozen=True, slots=True)
class QueuedRef:
    texts: Texts
    index: int


@dataclass(frozen=True, slots=True)
class QueuedGained:
    items: asyncio.Future[tuple[Item, ...] | LmprogError]


Piece: TypeAlias = "Item | QueuedRef | QueuedGained"


@dataclass(frozen=True, slots=True)
class QueuedAppend:
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class QueuedFork:
    children: tuple[ApiBranch, ...]


@dataclass(frozen=True, slots=True)
class QueuedRead:
    """A step that reports the text appended to the branch since its fork."""

    items: asyncio.Future[tuple[Item, ...] | LmprogError]


@dataclass(frozen=True, slots=True)
class QueuedFailure:
    """A step after which the branch has failed."""

    error: LmprogError


Step: TypeAlias = "QueuedAppend | QueuedFork | QueuedRead | QueuedFailure | ApiCall"


@dataclass(slots=True, eq=False)
class ApiBranch:
    """Created when it is opened, or when its fork is carried out; complete once it is closed and
    has no steps left.
    """

    number: int
    state: AnswerState = field(default_factory=AnswerState)
    base: int = 0
    """Number of leading transcript items inherited from the parent."""
    failed: LmprogError | None = None
    is_closed: bool = False
    calls: list[ApiCall] = field(default_factory=list)
    """All its calls; other branches may refer to their results until this one is closed."""
    _steps: asyncio.Queue[Step | None] = field(default_factory=asyncio.Queue)
    _born: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, state: AnswerState, failed: LmprogError | None = None) -> None:
        self.state, self.failed = state, failed
        self.base = len(state.transcript.items)
        self._born.set()

    def put(self, step: Step) -> None:
        self._steps.put_nowait(step)

    def close(self) -> None:
        """Cancels its generations. Other queued steps still run, since other branches may wait for
        them.
        """
        self.is_closed = True
        for call in self.calls:
            if not isinstance(call.op, wire.Read) and not call.texts.done():
                call.end(Cancelled("the call was cancelled"))
        self._steps.put_nowait(None)

    async def next(self) -> Step | None:
        """The next step; None after the last one of a closed branch."""
        await self._born.wait()
        return await self._steps.get()

    def gained(self) -> tuple[Item, ...] | LmprogError:
        """The items since the fork, as text: token ids are valid in this branch only. What was said
        in turns is letters.
        """
        gained: list[Item] = []
        is_turn = False
        for at, item in enumerate(self.state.transcript.items):
            if isinstance(item, TurnBegin | TurnEnd):
                is_turn = isinstance(item, TurnBegin)
            elif isinstance(item, ResultText):
                output = item.output
                if is_turn and output is None:  # an option is letters there, as all else
                    output = wire.Output(item.text, (), "stop")
                item = ResultText(item.text, output, own=False)
            elif is_turn:
                item = wire.Letters(item)
            if at >= self.base:
                gained.append(item)
        return self.failed or tuple(gained)


async def known(pieces: Sequence[Piece]) -> tuple[Item, ...] | LmprogError:
    """The pieces as items, once all are resolved; an error if one of them failed."""
    items: list[Item] = []
    for piece in pieces:
        if isinstance(piece, QueuedRef):
            texts = await piece.texts
            if isinstance(texts, LmprogError):
                return texts
            if piece.index >= len(texts):
                return ProgramError(
                    f"a text refers to result {piece.index + 1} of a call that has {len(texts)}"
                )
            items.append(wire.Letters(texts[piece.index]))
        elif isinstance(piece, QueuedGained):
            gained = await piece.items
            if isinstance(gained, LmprogError):
                return gained
            items += gained
        else:
            items.append(piece)
    return tuple(items)


def outcome_of(call: ApiCall) -> wire.CallDone | wire.Chosen | LmprogError:
    """The outcome of a call's task."""
    task = call.task
    assert task is not None
    if task.cancelled():
        return call.why or Cancelled("the call was cancelled")
    error = task.exception()
    if error is None:
        result = task.result()
        assert isinstance(result, wire.CallDone | wire.Chosen)
        return result
    if isinstance(error, LmprogError):
        return error
    return ProtocolError(f"the API's answer was not understood: {type(error).__name__}: {error}")
