"""What was asked and what came of it: one record for all that do something again.

A checkpoint and a saved run keep it in a file, a cache keeps replies by their questions, a fleet
keeps it in memory. Here stands, for all of them, what is the same question and the same result, how
a reply stands in a file, and which ops bring branches back to where they were. Knows ops and
replies; asks nobody, and opens no file.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from lmprog import wire
from lmprog.errors import LmprogError, RequestRejected, from_wire

Asking: TypeAlias = wire.Generate | wire.Select
ProgramCall: TypeAlias = wire.Generate | wire.Select | wire.Read
ProgramReply: TypeAlias = wire.CallDone | wire.Chosen | wire.TextIs | wire.Failed


# --- questions


@dataclass(frozen=True, slots=True)
class Question:
    """All that stands before a call: who is asked, for whom, and the text."""

    identity: tuple[object, ...]
    salt: str
    pieces: tuple[wire.Piece, ...]
    tools: wire.ToolOffer | None
    lora: str = ""
    """The adapter that computes it: the digest of its content, where that is known."""

    def key(self, op: Asking, *, with_seed: bool) -> str:
        """The digest of this and of what `op` says of the reply: not its numbers, its deadline, its
        priority. At temperature 0 no seed matters.
        """
        plain: Any = as_asked(op, 0, 0)
        if not (with_seed and temperature_of(op) > 0):
            if isinstance(plain, wire.Generate):
                sampling = msgspec.structs.replace(plain.sampling, seed=None)
                plain = msgspec.structs.replace(plain, sampling=sampling)
            else:
                plain = msgspec.structs.replace(plain, seed=None)
        opened = wire.Open(0, self.salt, lora=self.lora)
        ops = wire.encode((opened, wire.Append(0, joined(self.pieces)), plain))
        tools = msgspec.msgpack.encode(self.tools)
        said = msgspec.msgpack.encode((repr(self.identity), ops, tools))
        return hashlib.blake2b(said, digest_size=20).hexdigest()


def as_asked(op: Asking, branch: int, call: int) -> Asking:
    """All that decides its result, under those numbers: no deadline, no priority, no stream."""
    plain = msgspec.structs.replace(op, branch=branch, call=call, priority=0, timeout=None)
    if isinstance(plain, wire.Generate):
        return msgspec.structs.replace(plain, stream=False)
    return plain


def temperature_of(op: Asking) -> float:
    return op.temperature if isinstance(op, wire.Select) else op.sampling.temperature


def joined(pieces: Iterable[wire.Piece]) -> tuple[wire.Piece, ...]:
    """The same with neighbouring texts as one: where appends began is no part of a question."""
    found: list[wire.Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if (
            isinstance(piece, wire.TextPiece)
            and isinstance(last, wire.TextPiece)
            and last.quoted == piece.quoted
            and not (last.calls or piece.calls)
        ):
            found[-1] = wire.TextPiece(last.text + piece.text, piece.quoted)
        elif not isinstance(piece, wire.TextPiece) or piece.text or piece.calls:
            found.append(piece)
    return tuple(found)


# --- results


def wanted_outputs(op: ProgramCall, reply: wire.CallReply) -> tuple[wire.Output, ...]:
    """Those that are the call's result. Where one of several was kept, how far others came is a
    matter of time.
    """
    if isinstance(reply, wire.Chosen):
        return ()
    is_all = isinstance(op, wire.Generate) and op.keep == "first"
    return reply.outputs if is_all else reply.outputs[:1]


def is_same(op: ProgramCall, before: object, now: object) -> bool:
    """Whether the call gave the same again: the option, or the texts and their tokens."""
    if isinstance(before, wire.Chosen) and isinstance(now, wire.Chosen):
        return before.index == now.index
    if isinstance(before, wire.CallDone) and isinstance(now, wire.CallDone):
        first, second = (
            [
                (wire.text_with_calls(one.text, one.calls), one.tokens)
                for one in wanted_outputs(op, reply)
            ]
            for reply in (before, now)
        )
        return first == second
    return False


def deltas(op: Asking, reply: wire.CallReply) -> Iterator[wire.Delta]:
    """A reply that is there as a stream: each text at once."""
    if isinstance(op, wire.Generate) and op.stream:
        for index, output in enumerate(wanted_outputs(op, reply)):
            if output.text:
                num_tokens = len(output.tokens)
                told = (output.text, num_tokens, output.logprobs, output.tags)
                yield wire.Delta(op.call, index, *told)


def shown(reply: wire.CallReply) -> Any:
    """A reply in a file, for people: nothing is read from this."""
    if isinstance(reply, wire.CallDone):
        return [wire.text_with_calls(output.text, output.calls) for output in reply.outputs]
    return {"option": reply.index}


def as_line(message: wire.Op | wire.CallReply) -> str:
    """An op or a reply in a line of a file."""
    frame: tuple[Any, ...] = (message,)
    return base64.b64encode(wire.encode(frame)).decode()


def op_of(line: str) -> wire.Op:
    """Raises ValueError where the line is none."""
    (op,) = wire.decode_ops(base64.b64decode(line, validate=True))
    return op


def reply_of(line: str) -> wire.CallReply:
    """Raises ValueError where the line is none."""
    (reply,) = wire.decode_replies(base64.b64decode(line, validate=True))
    if not isinstance(reply, wire.CallReply):
        raise ValueError(f"{type(reply).__name__} is no result")
    return reply


# --- building again


class Journal:
    """The ops of branches that belong together, in their order, and how the calls ended."""

    def __init__(self, *, are_tokens: bool = True) -> None:
        """`are_tokens`: whether branches are tokens where they are built again, not texts."""
        self.ops: list[wire.Op] = []
        self.replies: dict[int, ProgramReply] = {}
        """By call."""
        self.calls: dict[int, ProgramCall] = {}
        self._are_tokens = are_tokens
        self._given: set[int] = set()
        """Calls that are not asked again: where branches were built again, nobody knows them."""

    def add(self, op: wire.Op) -> None:
        self.ops.append(op)
        if isinstance(op, ProgramCall):
            self.calls[op.call] = op

    def text_of(self, piece: wire.Ref) -> wire.Piece:
        """The text of a result; the reference itself where there is none."""
        reply = self.replies.get(piece.call)
        if reply is None or isinstance(reply, wire.Failed):
            return piece
        texts = wire.result_texts(self.calls[piece.call], reply)
        return wire.letters(texts[piece.index]) if piece.index < len(texts) else piece

    def without_unknown(self, op: wire.Append) -> wire.Append:
        """The op with the texts of results to which nobody can refer since branches were built
        again.
        """
        given = self._given
        if not given or not any(
            isinstance(one, wire.Ref) and one.call in given for one in op.pieces
        ):
            return op
        pieces = (
            self.text_of(one) if isinstance(one, wire.Ref) and one.call in self._given else one
            for one in op.pieces
        )
        return wire.Append(op.branch, tuple(pieces))

    def rebuilt(self, asked: Container[int] = ()) -> list[wire.Op]:
        """The ops that bring every branch to where it was, token for token. The calls in `asked`
        are asked again; the others are what they left.
        """
        self._given = set()
        return [again for op in self.ops for again in self.again(op, asked)]

    def again(self, op: wire.Op, asked: Container[int] = ()) -> Iterator[wire.Op]:
        """What is sent for this op."""
        if isinstance(op, wire.Append):
            yield self.without_unknown(op)
        elif isinstance(op, wire.Contest):
            calls = tuple(call for call in op.calls if call in asked)
            if calls:
                yield wire.Contest(calls, op.rule)
        elif isinstance(op, wire.Cancel):
            if op.call in asked and op.call not in self.replies:
                yield op
        elif not isinstance(op, ProgramCall) or op.call in asked:
            yield op
        elif (reply := self.replies.get(op.call)) and not isinstance(reply, wire.Failed):
            self._given.add(op.call)
            if not isinstance(op, wire.Read):
                assert not isinstance(reply, wire.TextIs), "only a read is answered by a text"
                yield wire.Append(op.branch, self._left_by(op, reply))

    def _left_by(self, op: Asking, reply: wire.CallReply) -> tuple[wire.Piece, ...]:
        if self._are_tokens:
            return wire.own_pieces(op, reply)
        return (wire.letters(wire.result_texts(op, reply)[0]),)

    def dead(self) -> DeadBranches:
        """The branches that have failed."""
        found = DeadBranches()
        for op in self.ops:
            reply = self.replies.get(op.call) if isinstance(op, ProgramCall) else None
            if isinstance(op, ProgramCall) and isinstance(reply, wire.Failed):
                found.failed(op, from_wire(reply.code, reply.message, reply.details))
            else:
                found.take(op)
        return found


class DeadBranches:
    """The branches on which no call can be answered, with the reasons: a call of theirs has failed,
    they were forked after that, or they refer to what will not come.
    """

    def __init__(self) -> None:
        self._why: dict[int, LmprogError] = {}
        self._failed: dict[int, LmprogError] = {}
        """By call: why it has no text."""

    def failed(self, op: ProgramCall, error: LmprogError) -> None:
        """Where the call was only refused, its branch goes on."""
        self._failed[op.call] = error
        if not isinstance(error, RequestRejected):
            self._why.setdefault(op.branch, error)

    def take(self, op: wire.Op) -> bool:
        """Whether its branch is dead, now or from before."""
        if not self._failed and not self._why:
            return False  # as nearly always, and for every op of a fleet
        if isinstance(op, wire.Append):
            why = next(filter(None, map(self._why_missing, op.pieces)), None)
            if why is not None:
                self._why.setdefault(op.branch, why)
        elif isinstance(op, wire.Fork) and op.branch in self._why:
            self._why.update(dict.fromkeys(op.children, self._why[op.branch]))
        return getattr(op, "branch", None) in self._why

    def _why_missing(self, piece: wire.Piece) -> LmprogError | None:
        if isinstance(piece, wire.Ref):
            return self._failed.get(piece.call)
        return self._why.get(piece.branch) if isinstance(piece, wire.Gained) else None

    def why(self, branch: int) -> LmprogError | None:
        """None where the branch goes on."""
        return self._why.get(branch)


def needed(ops: list[wire.Op]) -> list[wire.Op]:
    """The ops without those that only concern branches which are closed again."""
    closed = {op.branch for op in ops if isinstance(op, wire.Close)}
    wanted = {op.branch for op in ops if isinstance(op, wire.Open)} - closed
    wanted |= {child for op in ops if isinstance(op, wire.Fork) for child in op.children} - closed
    kept: list[wire.Op] = []
    for op in reversed(ops):  # who needs a branch comes after what is needed of it
        if isinstance(op, wire.Fork):
            children = tuple(child for child in op.children if child in wanted)
            if children:
                wanted.add(op.branch)
                kept.append(wire.Fork(op.branch, children, op.lora))
        elif isinstance(op, wire.Append) and op.branch in wanted:
            wanted |= {piece.branch for piece in op.pieces if isinstance(piece, wire.Gained)}
            kept.append(op)
        elif isinstance(op, wire.Close) or getattr(op, "branch", None) in wanted:
            kept.append(op)
    kept.reverse()
    return [op for op in kept if getattr(op, "branch", None) in wanted]


def renumbered(op: wire.Op, number: Callable[[int], int]) -> wire.Op:
    """The op in another conversation, where branches and calls have the numbers of `number`."""
    if isinstance(op, wire.Generate | wire.Select):
        return as_asked(op, number(op.branch), number(op.call))
    if isinstance(op, wire.Open):
        return wire.Open(number(op.branch), op.salt, lora=op.lora)
    if isinstance(op, wire.Fork):
        return wire.Fork(number(op.branch), tuple(map(number, op.children)), op.lora)
    if not isinstance(op, wire.Append):
        raise RequestRejected(f"a saved run does not hold {type(op).__name__}")

    def piece_of(piece: wire.Piece) -> wire.Piece:
        if isinstance(piece, wire.Ref):
            return wire.Ref(number(piece.call), piece.index)
        return wire.Gained(number(piece.branch)) if isinstance(piece, wire.Gained) else piece

    return wire.Append(number(op.branch), tuple(map(piece_of, op.pieces)))
