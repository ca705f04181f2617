"""Ops in the form in which they can be done again on another replica: with seeds, without
references to programs that are elsewhere.
"""

from __future__ import annotations

import random

import msgspec

from lmprog import wire
from lmprog.fleet.program_log import ProgramLog


def seeded(op: wire.Op, draw: random.Random) -> wire.Op:
    """The op with a seed where it has none, so that it can be done again."""
    if isinstance(op, wire.Generate) and op.sampling.seed is None:
        sampling = msgspec.structs.replace(op.sampling, seed=draw.getrandbits(63))
        return msgspec.structs.replace(op, sampling=sampling)
    if isinstance(op, wire.Select) and op.seed is None:
        return msgspec.structs.replace(op, seed=draw.getrandbits(63))
    return op


def text_of_result(log: ProgramLog, piece: wire.Piece) -> wire.Piece:
    """The text of a result of another program; the reference itself where there is none."""
    assert isinstance(piece, wire.Ref)
    reply = log.replies.get(piece.call)
    if isinstance(reply, wire.CallDone):
        return wire.TextPiece(reply.outputs[piece.index].text, quoted=True)
    if isinstance(reply, wire.Chosen):
        return wire.TextPiece(log.choice_of(reply), quoted=True)
    if isinstance(reply, wire.TextIs):
        return wire.TextPiece(reply.text, quoted=True)
    return piece
