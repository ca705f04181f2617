"""Strings of a schema -> sets of texts: lengths, patterns, formats and exclusions. Knows patterns, no bytes."""

from __future__ import annotations

import functools

from lmprog.errors import GrammarError, UnsupportedSchema
from lmprog.runtime.fsm.constraint import Limits
from lmprog.runtime.fsm.expression import Expression, somewhere, text, whole
from lmprog.runtime.fsm.pattern import parse_pattern
from lmprog.runtime.fsm.pattern_sets import Dialect
from lmprog.runtime.fsm.schema.flat import Sourced, StringFacet
from lmprog.runtime.fsm.schema.formats import FORMATS
from lmprog.runtime.fsm.textset import TextSet


def text_set(facet: StringFacet, limits: Limits) -> TextSet:
    """The strings that the facet takes."""
    within = [search_pattern(pattern, limits) for pattern in facet.patterns]
    within += [_format(one.text, limits) for one in facet.formats if one.text in FORMATS]
    outside = [search_pattern(pattern, limits) for pattern in facet.not_patterns]
    outside += [text(value) for value in facet.excluded]
    return TextSet(tuple(within), tuple(outside), facet.low, facet.high)


def search_pattern(pattern: Sourced, limits: Limits) -> Expression:
    """The strings in which a schema's pattern is found."""
    return _search(pattern.text, pattern.path, limits)


@functools.lru_cache(maxsize=256)
def _search(pattern: str, path: str, limits: Limits) -> Expression:
    keyword = path.rpartition("/")[2]
    try:
        return somewhere(parse_pattern(pattern, limits, Dialect.ECMA))
    except GrammarError as error:
        raise UnsupportedSchema(f"{keyword} at {path}: {error.message}", keyword=keyword, path=path) from error


@functools.lru_cache(maxsize=64)
def _format(name: str, limits: Limits) -> Expression:
    return whole(parse_pattern(FORMATS[name], limits, Dialect.ECMA))
