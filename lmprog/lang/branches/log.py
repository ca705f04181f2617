"""What was appended to a branch, item by item, as text and as chat messages. Knows results; sends
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lmprog import wire
from lmprog.errors import ProgramError
from lmprog.lang.branches.marks import text_of
from lmprog.lang.branches.pending_call import AnswerWithCalls, PendingCall
from lmprog.lang.ops.expressions import RoleBeginExpr, RoleEndExpr


@dataclass(frozen=True, slots=True)
class GainedBy:
    """The text that a joined branch gained since its fork: its log from item `base` on."""

    log: list[Item]
    base: int

    @property
    def items(self) -> list[Item]:
        return self.log[self.base :]


Item: TypeAlias = "str | PendingCall | RoleBeginExpr | RoleEndExpr | GainedBy"


def gens_of(items: list[Item]) -> list[PendingCall]:
    """The results in a log, those of joined branches included."""
    found: list[PendingCall] = []
    for item in items:
        if isinstance(item, PendingCall):
            found.append(item)
        elif isinstance(item, GainedBy):
            found += gens_of(item.items)
    return found


def last_role(items: list[Item]) -> RoleBeginExpr | RoleEndExpr | None:
    """The last beginning or end of a turn; None where there is neither."""
    for item in reversed(items):
        found = last_role(item.items) if isinstance(item, GainedBy) else item
        if isinstance(found, RoleBeginExpr | RoleEndExpr):
            return found
    return None


def check_role(items: list[Item], content: RoleBeginExpr | RoleEndExpr) -> None:
    """Raises `ProgramError` where a turn cannot begin or end here: turns do not nest."""
    last, begins = last_role(items), isinstance(content, RoleBeginExpr)
    role = last.role if isinstance(last, RoleBeginExpr) else None
    if begins and role is not None:
        raise ProgramError(
            f"the turn of {content.role!r} cannot begin before that of {role!r} has ended"
        )
    if not begins and role != content.role:
        found = "none" if role is None else f"that of {role!r}"
        raise ProgramError(f"no turn of {content.role!r} can end here; open is {found}")


def last_item(items: list[Item]) -> Item | None:
    """The last text, result or role; None where there is nothing. A result counts, also where it
    turns out to be empty: what follows cannot wait until that is known.
    """
    for item in reversed(items):
        found = last_item(item.items) if isinstance(item, GainedBy) else item
        if isinstance(found, wire.Letters) or (
            found if isinstance(found, str) else found is not None
        ):
            return found
    return None


def plain_text(items: list[Item]) -> str:
    """The text of a log without its roles; waits for results, raises why there is none."""
    parts: list[str] = []
    for item in items:
        if isinstance(item, str):
            parts.append(item)
        elif isinstance(item, PendingCall):
            parts.append(text_of(item))
        elif isinstance(item, GainedBy):
            parts.append(plain_text(item.items))
    return "".join(parts)


def messages(items: list[Item]) -> list[dict[str, str]]:
    """The finished and the open turns of a log, as chat messages; text outside of turns is in
    none.
    """
    turns: list[tuple[str, list[Item]]] = []
    inside = False
    for item in flat(items):
        if isinstance(item, RoleBeginExpr):
            turns.append((item.role, []))
            inside = True
        elif isinstance(item, RoleEndExpr):
            inside = False
        elif inside:
            turns[-1][1].append(item)
    return [{"role": role, "content": plain_text(content)} for role, content in turns]


def flat(items: list[Item]) -> list[Item]:
    """With the items of joined branches in their place."""
    found: list[Item] = []
    for item in items:
        found += flat(item.items) if isinstance(item, GainedBy) else [item]
    return found


class Writable(Protocol):
    """A branch that text and turns can be put into."""

    def put_text(self, text: str, quoted: bool = False) -> None: ...

    def put_role(self, content: RoleBeginExpr | RoleEndExpr) -> None: ...

    def put_answer(self, answer: AnswerWithCalls) -> None: ...


def carry(items: list[Item], to: Writable) -> None:
    """Writes what a log says into a branch of another backend; waits for results, raises why there
    is none.
    """
    for item in flat(items):
        if isinstance(item, RoleBeginExpr | RoleEndExpr):
            to.put_role(item)
        elif isinstance(item, PendingCall) and (answer := item.own_answer()) is not None:
            to.put_answer(answer)
        else:
            to.put_text(plain_text([item]), quoted=isinstance(item, PendingCall | wire.Letters))


class Referring(Writable, Protocol):
    """A branch that results can be put into before they are there."""

    def put_result(self, call: PendingCall) -> None: ...


def copy_items(items: list[Item], to: Referring) -> None:
    """Writes what a log says into another branch of the same backend; waits for nothing. A call
    that was refused has left nothing.
    """
    for item in flat(items):
        if isinstance(item, RoleBeginExpr | RoleEndExpr):
            to.put_role(item)
        elif isinstance(item, PendingCall):
            answer = item.own_answer() if item.call.done() and not item.refused() else None
            if answer is not None:
                to.put_answer(answer)
            elif not item.refused():
                to.put_result(item)
        else:
            to.put_text(str(item), quoted=isinstance(item, wire.Letters))


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
        self.pieces: list[wire.Piece | ResultPiece] = []

    def add_text(self, text: str, quoted: bool = False) -> None:
        self._log.append(wire.Letters(text) if quoted else text)
        last = self.pieces[-1] if self.pieces else None
        if isinstance(last, wire.TextPiece) and last.quoted == quoted and not last.calls:
            self.pieces[-1] = wire.TextPiece(last.text + text, quoted)
        else:
            self.pieces.append(wire.TextPiece(text, quoted))

    def add_answer(self, answer: AnswerWithCalls) -> None:
        """An answer whose calls stay calls."""
        self._log.append(answer.shown)
        self.pieces.append(wire.TextPiece(answer.content, quoted=True, calls=answer.calls))

    def add_result(self, call: PendingCall) -> None:
        self._log.append(call)
        self.pieces.append(ResultPiece(call))

    def add_gained(self, gained: GainedBy, branch: int) -> None:
        self._log.append(gained)
        self.pieces.append(wire.Gained(branch))

    def add_aside(self, call: PendingCall) -> None:
        """A result that the log has already."""
        self.pieces.append(ResultPiece(call, is_aside=True))

    def add_role(self, content: RoleBeginExpr | RoleEndExpr) -> None:
        self._log.append(content)
        self.pieces.append(_role_piece(content))

    def take_back(self, content: RoleBeginExpr) -> None:
        """Removes what was added last, unless it was sent."""
        if self.pieces and self._log[-1] is content:
            self._log.pop()
            self.pieces.pop()

    def take(self) -> tuple[wire.Piece, ...]:
        """All of it, to be sent now."""
        pieces, self.pieces = tuple(known(piece) for piece in self.pieces), []
        return pieces

    def clear(self) -> None:
        """Nothing of it is to be sent."""
        self.pieces = []

    def results(self) -> list[PendingCall]:
        return [piece.call for piece in self.pieces if isinstance(piece, ResultPiece)]

    def begin_with(self, text: str) -> None:
        """Puts `text` at the beginning of a branch of which nothing is sent: behind the system's
        text, in a system turn of its own, or, without turns, before everything.
        """
        ends = [at for at, item in enumerate(self._log) if isinstance(item, RoleEndExpr)]
        if not any(isinstance(item, RoleBeginExpr) for item in self._log):
            self._insert(0, 0, f"{text}\n\n")
        elif self._log[0] == RoleBeginExpr("system") and ends:
            piece = self.pieces.index(wire.RoleEnd("system"))
            self._insert(ends[0], piece, f"\n\n{text}")
        elif self._log[0] == RoleBeginExpr("system"):
            self.add_text(f"\n\n{text}")
        else:
            begin, end = RoleBeginExpr("system"), RoleEndExpr("system")
            self._log[:0] = (begin, text, end)
            self.pieces[:0] = (_role_piece(begin), wire.TextPiece(text), _role_piece(end))

    def begin_turn_with(self, text: str) -> bool:
        """Puts `text` at the beginning of a user's turn that is not sent; False without one."""
        begins = [at for at, piece in enumerate(self.pieces) if isinstance(piece, wire.RoleBegin)]
        if not begins or self.pieces[begins[-1]] != wire.RoleBegin("user"):
            return False
        places = [at for at, item in enumerate(self._log) if isinstance(item, RoleBeginExpr)]
        self._insert(places[-1] + 1, begins[-1] + 1, f"{text}\n\n")
        return True

    def _insert(self, in_log: int, in_pieces: int, text: str) -> None:
        self._log.insert(in_log, text)
        self.pieces.insert(in_pieces, wire.TextPiece(text))


def _role_piece(content: RoleBeginExpr | RoleEndExpr) -> wire.RoleBegin | wire.RoleEnd:
    begins = isinstance(content, RoleBeginExpr)
    return wire.RoleBegin(content.role) if begins else wire.RoleEnd(content.role)
