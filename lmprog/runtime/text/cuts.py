"""Where a growing text may be cut so that its first part can be tokenised now, whatever comes
later.

Between a letter and the space after it, where no token of the vocabulary reaches over such a place:
then no merge does, and the two parts have the tokens of the whole. That is read off the vocabulary
and tried on a few texts; a tokenizer that fails either is never cut.

Knows a tokenizer; knows no branch.
"""

from __future__ import annotations

import re
from functools import cached_property

from lmprog.runtime.text.tokenizer import Tokenizer

SHORTEST = 64
"""Characters below which a text is not worth cutting."""

_REACH = 1024
_CUT = re.compile(r"[A-Za-z] (?=[A-Za-z])")
_OVER_A_SPACE = re.compile(rb"[A-Za-z] ")
_PROBES = [
    ("Alpha", " beta gamma"),
    ("x", " y"),
    ("the end. So it", " was 12 and"),
    ("a\n\nb", " c\n"),
    ("é I", " am"),
]


class Cutter:
    """Finds cuts for one tokenizer; looks at its vocabulary when it is asked first."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def last(self, text: str) -> int:
        """How much of `text` no later text can change; 0 where that is little or unknown."""
        if len(text) < SHORTEST or not self.can_cut:
            return 0
        last = 0
        for found in _CUT.finditer(text, max(0, len(text) - _REACH)):
            last = found.start() + 1
        return last

    @cached_property
    def can_cut(self) -> bool:
        """No token reaches over a letter and the space after it."""
        tokenizer = self._tokenizer
        for token in range(tokenizer.vocab_size):
            piece = tokenizer.token_bytes(token)
            if piece is None:
                piece = tokenizer.token_text(
                    token
                ).encode()  # a special token's name, recognised in text
            if _OVER_A_SPACE.search(piece):
                return False
        encode = tokenizer.encode
        return all(encode(a + b) == encode(a) + encode(b, start=False) for a, b in _PROBES)
