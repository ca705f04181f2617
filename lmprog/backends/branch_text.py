"""The text of a branch that is kept in this process, as pieces: literal text, roles, and what its
answered calls left in it.

A result is kept as the call that left it, because backends differ in how a branch goes on behind
one: a runtime is given the tokens (`wire.own_pieces`), a service is told how the call was answered,
and where branches are texts it is text. Knows no ops that wait and no references.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

from lmprog import wire


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What an answered call left in its branch, or, where it is not `own`, in what another branch
    gained. `quoted` is for options that were chosen inside of a turn: they are letters elsewhere.
    """

    op: wire.Generate | wire.Select
    reply: wire.CallReply
    own: bool = True
    quoted: bool = False

    @property
    def output(self) -> wire.Output | None:
        """The generation; None for an option that was chosen."""
        return self.reply.outputs[0] if isinstance(self.reply, wire.CallDone) else None

    @property
    def text(self) -> str:
        """Without the calls that a service sent in fields."""
        output = self.output
        return wire.result_texts(self.op, self.reply)[0] if output is None else output.text

    @property
    def calls(self) -> tuple[wire.SentCall, ...]:
        output = self.output
        return () if output is None else output.calls

    def elsewhere(self) -> wire.TextPiece:
        """As it stands in the text of another branch: a generation is letters."""
        if self.output is None:
            return wire.TextPiece(self.text, quoted=self.quoted)
        return wire.TextPiece(self.text, quoted=True, calls=self.calls)


BranchPiece: TypeAlias = wire.Piece | LeftBehind


@dataclass(frozen=True, slots=True)
class BranchText:
    """What a branch holds. A value: a fork begins with the same one."""

    pieces: tuple[BranchPiece, ...] = ()

    def plus(self, pieces: Sequence[BranchPiece]) -> Self:
        return replace(self, pieces=(*self.pieces, *pieces))

    def with_result(self, op: wire.Generate | wire.Select, reply: wire.CallReply) -> Self:
        return self.plus((LeftBehind(op, reply),))


def gained(pieces: Iterable[BranchPiece], base: int) -> tuple[BranchPiece, ...]:
    """The pieces from `base` on, as another branch is told of them (see `wire.standing`): token ids
    are valid in one branch only, and what was said in turns is letters.
    """
    found: list[BranchPiece] = []
    is_turn = False
    for at, piece in enumerate(pieces):
        if isinstance(piece, wire.RoleBegin | wire.RoleEnd):
            is_turn = isinstance(piece, wire.RoleBegin)
        elif isinstance(piece, LeftBehind):
            piece = replace(piece, own=False, quoted=is_turn or piece.quoted)
        elif isinstance(piece, wire.TextPiece) and is_turn:
            piece = wire.TextPiece(piece.text, quoted=True, calls=piece.calls)
        if at >= base:
            found.append(piece)
    return tuple(found)


def shown(pieces: Iterable[BranchPiece]) -> str:
    """Everything as one text, for people and doubles: a model's own template renders roles in its
    own way.
    """
    parts: list[str] = []
    for piece in pieces:
        if isinstance(piece, wire.TextPiece | LeftBehind):
            parts.append(wire.text_with_calls(piece.text, piece.calls))
        elif isinstance(piece, wire.RoleBegin):
            parts.append(f"<|{piece.role}|>\n")
        elif isinstance(piece, wire.RoleEnd):
            parts.append("\n")
    return "".join(parts)
