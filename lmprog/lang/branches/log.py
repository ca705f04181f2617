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
