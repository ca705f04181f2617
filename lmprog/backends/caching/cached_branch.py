"""A branch of a run with a cache, and a call that the other backend is asked."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from lmprog import wire
from lmprog.backends.client import Client, ClientCall
from lmprog.errors import LmprogError

BranchCall: TypeAlias = wire.Generate | wire.Select | wire.Read


@dataclass(slots=True)
class CachedBranch:
    """A branch: what stands in it, and the ops that it has not carried out."""

    salt: str
    lora: str = ""
    is_born: bool = True
    pieces: tuple[wire.Piece, ...] = ()
    base: int = 0
    """How many of the pieces it was forked with."""
    todo: deque[wire.Op] = field(default_factory=deque)
    running: int | None = None
    failed: LmprogError | None = None
    tools: wire.ToolOffer | None = None
    """What an earlier call of this branch could call; services want to be told again."""


@dataclass(slots=True)
class AskedElsewhere:
    """A call that the other backend is asked, on a branch of its own."""

    number: int
    """The branch here."""
    op: BranchCall
    pieces: tuple[wire.Piece, ...]
    salt: str
    lora: str
    tools: wire.ToolOffer | None
    key: str | None
    """Under which the reply is kept; None: it is not."""
    branch: int
    call: ClientCall


def post(client: Client, asked: AskedElsewhere) -> None:
    client.post(wire.Open(asked.branch, asked.salt, lora=asked.lora))
    if asked.pieces:
        client.post(wire.Append(asked.branch, asked.pieces))
    op = msgspec.structs.replace(asked.op, branch=asked.branch, call=asked.call.id)
    if isinstance(op, wire.Generate) and op.tools is None and asked.tools is not None:
        op = msgspec.structs.replace(op, tools=msgspec.structs.replace(asked.tools, choice="none"))
    client.begin(op, asked.call)
