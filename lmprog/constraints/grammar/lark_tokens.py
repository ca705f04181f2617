"""The tokens of a Lark grammar's text, and the terminals that every grammar may import.

Knows no rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lmprog.constraints.grammar.rules import NeedsLlguidance

_TOKEN = re.compile(
    r"(?P<skip>[ \t\f\r]+|\s*//[^\n]*|\s*\#[^\n]*)|(?P<line>\n)"
    r'|(?P<string>"(?:\\.|[^"\\\n])*"i?)|(?P<regex>/(?![/*])(?:\\.|[^/\\\n])+/[a-z]*)'
    r"|(?P<name>[!?]*_*[A-Za-z][A-Za-z0-9_]*)|(?P<number>-?\d+)|(?P<directive>%[a-z]+)|"
    r"(?P<mark>->|\.\.|[:|()\[\]{}*+?~.,])"
)
_DECIMAL = r"([0-9]+\.[0-9]*|\.[0-9]+)"
_EXPONENT = "[eE][+-]?[0-9]+"
_FLOAT = f"([0-9]+{_EXPONENT}|{_DECIMAL}({_EXPONENT})?)"
_ESCAPED = r'([^"\\\n]|\\[^\n])*'
COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": "[ \\t]+",
    "WS": "[ \\t\\f\\r\\n]+",
    "CR": "\\r",
    "LF": "\\n",
    "NEWLINE": "(\\r?\\n)+",
    "DECIMAL": _DECIMAL,
    "_EXP": _EXPONENT,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"({_FLOAT}|[0-9]+)",
    "SIGNED_NUMBER": f"[+-]?({_FLOAT}|[0-9]+)",
    "_STRING_INNER": "[^\\n]*",
    "_STRING_ESC_INNER": _ESCAPED,
    "ESCAPED_STRING": f'"{_ESCAPED}"',
    "SH_COMMENT": "#[^\\n]*",
    "CPP_COMMENT": "//[^\\n]*",
    "C_COMMENT": r"/\*([^*]|\*+[^*/])*\*+/",
    "SQL_COMMENT": "--[^\\n]*",
}
"""Lark's own terminals. Where Lark says "as few as possible up to the end", the end is excluded."""


@dataclass(frozen=True, slots=True)
class LarkToken:
    kind: str
    text: str
    begins_line: bool
    line: int = 0


def lark_tokens(text: str) -> list[LarkToken]:
    """Raises NeedsLlguidance for what is no token."""
    out: list[LarkToken] = []
    at, fresh, line = 0, True, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise NeedsLlguidance(f"{text[at : at + 10]!r} in line {line} of the grammar")
        at = found.end()
        line += found.group().count("\n")
        kind = found.lastgroup or ""
        if kind == "line" or "\n" in found.group():
            fresh = True
        elif kind != "skip":
            out.append(LarkToken(kind, found.group(), fresh, line))
            fresh = False
    return out
