"""Lazy references inside strings: how `f"Grade this: {draft}"` keeps pointing at a generation that
still runs.

A pending generation that is formatted inside a program gives a *mark*: a private word that carries
a number and a secret of this process. `split` finds the marks again when the string is
appended, so that the runtime fills the text in and nobody waits. The secret keeps text from outside
from being mistaken for a mark. A mark that was cut or changed on the way is an error, never
silently text. This module knows marks and strings, nothing else.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from lmprog.errors import ProgramError

_SECRET = secrets.token_hex(8)
# The secret stands at both ends, so that a mark which lost one of them is still noticed.
_MARK = re.compile(rf"⟦{_SECRET} pending generation (\d+) {_SECRET}⟧")


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a string where a result belongs; `marks` knows which."""

    number: int

    def __str__(self) -> str:
        return f"⟦{_SECRET} pending generation {self.number} {_SECRET}⟧"


def split(text: str) -> list[str | Mark]:
    """`text` in pieces, empty ones left out. Raises `ProgramError` where a mark is damaged."""
    if _SECRET not in text.lower():
        return [text] if text else []
    pieces: list[str | Mark] = []
    end = 0
    for found in _MARK.finditer(text):
        pieces += [text[end : found.start()], Mark(int(found[1]))]
        end = found.end()
    pieces.append(text[end:])
    if any(isinstance(piece, str) and _SECRET in piece.lower() for piece in pieces):
        raise ProgramError(
            "this text was made from a generation that is not done yet, and then cut or changed; "
            "await the generation (or read its .value) before working on its text"
        )
    return [piece for piece in pieces if piece != ""]
