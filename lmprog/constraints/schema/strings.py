"""String schemas as text sets: lengths, patterns, formats and exclusions. Does not know bytes.

Look-ahead at the very beginning of a pattern is taken apart: `^(?!a)(?=b)c` is `^c`, and `^b`, and
not `^a`. Look-around anywhere else is left to the parser, which refuses it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.derivatives import lengths
from lmprog.constraints.expression import ANYTHING, Expression, somewhere, whole
from lmprog.constraints.pattern import parse_pattern
from lmprog.constraints.pattern_sets import PatternDialect
from lmprog.constraints.schema.flat import Sourced, StringFacet
from lmprog.constraints.schema.formats import COMPACT, FORMATS, LOOSE, sized
from lmprog.constraints.text_set import TextSet
from lmprog.constraints.textset import contains
from lmprog.errors import GrammarError, UnsupportedSchema


class Searched(NamedTuple):
    """The strings that all of `within` match and none of `outside`."""

    within: tuple[Expression, ...]
    outside: tuple[Expression, ...] = ()

    @property
    def texts(self) -> TextSet:
        return TextSet(self.within, self.outside)

    def takes(self, text: str) -> bool:
        return contains(self.texts, text)

    def others(self) -> list[TextSet]:
        """All other strings, as a union."""
        return [
            *(TextSet(outside=(one,)) for one in self.within),
            *(TextSet((one,)) for one in self.outside),
        ]


def text_set(facet: StringFacet, limits: CompileLimits) -> TextSet:
    """The strings that the facet accepts."""
    found = [search_pattern(pattern, limits) for pattern in facet.patterns]
    within = [one for search in found for one in search.within]
    outside = [one for search in found for one in search.outside]
    within += [_format(facet, one.text, limits) for one in facet.formats if one.text in FORMATS]
    outside += [_certainly_not(one, limits) for one in facet.not_formats]
    for pattern in facet.not_patterns:
        search = search_pattern(pattern, limits)
        if len(search.within) > 1 or search.outside:
            raise UnsupportedSchema(
                f"a negated pattern with look-ahead at {pattern.path}",
                keyword="pattern",
                path=pattern.path,
            )
        outside += search.within
    return TextSet(tuple(within), tuple(outside), facet.low, facet.high, facet.excluded)


def search_pattern(pattern: Sourced, limits: CompileLimits) -> Searched:
    """The strings that contain a match of a schema's pattern."""
    return _search(pattern.text, pattern.path, limits)


@functools.lru_cache(maxsize=256)
def _search(pattern: str, path: str, limits: CompileLimits) -> Searched:
    keyword = path.rpartition("/")[2]
    rest, looks = without_looks(pattern)
    try:
        wanted = [rest, *(text for is_wanted, text in looks if is_wanted)]
        unwanted = [text for is_wanted, text in looks if not is_wanted]
        return Searched(*(tuple(_found(one, limits) for one in of) for of in (wanted, unwanted)))
    except GrammarError as error:
        raise UnsupportedSchema(
            f"{keyword} at {path}: {error.message}", keyword=keyword, path=path
        ) from error


def _found(pattern: str, limits: CompileLimits) -> Expression:
    return somewhere(parse_pattern(pattern, limits, PatternDialect.ECMA))


def _certainly_not(one: Sourced, limits: CompileLimits) -> Expression:
    """Every string that may have the format. A format that is not enforced may be any string's."""
    if one.text not in FORMATS:
        return ANYTHING
    if one.text not in LOOSE:
        raise UnsupportedSchema(
            f"format at {one.path}: {one.text!r} cannot be negated", keyword="format", path=one.path
        )
    return _read(LOOSE[one.text], limits)


def _format(facet: StringFacet, name: str, limits: CompileLimits) -> Expression:
    """The strings of a format; fewer of them beside other keywords that would need more states
    than there may be.
    """
    plain = _read(FORMATS[name], limits)
    shortest, longest = lengths(plain)
    fits = facet.high is None or (longest is not None and longest <= facet.high)
    others = facet.patterns + facet.not_patterns + facet.not_formats + facet.formats[1:]
    if name not in COMPACT or (fits and facet.low <= shortest and not others):
        return plain
    if facet.high is not None and facet.low <= shortest and not others:
        pattern = sized(name, facet.high)
        if pattern is not None:
            return _read(pattern, limits)
    return _read(COMPACT[name], limits)


@functools.lru_cache(maxsize=64)
def _read(pattern: str, limits: CompileLimits) -> Expression:
    return whole(parse_pattern(pattern, limits, PatternDialect.ECMA))


# --- look-ahead


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
