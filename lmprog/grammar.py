"""Patterns made of pieces, for one constrained call: `lmprog.gen(grammar.select(...) + " " + ...)`.

::

    from lmprog import grammar

    line = grammar.select("buy", "sell", name="side") + " " + grammar.regex(r"\\d+", name="count")
    s += lmprog.gen(line)
    s["side"], s["count"]      # what the named pieces captured
"""

from __future__ import annotations

from lmprog.lang.ops.text_patterns import (
    TextPattern,
    capture,
    one_or_more,
    optional,
    regex,
    repeat,
    select,
    text,
    zero_or_more,
)

__all__ = [
    "TextPattern",
    "capture",
    "one_or_more",
    "optional",
    "regex",
    "repeat",
    "select",
    "text",
    "zero_or_more",
]
