"""Finds cuts: positions in a text at which both parts can be tokenised by themselves.

A cut is between a letter and a space before a letter. Where no token of the vocabulary contains a
letter and a space after it, no merge crosses such a cut, so the two parts have the tokens of the
whole. That is checked on the vocabulary and tried on a few texts; a tokenizer that fails either is
never cut.

Knows a tokenizer; knows no branch.
"""

from __future__ import annotations

import re
from functools import cached_property

from lmprog.runtime.text.tokenizer import Tokenizer

SHORTEST = 64
"""Shorter texts, in characters, are not cut."""

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
    """Finds cuts for one tokenizer; reads its vocabulary on first use."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def last(self, text: str) -> int:
        """Length of the beginning of `text` whose tokens no later text changes; 0 for none."""
        if len(text) < SHORTEST or not self.can_cut:
            return 0
        last = 0
        for found in _CUT.finditer(text, max(0, len(text) - _REACH)):
            last = found.start() + 1
        return last

    def first(self, text: str, begin: int) -> int:
        """The first cut at `begin` or later; 0 for none."""
        found = _CUT.search(text, begin - 1) if self.can_cut else None
        return 0 if found is None else found.start() + 1

    @cached_property
    def can_cut(self) -> bool:
        """Whether no token contains a letter and a space after it."""
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
