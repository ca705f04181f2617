"""What one branch gains of another, on backends that keep branches in this process.

It is asked for when the append arrives: the other branch tells it when it has come so far, though
the one that wants it still works. So a branch that is closed later takes nothing away, as on a
runtime. Knows queues of branches; what text is, its user knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from lmprog import wire
from lmprog.errors import Cancelled, LmprogError, UnknownName

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class GainedLater(Generic[T]):
    """A step of the branch that gains, and a piece of the one that is told."""

    text: T | None = None
    error: LmprogError | None = None

    @property
    def is_known(self) -> bool:
        return self.text is not None or self.error is not None


GainingPiece: TypeAlias = wire.Piece | GainedLater[T]


@dataclass(frozen=True, slots=True)
class GainingAppend(Generic[T]):
    """An append whose other branches know that they are asked."""

    pieces: tuple[GainingPiece[T], ...]


class QueuedBranch(Protocol):
    """A branch with steps that it has not carried out."""

    todo: deque[Any]


def bound(pieces: Iterable[wire.Piece], branches: Mapping[int, QueuedBranch]) -> GainingAppend[Any]:
    """The pieces, of which other branches are asked what they gained."""
    found: list[GainingPiece[Any]] = []
    for piece in pieces:
        if not isinstance(piece, wire.Gained):
            found.append(piece)
            continue
        later: GainedLater[Any] = GainedLater()
        if piece.branch in branches:
            branches[piece.branch].todo.append(later)
        else:
            name = str(piece.branch)
            later.error = UnknownName(f"branch {name} is not open", name=name)
        found.append(later)
    return GainingAppend(tuple(found))


def close(todo: Iterable[object]) -> None:
    """A branch with these steps was closed: nobody learns any more what it gains."""
    for step in todo:
        if isinstance(step, GainedLater):
            step.error = Cancelled("a branch was closed before its text was there")


def result(texts: tuple[str, ...] | LmprogError, ref: wire.Ref) -> str | LmprogError:
    """What a reference stands for, or why it stands for nothing."""
    if isinstance(texts, LmprogError):
        return texts
    if ref.index >= len(texts):
        about = f"text refers to result {ref.index + 1} of call {ref.call}, which has {len(texts)}"
        return UnknownName(about, name=str(ref.index))
    return texts[ref.index]
