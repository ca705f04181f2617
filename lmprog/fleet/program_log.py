"""One program as its fleet remembers it: enough to build it again on another replica.

It keeps a `Journal`, and what was streamed. Where the program is built again, a finished call is
what it left in its branch. One whose contest is still open is run again with its seed, muted, and
its result compared. A call in flight is asked again with its seed, and the text that was already
streamed is compared and left out.

Knows wire messages; knows no replicas and sends nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from lmprog import wire
from lmprog.errors import LmprogError, RequestRejected, from_wire
from lmprog.journal import DeadBranches, Journal, ProgramCall, ProgramReply, is_same

MOST_BYTES = 16 * 2**20
"""A program whose ops and replies are larger is not moved."""
LONGEST_PREFIX = 16_384
"""Characters of a program's first text that count for its replica."""
MOST_DEATHS = 2
"""When so many replicas have died during a program's calls, it may be the cause, or stand beside
it: it is tried alone.
"""
MOST_DEATHS_ALONE = 2
"""When so many die that it had for itself, which hurts nobody else, it is the cause and not moved
again …"""
MOST_DEATHS_IN_STORM = 4
"""… or so many, where replicas die without it as well."""
MOST_DEATHS_BESIDE = 2 * MOST_DEATHS
"""With more deaths beside others it is not moved either: where there is one replica."""


class Diverged(Exception):
    """The program did not do again what it had done."""


@dataclass(slots=True)
class StreamedText:
    """What was streamed of one result."""

    text: str = ""
    num_tokens: int = 0
    num_logprobs: int = 0

    def add(self, delta: wire.Delta) -> None:
        self.text += delta.text
        self.num_tokens += delta.num_tokens
        self.num_logprobs += len(delta.logprobs)


@dataclass(eq=False, slots=True)
class ProgramLog:
    """A root branch and all that was forked from it."""

    clock: Callable[[], float] = time.monotonic
    journal: Journal = field(default_factory=Journal)
    pending: dict[int, ProgramCall] = field(default_factory=dict)
    open_branches: set[int] = field(default_factory=set)
    moves: int = 0
    deaths: int = 0
    """Replicas that died while they worked on a call of it, since it was tried alone."""
    deaths_alone: int = 0
    """Those of them that worked on nothing else."""
    is_cause: bool = False
    """Whether it has ended replicas that worked on nothing else."""
    size: int = 0
    """Bytes of ops and replies, about."""
    _first_death: int = 0
    """The number of the first of `deaths` among all of the fleet's."""
    _asked_at: dict[int, float] = field(default_factory=dict)
    _streamed: dict[tuple[int, int], StreamedText] = field(default_factory=dict)
    _again: dict[tuple[int, int], StreamedText] = field(default_factory=dict)
    """The same since the last move, for results that were streamed in part before it."""
    _muted: dict[int, wire.CallReply] = field(default_factory=dict)
    """Calls that run again only for their contest, and what they gave before."""
    _dead: DeadBranches | None = None
    """Those that have failed, though the program's new replica may not know; None before any call
    has.
    """

    @property
    def over(self) -> bool:
        """Nothing more can come of it."""
        return not self.open_branches and not self.pending

    @property
    def is_large(self) -> bool:
        """Whether it is too large to be built again."""
        return self.size > MOST_BYTES

    @property
    def movable(self) -> bool:
        """Whether it can be built again, and may be."""
        beside = self.deaths - self.deaths_alone
        return not self.is_large and not self.is_cause and beside <= MOST_DEATHS_BESIDE

    @property
    def unanswered(self) -> set[int]:
        """The calls that its replica will still answer, each once."""
        return self.pending.keys() | self._muted.keys()

    @property
    def waits_for_all(self) -> bool:
        """Whether calls are pending, and nothing of them was streamed."""
        return bool(self.pending) and not any(call in self.pending for call, _ in self._streamed)

    @property
    def is_suspect(self) -> bool:
        """Whether it is to be tried alone."""
        return self.deaths >= MOST_DEATHS

    def note_death(self, number: int, is_alone: bool) -> None:
        """A replica died while it worked on a call of it, and on those of no other program where it
        `is_alone`. It was the `number`-th of the fleet to die.
        """
        if not self.deaths:
            self._first_death = number
        self.deaths += 1
        self.deaths_alone += is_alone
        without_it = 1 + number - self._first_death - self.deaths
        enough = MOST_DEATHS_IN_STORM if without_it else MOST_DEATHS_ALONE
        self.is_cause = is_alone and self.deaths > MOST_DEATHS and self.deaths_alone >= enough

    def clear(self) -> None:
        """It was tried alone, and its replica lives: it is no suspect."""
        self.deaths = self.deaths_alone = 0

    def take(self, op: wire.Op) -> None:
        """One more op of the program."""
        if self._dead is not None:
            self._dead.take(op)
        self.journal.ops.append(op)
        self.size += _size(op)
        if isinstance(op, wire.Open):
            self.open_branches.add(op.branch)
        elif isinstance(op, wire.Fork):
            self.open_branches.update(op.children)
        elif isinstance(op, wire.Close):
            self.open_branches.discard(op.branch)
        elif isinstance(op, ProgramCall):
            self.pending[op.call] = op
            self._asked_at[op.call] = self.clock()

    def cause_of(self, op: ProgramCall) -> LmprogError | None:
        """Why a call cannot be asked: its branch has failed."""
        return None if self._dead is None else self._dead.why(op.branch)

    def give_up(self) -> list[int]:
        """Ends all pending calls, and says which they were."""
        pending = list(self.pending)
        self.pending.clear()
        return pending

    def hear_delta(self, delta: wire.Delta) -> wire.Delta | None:
        """What of it is new to the client. Raises Diverged."""
        key = (delta.call, delta.index)
        streamed = self._streamed.setdefault(key, StreamedText())
        again = self._again.get(key)
        if again is None:
            streamed.add(delta)
            return delta
        before = StreamedText(again.text, again.num_tokens, again.num_logprobs)
        again.add(delta)
        if len(again.text) <= len(streamed.text):
            if not streamed.text.startswith(again.text):
                raise Diverged
            return None
        if not again.text.startswith(streamed.text):
            raise Diverged
        skipped = len(streamed.text) - len(before.text)
        logprobs = delta.logprobs[max(0, streamed.num_logprobs - before.num_logprobs) :]
        num_tokens = again.num_tokens - streamed.num_tokens
        self._streamed[key] = again
        del self._again[key]
        tags = tuple(at - skipped for at in delta.tags if at >= skipped)
        return wire.Delta(delta.call, delta.index, delta.text[skipped:], num_tokens, logprobs, tags)

    def hear_reply(self, reply: ProgramReply) -> ProgramReply | None:
        """The reply, unless the client has it already. Raises Diverged."""
        assert reply.call is not None
        if reply.call in self._muted:
            before = self._muted.pop(reply.call)
            if not is_same(self.journal.calls()[reply.call], before, reply):
                raise Diverged
            return None
        op = self.pending.pop(reply.call, None)
        if op is None:
            return None
        self._asked_at.pop(reply.call, None)
        if isinstance(reply, wire.CallDone):
            for index, output in enumerate(reply.outputs):
                streamed = self._streamed.pop((reply.call, index), None)
                self._again.pop((reply.call, index), None)
                if streamed is not None and not output.text.startswith(streamed.text):
                    raise Diverged
        self.journal.replies[reply.call] = reply
        if isinstance(reply, wire.Failed):
            error = from_wire(reply.code, reply.message, reply.details)
            if isinstance(error, RequestRejected) and self._dead is not None:
                self._dead.failed(op, error)
            else:
                self._dead = self.journal.dead()
        self.size += _size(reply)
        return reply

    def rebuilt(self) -> list[wire.Op]:
        """The ops that build it again; counts as a move."""
        self.moves += 1
        self._again = {key: StreamedText() for key in self._streamed if key[0] in self.pending}
        self._muted = {
            call: reply
            for call in self._undecided()
            if isinstance(reply := self.journal.replies.get(call), wire.CallReply)
        }
        if self._dead is not None:
            self._dead = self.journal.dead()
        ops = self.journal.rebuilt(self.pending.keys() | self._muted.keys())
        return [self._with_time_left(op) if isinstance(op, ProgramCall) else op for op in ops]

    def _undecided(self) -> set[int]:
        """Calls of contests that are not decided: their results must be run again, as votes."""
        contests = [op for op in self.journal.ops if isinstance(op, wire.Contest)]
        open_ones = [op for op in contests if any(call in self.pending for call in op.calls)]
        return {call for op in open_ones for call in op.calls}

    def _with_time_left(self, op: ProgramCall) -> ProgramCall:
        """A pending call with what is left of its timeout."""
        if isinstance(op, wire.Read) or op.timeout is None or op.call not in self.pending:
            return op
        left = op.timeout - (self.clock() - self._asked_at[op.call])
        return msgspec.structs.replace(op, timeout=max(0.001, left))


