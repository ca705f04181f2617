"""The smallest parts of a form's literals: tags, words, white space, single characters.

Forms are cut, compared and recognised at the borders of these, so that two tags that begin alike
(`<|tool_call|>`, `<|tool_calls|>`) share nothing.
"""

from __future__ import annotations

import re

_LEXEME = re.compile(
    r"</?[^<>\s]*>|<[^<>\s]+|\[[A-Z_/]+\]|\w+|[^\S\n]+|.",
    re.DOTALL,
)
_TAG = re.compile(r"</?[^<>]*>|\[[A-Z_/]+\]|<[^<>\s]+")


def lexemes(text: str) -> list[str]:
    return _LEXEME.findall(text)


def is_tag(lexeme: str) -> bool:
    """Whether it is in no ordinary text: `<tool_call>`, `[TOOL_CALLS]`, `<|python_tag|>`."""
    return len(lexeme) > 2 and _TAG.fullmatch(lexeme) is not None


def common_start(left: str, right: str) -> str:
    """What both begin with, in whole lexemes."""
    found = []
    for one, other in zip(lexemes(left), lexemes(right), strict=False):
        if one != other:
            break
        found.append(one)
    return "".join(found)


def common_end(left: str, right: str) -> str:
    """What both end with, in whole lexemes."""
    found: list[str] = []
    for one, other in zip(reversed(lexemes(left)), reversed(lexemes(right)), strict=False):
        if one != other:
            break
        found.insert(0, one)
    return "".join(found)
