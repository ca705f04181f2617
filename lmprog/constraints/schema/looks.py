"""Look-ahead at the very beginning of a pattern: `^(?!a)(?=b)c` is `^c`, and `^b`, and not `^a`.

Look-around anywhere else is not taken apart, and refused by the parser. Knows the brackets of
patterns only.
"""

from __future__ import annotations

from collections.abc import Iterator


def without_looks(pattern: str) -> tuple[str, list[tuple[bool, str]]]:
    """The pattern without them, and each of them as a pattern that has to match, or must not."""
    looks: list[tuple[bool, str]] = []
    if "[]" in pattern or "[^]" in pattern:  # dialects do not agree where such a class ends
        return pattern, looks
    at = 1
    while pattern[:1] == "^" and pattern[at : at + 3] in ("(?=", "(?!"):
        end = _end_of_group(pattern, at)
        if end < 0 or pattern[end : end + 1] in ("*", "+", "?", "{"):
            return pattern, []
        looks.append((pattern[at + 2] == "=", f"^(?:{pattern[at + 3 : end - 1]})"))
        at = end
    rest = pattern[at:]
    if not looks or _has_alternatives(rest):
        return pattern, []
    return f"^{rest.removeprefix('^')}", looks


def _end_of_group(pattern: str, begin: int) -> int:
    """Behind the bracket that closes the group which begins there; -1 where there is none."""
    depth = 0
    for at, char in _outside_of_classes(pattern, begin):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return at + 1
    return -1


def _has_alternatives(pattern: str) -> bool:
    depth = 0
    for _, char in _outside_of_classes(pattern, 0):
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            return True
    return False


def _outside_of_classes(pattern: str, begin: int) -> Iterator[tuple[int, str]]:
    """The characters that mean themselves or a bracket, without what a class or a backslash has."""
    at, in_class = begin, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        else:
            yield at, char
        at += 1