def _size(message: wire.Op | ProgramReply) -> int:
    """Bytes that it holds, about."""
    if isinstance(message, wire.Append):
        return sum(_piece_size(piece) for piece in message.pieces)
    if isinstance(message, wire.CallDone):
        return sum(len(one.text) + 8 * len(one.tokens) for one in message.outputs)
    return 64


def _piece_size(piece: wire.Piece) -> int:
    if isinstance(piece, wire.TextPiece):
        return len(piece.text)
    if isinstance(piece, wire.TokensPiece):
        return 8 * len(piece.ids) + len(piece.rest)
    if isinstance(piece, wire.Conversation):
        return len(piece.messages) + len(piece.tools)
    return 16


def first_text(ops: Sequence[wire.Op]) -> str:
    """What the program's branches begin with, as far as it is known when its first call is
    asked.
    """
    parts: list[str] = []
    length = 0
    for op in ops:
        if isinstance(op, wire.Append):
            for piece in op.pieces:
                text = _text_of(piece)
                parts.append(text)
                length += len(text)
        if length > LONGEST_PREFIX:
            break
    return "".join(parts)[:LONGEST_PREFIX]


def _text_of(piece: wire.Piece) -> str:
    match piece:
        case wire.TextPiece(text=text):
            return text
        case wire.RoleBegin(role=role):
            return f"<{role}>"
        case wire.Conversation(messages=messages, tools=tools):
            return tools + messages
        case wire.TokensPiece(ids=ids, rest=rest):
            return ",".join(map(str, ids)) + rest
        case _:
            return ""


def seeded(op: ProgramCall, draw: random.Random) -> ProgramCall:
    """The call with a seed where it has none, so that it can be done again on another replica."""
    if isinstance(op, wire.Generate) and op.sampling.seed is None:
        sampling = msgspec.structs.replace(op.sampling, seed=draw.getrandbits(63))
        return msgspec.structs.replace(op, sampling=sampling)
    if isinstance(op, wire.Select) and op.seed is None:
        return msgspec.structs.replace(op, seed=draw.getrandbits(63))
    return op
