"""One program as its fleet remembers it: enough to build it again on another replica.

Kept are the ops in order, the final replies, and what was streamed. `rebuilt` turns them into ops
that leave every branch where it was, token for token: a finished call becomes what it left in its
branch (`wire.own_pieces`). One whose contest is still open is run again with its seed, muted, and
its result compared. A call in flight is asked again with its seed, and the text that was already
streamed is compared and left out.

Knows wire messages; knows no replicas and sends nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from lmprog import wire
from lmprog.errors import LmprogError, RequestRejected, from_wire

MOST_BYTES = 16 * 2**20
"""A program whose ops and replies are larger is not moved."""
LONGEST_PREFIX = 16_384
"""Characters of a program's first text that count for its replica."""
MOST_DEATHS = 2
"""A program is not moved again when more than so many replicas died during its calls: it may be the
cause.
"""

ProgramCall = wire.Generate | wire.Select | wire.Read
ProgramReply = wire.CallDone | wire.Chosen | wire.TextIs | wire.Failed


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
    ops: list[wire.Op] = field(default_factory=list)
    replies: dict[int, ProgramReply] = field(default_factory=dict)
    pending: dict[int, ProgramCall] = field(default_factory=dict)
    open_branches: set[int] = field(default_factory=set)
    moves: int = 0
    deaths: int = 0
    """Replicas that died while they worked on a call of it."""
    size: int = 0
    """Bytes of ops and replies, about."""
    _asked_at: dict[int, float] = field(default_factory=dict)
    _streamed: dict[tuple[int, int], StreamedText] = field(default_factory=dict)
    _again: dict[tuple[int, int], StreamedText] = field(default_factory=dict)
    """The same since the last move, for results that were streamed in part before it."""
    _given: set[int] = field(default_factory=set)
    """Calls whose results were given since the last move: the replica knows no such calls."""
    _muted: dict[int, ProgramReply] = field(default_factory=dict)
    """Calls that run again only for their contest, and what they gave before."""
    _spoiled: dict[int, wire.Failed] = field(default_factory=dict)

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
        return not self.is_large and self.deaths <= MOST_DEATHS

    def take(self, op: wire.Op) -> None:
        """One more op of the program."""
        self.ops.append(op)
        self.size += _size(op)
        if isinstance(op, wire.Append):
            if self.moves:
                self._spoil_by_reference(op)
        elif isinstance(op, wire.Open):
            self.open_branches.add(op.branch)
        elif isinstance(op, wire.Fork):
            self.open_branches.update(op.children)
            if op.branch in self._spoiled:
                self._spoiled.update(dict.fromkeys(op.children, self._spoiled[op.branch]))
        elif isinstance(op, wire.Close):
            self.open_branches.discard(op.branch)
        elif isinstance(op, ProgramCall):
            self.pending[op.call] = op
            self._asked_at[op.call] = self.clock()

    def known(self, op: wire.Append) -> wire.Append:
        """The op as the program's replica understands it: without references that it cannot
        know.
        """
        if not any(isinstance(one, wire.Ref) and one.call in self._given for one in op.pieces):
            return op
        return wire.Append(op.branch, tuple(self._piece(one) for one in op.pieces))

    def _spoil_from(self, call: ProgramCall, cause: wire.Failed) -> None:
        """The branch of a failed call fails, and what was forked from it after the call."""
        spoiled = {call.branch}
        later = self.ops[self.ops.index(call) :]
        for op in later:
            if isinstance(op, wire.Fork) and op.branch in spoiled:
                spoiled.update(op.children)
        for branch in spoiled:
            self._spoiled.setdefault(branch, cause)

    def _spoil_by_reference(self, op: wire.Append) -> None:
        """A reference to a call that failed before a move fails the branch as it would have."""
        for piece in op.pieces:
            reply = self.replies.get(piece.call) if isinstance(piece, wire.Ref) else None
            if isinstance(reply, wire.Failed):
                self._spoiled.setdefault(op.branch, reply)

    def cause_of(self, op: ProgramCall) -> LmprogError | None:
        """Why a call cannot be asked: its branch has failed, though its new replica may not
        know.
        """
        cause = self._spoiled.get(op.branch)
        return None if cause is None else from_wire(cause.code, cause.message, cause.details)

    def give_up(self) -> list[int]:
        """Ends all pending calls, and says which they were."""
        pending = list(self.pending)
        self.pending.clear()
        return pending

    def text_of(self, piece: wire.Ref) -> wire.Piece:
        """The text of a result; the reference itself where there is none."""
        reply = self.replies.get(piece.call)
        if reply is None or isinstance(reply, wire.Failed):
            return piece
        op = next(
            one for one in self.ops if isinstance(one, ProgramCall) and one.call == piece.call
        )
        texts = wire.result_texts(op, reply)
        return wire.letters(texts[piece.index]) if piece.index < len(texts) else piece

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
            if not _same(self._muted.pop(reply.call), reply):
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
        elif isinstance(reply, wire.Failed):
            error = from_wire(reply.code, reply.message, reply.details)
            if not isinstance(error, RequestRejected):
                self._spoil_from(op, reply)
        self.replies[reply.call] = reply
        self.size += _size(reply)
        return reply

    def rebuilt(self) -> list[wire.Op]:
        """The ops that build it again; counts as a move."""
        self.moves += 1
        self._again = {key: StreamedText() for key in self._streamed if key[0] in self.pending}
        self._muted = {}
        self._given = set()
        sent: set[int] = set()
        contested = self._undecided()
        return [op for one in self.ops for op in self._again_as(one, sent, contested)]

    def _undecided(self) -> set[int]:
        """Calls of contests that are not decided: their results must be run again, as votes."""
        contests = [op for op in self.ops if isinstance(op, wire.Contest)]
        open_ones = [op for op in contests if any(call in self.pending for call in op.calls)]
        return {call for op in open_ones for call in op.calls}

    def _again_as(self, op: wire.Op, sent: set[int], contested: set[int]) -> Iterator[wire.Op]:
        """`sent`: calls that are asked again."""
        if isinstance(op, wire.Append):
            yield self.known(op)
        elif isinstance(op, ProgramCall):
            reply = self.replies.get(op.call)
            if op.call in self.pending:
                sent.add(op.call)
                yield self._with_time_left(op)
            elif isinstance(reply, wire.CallDone | wire.Chosen):
                if op.call in contested:
                    self._muted[op.call] = reply
                    sent.add(op.call)
                    yield op
                else:
                    assert not isinstance(op, wire.Read), "a read is answered by a text"
                    self._given.add(op.call)
                    yield wire.Append(op.branch, wire.own_pieces(op, reply))
            elif isinstance(reply, wire.TextIs):
                self._given.add(op.call)
        elif isinstance(op, wire.Contest):
            calls = tuple(call for call in op.calls if call in sent)
            if calls and any(call in self.pending for call in calls):
                yield wire.Contest(calls, op.rule)
        elif isinstance(op, wire.Cancel):
            if op.call in self.pending:
                yield op
        else:
            yield op

    def _piece(self, piece: wire.Piece) -> wire.Piece:
        """A reference to a result that the replica was given is its text."""
        if isinstance(piece, wire.Ref) and piece.call in self._given:
            return self.text_of(piece)
        return piece

    def _with_time_left(self, op: ProgramCall) -> ProgramCall:
        """The call with what is left of its timeout."""
        if isinstance(op, wire.Read) or op.timeout is None:
            return op
        left = op.timeout - (self.clock() - self._asked_at[op.call])
        return msgspec.structs.replace(op, timeout=max(0.001, left))


def _same(before: ProgramReply, now: ProgramReply) -> bool:
    """Whether a call that ran again left the same in its branch."""
    if isinstance(before, wire.CallDone) and isinstance(now, wire.CallDone):
        return before.outputs[0].tokens == now.outputs[0].tokens
    if isinstance(before, wire.Chosen) and isinstance(now, wire.Chosen):
        return before.index == now.index
    return False


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
