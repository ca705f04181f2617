"""What a simulated client knows of its branches and calls, and what text a branch must have.

For each branch it keeps the script of its ops. A call's prompt is the text that the script has
produced before it, known once the earlier calls are answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmprog import wire
from lmprog.errors import BY_CODE, RequestRejected


class SpoiledBranch(Exception):
    """The branch was spoiled by an earlier failure; `code` is that failure's."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(eq=False, slots=True)
class IssuedCall:
    """A call and what is known of it."""

    op: wire.Generate | wire.Select | wire.Read
    mirror: BranchMirror
    place: int
    time: float
    faults: int
    cancelled: bool = False
    ended: bool = False
    texts: list[str] = field(default_factory=list)
    failed: str | None = None
    deltas: dict[int, str] = field(default_factory=dict)


ScriptEntry = str | tuple[IssuedCall, int] | IssuedCall
"""Literal text; the text of another call's result; a call of the branch itself."""


@dataclass(eq=False, slots=True)
class BranchMirror:
    """One branch as the client knows it: its origin and the ops since."""

    number: int
    salt: str
    parent: BranchMirror | None = None
    place: int = 0
    script: list[ScriptEntry] = field(default_factory=list)
    adapter: int = 0
    """Number of the adapter that computes it."""
    closed: bool = False

    def text(self, place: int | None = None) -> str:
        """The branch's text before script entry `place`. Raises `SpoiledBranch`."""
        parts = [self.parent.text(self.place)] if self.parent else []
        for entry in self.script[:place]:
            if isinstance(entry, str):
                parts.append(entry)
                continue
            issued, index = entry if isinstance(entry, tuple) else (entry, 0)
            assert issued.ended, "a later call was answered before an earlier one"
            refused = issued.failed is not None and issubclass(
                BY_CODE[issued.failed], RequestRejected
            )
            if issued.failed is not None and not (refused and issued is entry):
                raise SpoiledBranch(issued.failed)
            if issued.texts and not isinstance(issued.op, wire.Read):
                parts.append(issued.texts[index])
        return "".join(parts)


def prompt_of(issued: IssuedCall) -> tuple[str | None, str]:
    """Why the call's branch was spoiled before it (None: it was not), and the call's prompt."""
    try:
        return None, issued.mirror.text(issued.place)
    except SpoiledBranch as spoiled:
        return spoiled.code, ""


def is_below_closed(mirror: BranchMirror | None) -> bool:
    """Whether the branch or an ancestor is closed: a fork that a closed parent never reached does
    not happen.
    """
    while mirror is not None:
        if mirror.closed:
            return True
        mirror = mirror.parent
    return False
