"""What was appended to a branch, item by item, as text and as chat messages. Knows results; sends
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lmprog.lang.branches.results_of_calls import Gen
from lmprog.lang.ops.expressions import RoleBeginExpr, RoleEndExpr

if TYPE_CHECKING:
    from lmprog.lang.branches.cursor import Cursor


@dataclass(frozen=True, slots=True)
class GainedBy:
    """In a log: the text that a joined branch gained since its fork."""

    child: Cursor


Item: TypeAlias = "str | Gen[Any] | RoleBeginExpr | RoleEndExpr | GainedBy"


def gens_of(items: list[Item]) -> list[Gen[Any]]:
    """The results that stand in a log, those of joined branches included."""
    found: list[Gen[Any]] = []
    for item in items:
        if isinstance(item, Gen):
            found.append(item)
        elif isinstance(item, GainedBy):
            found += gens_of(item.child.log[item.child.base :])
    return found


def last_role(items: list[Item]) -> RoleBeginExpr | RoleEndExpr | None:
    """The last beginning or end of a turn; None where there is neither."""
    for item in reversed(items):
        found = last_role(item.child.log[item.child.base :]) if isinstance(item, GainedBy) else item
        if isinstance(found, RoleBeginExpr | RoleEndExpr):
            return found
    return None


def plain_text(items: list[Item]) -> str:
    """The text of a log without its roles; waits for results, raises why there is none."""
    parts: list[str] = []
    for item in items:
        if isinstance(item, str):
            parts.append(item)
        elif isinstance(item, Gen):
            parts.append(text_of(item))
        elif isinstance(item, GainedBy):
            parts.append(plain_text(item.child.log[item.child.base :]))
    return "".join(parts)


def text_of(gen: Gen[Any]) -> str:
    """What a result left in its branch; waits. A call that was refused, and whose refusal was read,
    left nothing.
    """
    return "" if gen.refused() and gen.was_read else gen.text


def messages(items: list[Item]) -> list[dict[str, str]]:
    """The finished and the open turns of a log, as chat messages; text outside of turns is in
    none.
    """
    turns: list[tuple[str, list[Item]]] = []
    inside = False
    for item in items:
        if isinstance(item, RoleBeginExpr):
            turns.append((item.role, []))
            inside = True
        elif isinstance(item, RoleEndExpr):
            inside = False
        elif inside:
            turns[-1][1].append(item)
    return [{"role": role, "content": plain_text(content)} for role, content in turns]
