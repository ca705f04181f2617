"""Whether a schema accepts one given value: for `enum` and `const` beside other keywords.

Reads values and flat schemas; builds no nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction

from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.schema.flat import (
    ArrayFacet,
    Flat,
    NumberFacet,
    ObjectFacet,
    Properties,
    type_of,
)
from lmprog.constraints.schema.schema_document import Json, Located, json_key, same_json
from lmprog.constraints.schema.strings import search_pattern, text_set
from lmprog.constraints.textset import contains

_MAX_EXPONENT = 4000
"""Of ten, in numbers that are compared; those of greater ones are never taken."""


class InstanceChecker:
    """Checks values against the schemas of one document. `expand`: the alternatives of a
    conjunction of schemas. `formats` False: they are annotations.
    """

    def __init__(
        self,
        expand: Callable[[Sequence[Located]], list[Flat]],
        limits: CompileLimits,
        formats: bool,
    ) -> None:
        self._expand = expand
        self._limits = limits
        self._formats = formats

    def takes(self, flat: Flat, value: Json) -> bool:
        kind = type_of(value)
        if kind not in flat.types or any(same_json(value, other) for other in flat.not_values):
            return False
        if flat.values is not None and not any(same_json(value, one) for one in flat.values):
            return False
        if isinstance(value, str):
            facet = (
                flat.string if self._formats else flat.string._replace(formats=(), not_formats=())
            )
            return contains(text_set(facet, self._limits), value)
        if isinstance(value, list):
            return self._array(flat.array, value)
        if isinstance(value, dict):
            return self._object(flat.object, value)
        if isinstance(value, bool) or value is None:
            return True
        return _number(flat.number, Decimal(value))

    def _fits(self, schemas: Sequence[Located], value: Json) -> bool:
        return any(self.takes(flat, value) for flat in self._expand(schemas))

    def _array(self, facet: ArrayFacet, items: list[Json]) -> bool:
        if len(items) < facet.low or (facet.high is not None and len(items) > facet.high):
            return False
        if facet.unique or facet.repeats:
            repeats = len(set(map(json_key, items))) < len(items)
            if (facet.unique and repeats) or (facet.repeats and not repeats):
                return False
        for at, item in enumerate(items):
            told = [one.prefix[at] if at < len(one.prefix) else one.rest for one in facet.items]
            if not self._fits([schema for schema in told if schema is not None], item):
                return False
        for wanted in facet.contains:
            if not wanted.asserts:
                continue
            count = sum(self._fits([wanted.schema], item) for item in items[wanted.begin :])
            if count < wanted.low or (wanted.high is not None and count > wanted.high):
                return False
        return True

    def _object(self, facet: ObjectFacet, members: dict[str, Json]) -> bool:
        if len(members) < facet.low or (facet.high is not None and len(members) > facet.high):
            return False
        if not members.keys() >= set(facet.required):
            return False
        for name, item in members.items():
            if facet.names and not self._fits(facet.names, name):
                return False
            told = [one for group in facet.properties for one in self._of(group, name)]
            if not self._fits(told, item):
                return False
        for fault in facet.faults:
            there = [(members[name], one) for name, one in fault.members if name in members]
            if members.keys() >= dict(fault.absent).keys() and not any(
                self._fits([one], item) for item, one in there
            ):
                return False
        return all(
            any(
                self._fits([witness.name], name) and self._fits([witness.value], item)
                for name, item in members.items()
            )
            for witness in facet.witnesses
        )

    def _of(self, group: Properties, name: str) -> list[Located]:
        """What one schema says of the property `name`."""
        found = [located for named, located in group.named if named == name]
        found += [
            located
            for pattern, located in group.patterns
            if search_pattern(pattern, self._limits).takes(name)
        ]
        return found or ([group.additional] if group.additional is not None else [])


def _number(facet: NumberFacet, value: Decimal) -> bool:
    if value and abs(value.adjusted()) > _MAX_EXPONENT:
        return False
    is_whole = value == value.to_integral_value()
    if (facet.integer and not is_whole) or (facet.fractional and is_whole):
        return False
    low, high = facet.low, facet.high
    if low and (value < low.value or (low.exclusive and value == low.value)):
        return False
    if high and (value > high.value or (high.exclusive and value == high.value)):
        return False
    exact = Fraction(value)
    return all(not exact % Fraction(one) for one in facet.multiples) and all(
        exact % Fraction(one) for one in facet.not_multiples
    )
