"""Text with results in it that is not sent yet: pieces of the wire, and the log of the same."""

from __future__ import annotations

from dataclasses import dataclass

from lmprog import wire
from lmprog.lang.branches.log import GainedBy, Item
from lmprog.lang.branches.marks import text_of
from lmprog.lang.branches.pending_call import AnswerWithCalls, PendingCall
from lmprog.lang.ops.expressions import RoleBeginExpr, RoleEndExpr


@dataclass(frozen=True, slots=True)
class ResultPiece:
    """A result in text that is not sent yet. With `is_aside` it was generated on another branch,
    with reasoning that does not belong here: its text is waited for before it is sent.
    """

    call: PendingCall
    is_aside: bool = False


def known(piece: wire.Piece | ResultPiece) -> wire.Piece:
    """A reference to a result that has arrived is its text, as the runtime would fill it in: the
    branch that made it may be closed by now.
    """
    if not isinstance(piece, ResultPiece):
        return piece
    call = piece.call
    if call.call.done() and (piece.is_aside or call.failure() is None):
        return wire.letters(text_of(call))
    return wire.Ref(call.call.id)


class UnsentText:
    """What a branch has not sent yet. Every change of it is also one of the branch's log."""

    def __init__(self, log: list[Item]) -> None:
        self._log = log
        self._pieces: list[wire.Piece | ResultPiece] = []

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add_text(self, text: str, quoted: bool = False) -> None:
        self._log.append(wire.Letters(text) if quoted else text)
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, wire.TextPiece) and last.quoted == quoted and not last.calls:
            self._pieces[-1] = wire.TextPiece(last.text + text, quoted)
        else:
            self._pieces.append(wire.TextPiece(text, quoted))

    def add_answer(self, answer: AnswerWithCalls) -> None:
        """An answer whose calls stay calls."""
        self._log.append(answer.shown)
        self._pieces.append(wire.TextPiece(answer.content, quoted=True, calls=answer.calls))

    def add_result(self, call: PendingCall) -> None:
        self._log.append(call)
        self._pieces.append(ResultPiece(call))

    def add_gained(self, gained: GainedBy, branch: int) -> None:
        self._log.append(gained)
        self._pieces.append(wire.Gained(branch))

    def add_aside(self, call: PendingCall) -> None:
        """A result that the log has already."""
        self._pieces.append(ResultPiece(call, is_aside=True))

    def add_role(self, content: RoleBeginExpr | RoleEndExpr) -> None:
        self._log.append(content)
        self._pieces.append(_role_piece(content))

    def take_back(self, content: RoleBeginExpr) -> None:
        """Removes what was added last, unless it was sent."""
        if self._pieces and self._log[-1] is content:
            self._log.pop()
            self._pieces.pop()

    def take(self) -> tuple[wire.Piece, ...]:
        """All of it, to be sent now."""
        pieces, self._pieces = tuple(known(piece) for piece in self._pieces), []
        return pieces

    def clear(self) -> None:
        """Nothing of it is to be sent."""
        self._pieces = []

    def results(self) -> list[PendingCall]:
        return [piece.call for piece in self._pieces if isinstance(piece, ResultPiece)]

    def begin_with(self, text: str) -> None:
        """Puts `text` at the beginning of a branch of which nothing is sent: behind the system's
        text, in a system turn of its own, or, without turns, before everything.
        """
        ends = [at for at, item in enumerate(self._log) if isinstance(item, RoleEndExpr)]
        if not any(isinstance(item, RoleBeginExpr) for item in self._log):
            self._insert(0, 0, f"{text}\n\n")
        elif self._log[0] == RoleBeginExpr("system") and ends:
            piece = self._pieces.index(wire.RoleEnd("system"))
            self._insert(ends[0], piece, f"\n\n{text}")
        elif self._log[0] == RoleBeginExpr("system"):
            self.add_text(f"\n\n{text}")
        else:
            begin, end = RoleBeginExpr("system"), RoleEndExpr("system")
            self._log[:0] = (begin, text, end)
            self._pieces[:0] = (_role_piece(begin), wire.TextPiece(text), _role_piece(end))

    def begin_turn_with(self, text: str) -> bool:
        """Puts `text` at the beginning of a user's turn that is not sent; False without one."""
        begins = [at for at, piece in enumerate(self._pieces) if isinstance(piece, wire.RoleBegin)]
        if not begins or self._pieces[begins[-1]] != wire.RoleBegin("user"):
            return False
        places = [at for at, item in enumerate(self._log) if isinstance(item, RoleBeginExpr)]
        self._insert(places[-1] + 1, begins[-1] + 1, f"{text}\n\n")
        return True

    def _insert(self, in_log: int, in_pieces: int, text: str) -> None:
        self._log.insert(in_log, text)
        self._pieces.insert(in_pieces, wire.TextPiece(text))


def _role_piece(content: RoleBeginExpr | RoleEndExpr) -> wire.RoleBegin | wire.RoleEnd:
    begins = isinstance(content, RoleBeginExpr)
    return wire.RoleBegin(content.role) if begins else wire.RoleEnd(content.role)
