"""A branch of a run with a cache, and a call that the other backend is asked.

A result in it is kept as the call that left it, because backends differ in how a branch goes on
behind one: a runtime is given the tokens (`wire.own_pieces`), a service is told how the call was
answered, and where branches are texts it is text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from lmprog import wire
from lmprog.backends import Backend, Remembers
from lmprog.backends.caching.kept_questions import joined
from lmprog.backends.client import Client, ClientCall
from lmprog.backends.gained import GainedLater, GainingAppend
from lmprog.errors import LmprogError

BranchCall: TypeAlias = wire.Generate | wire.Select | wire.Read


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What an answered call left in its branch."""

    op: wire.Generate | wire.Select
    reply: wire.CallDone | wire.Chosen

    @property
    def text(self) -> str:
        return wire.result_texts(self.op, self.reply)[0]


Said: TypeAlias = wire.Piece | LeftBehind
Step: TypeAlias = (
    "GainingAppend[tuple[Said, ...]] | GainedLater[tuple[Said, ...]] | wire.Fork | BranchCall"
)


@dataclass(slots=True)
class CachedBranch:
    """A branch: what stands in it, and the ops that it has not carried out."""

    salt: str
    lora: str = ""
    is_born: bool = True
    said: tuple[Said, ...] = ()
    base: int = 0
    """How much of that it was forked with."""
    todo: deque[Step] = field(default_factory=deque)
    running: int | None = None
    failed: LmprogError | None = None
    tools: wire.ToolOffer | None = None
    """What an earlier call of this branch could call; services want to be told again."""

    def gained(self) -> tuple[wire.Piece, ...]:
        """What another branch is told of it, as `wire.Gained` says."""
        told: list[wire.Piece] = []
        is_turn = False
        for at, one in enumerate(self.said):
            if isinstance(one, wire.RoleBegin | wire.RoleEnd):
                is_turn = isinstance(one, wire.RoleBegin)
            elif isinstance(one, LeftBehind | wire.TextPiece):
                was_generated = isinstance(one, LeftBehind) and isinstance(one.op, wire.Generate)
                is_quoted = isinstance(one, wire.TextPiece) and one.quoted
                is_letters = is_turn or was_generated or is_quoted
                one = _letters(one) if is_letters else wire.TextPiece(one.text)
            if at >= self.base:
                told.append(one)
        return tuple(told)


def _letters(one: LeftBehind | wire.TextPiece) -> wire.TextPiece:
    """Calls that a service sent in fields stay there."""
    if isinstance(one, wire.TextPiece):
        return msgspec.structs.replace(one, quoted=True)
    if isinstance(one.reply, wire.Chosen):
        return wire.letters(one.text)
    output = one.reply.outputs[0]
    return wire.TextPiece(output.text, quoted=True, calls=output.calls)


def pieces_of(said: Iterable[Said], *, has_tokens: bool) -> tuple[wire.Piece, ...]:
    """All of it in words of the wire; `has_tokens`: where branches are tokens."""
    return joined(_pieces(said, has_tokens))


def _pieces(said: Iterable[Said], has_tokens: bool) -> Iterator[wire.Piece]:
    for at, one in enumerate(said):
        if not isinstance(one, LeftBehind):
            yield one
        elif has_tokens:
            yield from wire.own_pieces(one.op, one.reply, is_first=at == 0)
        else:
            yield wire.letters(one.text)


@dataclass(slots=True)
class AskedElsewhere:
    """A call that the other backend is asked, on a branch of its own."""

    number: int
    """The branch here."""
    op: BranchCall
    said: tuple[Said, ...]
    salt: str
    lora: str
    tools: wire.ToolOffer | None
    key: str | None
    """Under which the reply is kept; None: it is not."""
    branch: int
    call: ClientCall


def post(backend: Backend, asked: AskedElsewhere) -> None:
    """Asks `backend`: builds the branch, and posts the call."""
    client = backend.client
    client.post(wire.Open(asked.branch, asked.salt, lora=asked.lora))
    if isinstance(backend, Remembers):
        _build(client, backend, asked)
    elif pieces := pieces_of(asked.said, has_tokens=client.welcome.vocab_size > 0):
        client.post(wire.Append(asked.branch, pieces))
    op = msgspec.structs.replace(asked.op, branch=asked.branch, call=asked.call.id)
    if isinstance(op, wire.Generate) and op.tools is None and asked.tools is not None:
        op = msgspec.structs.replace(op, tools=msgspec.structs.replace(asked.tools, choice="none"))
    client.begin(op, asked.call)


def _build(client: Client, service: Remembers, asked: AskedElsewhere) -> None:
    """The branch on a service, with the calls on it, which are not asked again."""
    texts: list[wire.Piece] = []

    def append() -> None:
        if texts:
            client.post(wire.Append(asked.branch, joined(texts)))
            texts.clear()

    for one in asked.said:
        if not isinstance(one, LeftBehind):
            texts.append(one)
            continue
        append()
        number = client.number()
        service.remember(number, one.reply)
        again = msgspec.structs.replace(one.op, branch=asked.branch, call=number, timeout=None)
        if isinstance(again, wire.Generate):
            again = msgspec.structs.replace(again, stream=False)
        client.begin(again, ClientCall(number))
    append()
