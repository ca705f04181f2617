"""Bounds the work that a JSON text can cause, before it is parsed.

A parsed value takes far more memory than its text: `[[],[],...]` grows by a factor of twenty. So
the values of a text are counted first. Knows JSON's punctuation only.
"""

from __future__ import annotations

import re

MAX_VALUES = 1_500_000
"""Values in one text, nested ones and keys included: prompts of a million token ids still fit."""
MAX_CONTAINERS = 100_000
"""Arrays and objects in one text, the expensive ones among the values."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or an unterminated one up to the end: so that no start is tried twice."""
_OPENING = (b"[", b"{")
_BETWEEN = (b",", b":")


def size_problem(text: bytes) -> str | None:
    """Why this text may not be parsed, as a sentence; None where it may."""
    if _is_small(text):  # counted with the strings: quick, and never too low
        return None
    bare = _STRING.sub(b'""', text)
    containers = _count(bare, _OPENING)
    if containers > MAX_CONTAINERS:
        return (
            f"The body has {containers:,} arrays and objects; it may have {MAX_CONTAINERS:,}. "
            "Send less at once."
        )
    values = containers + _count(bare, _BETWEEN)
    if values > MAX_VALUES:
        return f"The body has {values:,} values; it may have {MAX_VALUES:,}. Send less at once."
    return None


def _is_small(text: bytes) -> bool:
    if len(text) <= MAX_CONTAINERS:
        return True
    containers = _count(text, _OPENING)
    return containers <= MAX_CONTAINERS and containers + _count(text, _BETWEEN) <= MAX_VALUES


def _count(text: bytes, marks: tuple[bytes, ...]) -> int:
    return sum(text.count(mark) for mark in marks)
