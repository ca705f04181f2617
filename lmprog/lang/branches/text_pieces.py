"""Text with results in it, before it is sent."""

from __future__ import annotations

from dataclasses import dataclass

from lmprog import wire
from lmprog.lang.branches.marks import text_of
from lmprog.lang.branches.pending_call import PendingCall


@dataclass(frozen=True, slots=True)
class ResultPiece:
    """A result in text that is not sent yet. With `is_aside` it was generated on another branch,
    with reasoning that does not belong here: its text is waited for before it is sent.
    """

    call: PendingCall
    is_aside: bool = False


def known(piece: wire.Piece | ResultPiece) -> wire.Piece:
    """A reference to a result that has arrived is its text: the branch that made it may be closed
    by now.
    """
    if not isinstance(piece, ResultPiece):
        return piece
    call = piece.call
    if call.call.done() and (piece.is_aside or call.failure() is None):
        return wire.TextPiece(text_of(call))
    return wire.Ref(call.call.id)
