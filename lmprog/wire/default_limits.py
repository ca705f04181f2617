"""How many tokens an answer may have whose call names no limit: the rule for programs and for those
that come as JSON.

A confined text may have as many as its longest one can need. A token has at least one byte, so the
bytes of the longest text are enough. Of a schema whose texts have no longest one (a plain string, a
list without `max_length`, a recursive type) the default is the highest. Knows the schemas that
types have, and nothing of tokens or automata.
"""

from __future__ import annotations

import functools
import json
from typing import Any, TypeAlias

from lmprog.wire.constraints import Constraint, JsonSchema
from lmprog.wire.sampling_params import SamplingParams

GENERAL = SamplingParams().max_tokens or 0
"""The budget of every generation that names none."""
MOST = 1024
"""No default of a confined text is higher, and none is higher than half of the context. Types,
schemas and grammars whose texts have no longest one have it, and so have answers with tools.
"""
_MAX_DEPTH = 40
_CHAR = 4
"""Bytes of a character, as UTF-8 or as a short escape."""
_FORMATS = {
    "date": 12, "time": 28, "date-time": 40, "uuid": 38, "ipv4": 17, "ipv6": 47, "ipv4network": 20,
    "ipv6network": 51, "ipv4interface": 20, "ipv6interface": 51,
}  # fmt: skip
"""Bytes of the longest string of a format, quotes included."""
_CONTENTS = frozenset(["anyOf", "oneOf", "allOf", "enum", "const", "$ref", "type"])

_Schema: TypeAlias = "bool | dict[str, Any]"


def default_limit(
    constraint: Constraint | None,
    *,
    context_len: int,
    is_turn: bool,
    is_alone: bool = True,
    is_typed: bool = False,
    is_reasoned: bool = False,
    has_tools: bool = False,
) -> int | None:
    """None is what is left of the context. A turn ends by itself, and may take that, unless others
    compete with it or are to follow (it is not alone); so may all in a turn in which reasoning
    counts, too, as services and thoughts have it. A `context_len` of 0 is not known.
    """
    is_confined = is_typed or constraint is not None
    is_free = constraint is None and (not is_typed or has_tools)
    if is_turn and is_alone and (is_reasoned or is_free):
        return None
    if not is_confined and not is_reasoned:
        return GENERAL
    context_len = context_len or 2 * MOST
    if is_confined:
        return default_tokens(constraint, context_len, has_tools=has_tools)
    return min(MOST, context_len // 2)


def default_tokens(
    constraint: Constraint | None, context_len: int = 2 * MOST, *, has_tools: bool = False
) -> int:
    """The limit of a confined generation."""
    most = max(GENERAL, min(MOST, context_len // 2))
    choices = None if constraint is None else constraint.as_choices()
    schema = None if constraint is None else constraint.as_schema()
    if choices is not None:
        longest = max(len(text.encode(errors="replace")) for text in choices)
    elif schema is not None:
        found = _longest_of_type(schema)
        longest = most if found is None else found
    else:
        is_open = constraint is not None and constraint.as_grammar() is not None
        return most if is_open or has_tools else GENERAL
    return min(max(longest, GENERAL), most)


@functools.lru_cache(maxsize=256)
def _longest_of_type(constraint: JsonSchema) -> int | None:
    if constraint.whitespace not in ("fixed", "compact"):
        return None
    return longest_json(json.loads(constraint.schema))


def longest_json(schema: _Schema) -> int | None:
    """Bytes of the longest text; None where there is none, or where it is not known."""
    definitions = schema.get("$defs", {}) if isinstance(schema, dict) else {}
    return _Lengths(definitions).of(schema)


class _Lengths:
    """The lengths of the schemas of one document."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._open: list[str] = []

    def of(self, schema: _Schema) -> int | None:
        """The least of what the keywords say: every one of them bounds the text."""
        if not isinstance(schema, dict) or len(self._open) > _MAX_DEPTH:
            return None
        found = [self._by(keyword, schema) for keyword in schema.keys() & _CONTENTS]
        return min((length for length in found if length is not None), default=None)

    def _by(self, keyword: str, schema: dict[str, Any]) -> int | None:
        content = schema[keyword]
        match keyword:
            case "anyOf" | "oneOf":
                return _most([self.of(part) for part in content])
            case "allOf":
                found = [length for part in content if (length := self.of(part)) is not None]
                return min(found, default=None)
            case "const":
                return _written(content)
            case "enum":
                return _most([_written(value) for value in content])
            case "$ref":
                return self._defined(content)
        return _most(
            [
                self._typed(name, schema)
                for name in ([content] if isinstance(content, str) else content)
            ]
        )

    def _defined(self, reference: str) -> int | None:
        name = reference.removeprefix("#/$defs/")
        if name in self._open or name not in self._definitions:
            return None
        self._open.append(name)
        found = self.of(self._definitions[name])
        self._open.pop()
        return found

    def _typed(self, name: str, schema: dict[str, Any]) -> int | None:
        match name:
            case "null":
                return len("null")
            case "boolean":
                return len("false")
            case "integer":
                low = schema.get("minimum", schema.get("exclusiveMinimum"))
                bounds = [low, schema.get("maximum", schema.get("exclusiveMaximum"))]
                return _most([None if bound is None else _written(int(bound)) for bound in bounds])
            case "string":
                most = schema.get("maxLength")
                by_length = None if most is None else 2 + _CHAR * most
                known = [by_length, _FORMATS.get(schema.get("format", ""))]
                return min((length for length in known if length is not None), default=None)
            case "array":
                return self._array(schema)
            case "object":
                return self._object(schema)
        return None

    def _array(self, schema: dict[str, Any]) -> int | None:
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        most = len(first) if rest is False else schema.get("maxItems")
        if most is None:
            return None
        items = [self.of(item) for item in first[:most]]
        if most > len(first):
            items += [self.of(rest)] * min(most - len(first), MOST)
        return _sum(items)

    def _object(self, schema: dict[str, Any]) -> int | None:
        if schema.get("additionalProperties") is not False or "patternProperties" in schema:
            return None
        members: list[int | None] = []
        for name, value in schema.get("properties", {}).items():
            length = self.of(value)
            members.append(None if length is None else _written(name) + len(": ") + length)
        return _sum(members)


def _written(value: object) -> int:
    """Bytes of a value as JSON with fixed separators."""
    return len(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def _most(lengths: list[int | None]) -> int | None:
    known = [length for length in lengths if length is not None]
    return max(known, default=None) if len(known) == len(lengths) else None


def _sum(lengths: list[int | None]) -> int | None:
    """The items of an array or an object, with separators and brackets."""
    known = [length + len(", ") for length in lengths if length is not None]
    return sum(known, start=2) if len(known) == len(lengths) else None
