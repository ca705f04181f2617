"""A schema without applicators: the allowed types and values, and one facet per type.

Merging facets is how `allOf` and sibling keywords are intersected. Knows the meaning of the
assertion keywords; knows neither references nor alternatives, and builds no nodes.
"""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import NamedTuple

from lmprog.constraints.schema.schema_document import Json, Located, json_key
from lmprog.errors import UnsupportedSchema

FIRST_LETTERS = ("sS", "cC", "pP", "a-bA-B", "d-eD-E", "f-iF-I", "j-oJ-O", "^a-ps-sA-PS-S")
"""Divides all strings but the empty one into classes of which words begin about equally often."""
TYPES = frozenset(["null", "boolean", "number", "string", "array", "object"])


class Bound(NamedTuple):
    value: Decimal
    exclusive: bool


class NumberFacet(NamedTuple):
    integer: bool = False
    fractional: bool = False  # not an integer
    low: Bound | None = None
    high: Bound | None = None
    multiples: tuple[Decimal, ...] = ()
    not_multiples: tuple[Decimal, ...] = ()

    def join(self, other: NumberFacet) -> NumberFacet:
        if self is ANY_NUMBER:
            return other
        lows = [bound for bound in (self.low, other.low) if bound]
        highs = [bound for bound in (self.high, other.high) if bound]
        return NumberFacet(
            self.integer or other.integer,
            self.fractional or other.fractional,
            max(lows, key=lambda bound: (bound.value, bound.exclusive), default=None),
            min(highs, key=lambda bound: (bound.value, not bound.exclusive), default=None),
            tuple(dict.fromkeys(self.multiples + other.multiples)),
            tuple(dict.fromkeys(self.not_multiples + other.not_multiples)),
        )


class Sourced(NamedTuple):
    """A string of the schema and its path."""

    text: str
    path: str


class StringFacet(NamedTuple):
    low: int = 0
    high: int | None = None
    patterns: tuple[Sourced, ...] = ()
    not_patterns: tuple[Sourced, ...] = ()
    formats: tuple[Sourced, ...] = ()
    excluded: tuple[str, ...] = ()
    not_formats: tuple[Sourced, ...] = ()

    def join(self, other: StringFacet) -> StringFacet:
        if self is ANY_STRING:
            return other
        highs = [high for high in (self.high, other.high) if high is not None]
        return StringFacet(
            max(self.low, other.low),
            min(highs) if highs else None,
            _merged(self.patterns, other.patterns),
            _merged(self.not_patterns, other.not_patterns),
            _merged(self.formats, other.formats),
            tuple(dict.fromkeys(self.excluded + other.excluded)),
            _merged(self.not_formats, other.not_formats),
        )


class Items(NamedTuple):
    """One schema's constraints on items: the first ones, and all further ones (None: anything)."""

    prefix: tuple[Located, ...]
    rest: Located | None


class Contains(NamedTuple):
    """How many items match a schema, of those at `begin` and later."""

    schema: Located
    low: int
    high: int | None
    begin: int = 0

    @property
    def asserts(self) -> bool:
        """Else it only says which items are evaluated."""
        return self.low > 0 or self.high is not None


class ArrayFacet(NamedTuple):
    items: tuple[Items, ...] = ()
    low: int = 0
    high: int | None = None
    unique: str | None = None  # path of the schema that requires unique items
    contains: tuple[Contains, ...] = ()
    repeats: str | None = None  # path of the negated schema that requires two equal items

    def join(self, other: ArrayFacet) -> ArrayFacet:
        if self is ANY_ARRAY:
            return other
        highs = [high for high in (self.high, other.high) if high is not None]
        return ArrayFacet(
            self.items + other.items,
            max(self.low, other.low),
            min(highs) if highs else None,
            self.unique or other.unique,
            self.contains + other.contains,
            self.repeats or other.repeats,
        )


class Properties(NamedTuple):
    """One schema's constraints on properties: by name, by pattern, and all others (None:
    anything).
    """

    named: tuple[tuple[str, Located], ...]
    patterns: tuple[tuple[Sourced, Located], ...]
    additional: Located | None

    @property
    def is_closed(self) -> bool:
        """Whether no other property is allowed."""
        return self.additional is not None and self.additional.value is False


class Witness(NamedTuple):
    """Some member must have a name that `name` takes and a value that `value` takes. Negation asks
    for it."""

    name: Located
    value: Located


class Fault(NamedTuple):
    """Some of these names is absent, or some of these members is there with a value that its schema
    takes. Negation asks for it."""

    absent: tuple[tuple[str, Located], ...]
    """Each with the schema that nothing fits."""
    members: tuple[tuple[str, Located], ...]


class ObjectFacet(NamedTuple):
    properties: tuple[Properties, ...] = ()
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    names: tuple[Located, ...] = ()
    path: str = "#"
    witnesses: tuple[Witness, ...] = ()
    faults: tuple[Fault, ...] = ()

    def join(self, other: ObjectFacet) -> ObjectFacet:
        if self is ANY_OBJECT:
            return other
        highs = [high for high in (self.high, other.high) if high is not None]
        return ObjectFacet(
            self.properties + other.properties,
            tuple(dict.fromkeys(self.required + other.required)),
            max(self.low, other.low),
            min(highs) if highs else None,
            self.names + other.names,
            self.path if self.path != "#" else other.path,
            self.witnesses + other.witnesses,
            self.faults + other.faults,
        )


ANY_NUMBER, ANY_STRING, ANY_ARRAY, ANY_OBJECT = (
    NumberFacet(),
    StringFacet(),
    ArrayFacet(),
    ObjectFacet(),
)


class Flat(NamedTuple):
    """A conjunction of assertions. `values` None: any value; else only these, if the rest accepts
    them.
    """

    types: frozenset[str] = TYPES
    values: tuple[Json, ...] | None = None
    not_values: tuple[Json, ...] = ()
    number: NumberFacet = ANY_NUMBER
    string: StringFacet = ANY_STRING
    array: ArrayFacet = ANY_ARRAY
    object: ObjectFacet = ANY_OBJECT
    path: str = "#"

    def of_types(self, types: frozenset[str]) -> Flat:
        return self._replace(types=self.types & types)

    def only(self, values: tuple[Json, ...]) -> Flat:
        if self.values is not None:
            keys = set(map(json_key, values))
            values = tuple(value for value in self.values if json_key(value) in keys)
        return self._replace(values=values, types=self.types & frozenset(map(type_of, values)))

    def without(self, values: tuple[Json, ...]) -> Flat:
        return self._replace(not_values=self.not_values + values)

    def join(self, other: Flat) -> Flat:
        joined = Flat(
            self.types & other.types,
            self.values,
            self.not_values + other.not_values,
            self.number.join(other.number),
            self.string.join(other.string),
            self.array.join(other.array),
            self.object.join(other.object),
            self.path,
        )
        return joined if other.values is None else joined.only(other.values)

    def beginning(self, letters: str) -> Flat:
        """Those of its strings that begin with one of `letters`, ranges of a class."""
        first = StringFacet(patterns=(Sourced(f"^[{letters}]", self.path),))
        return self._replace(string=self.string.join(first))

    @property
    def impossible(self) -> bool:
        return not self.types

    @property
    def unconstrained_but_types(self) -> bool:
        """Whether only the type is constrained, by no facet."""
        facets = self.number, self.string, self.array, self.object
        return facets == (ANY_NUMBER, ANY_STRING, ANY_ARRAY, ANY_OBJECT)


def type_of(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | Decimal):
        return "number"
    return {str: "string", list: "array", dict: "object"}[type(value)]


def _merged(left: tuple[Sourced, ...], right: tuple[Sourced, ...]) -> tuple[Sourced, ...]:
    """The union without duplicates, in order."""
    return tuple({item.text: item for item in reversed(left + right)}.values())[::-1]


def without_values(flat: Flat) -> list[Flat]:
    """Replaces excluded values per type: numbers by open intervals, strings by text exclusions."""
    out: list[Flat] = []
    for kind in sorted(flat.types):
        values = [value for value in flat.not_values if type_of(value) == kind]
        rest = flat._replace(types=frozenset([kind]), not_values=())
        if not values:
            out.append(rest)
        elif kind in ("null", "boolean"):
            everything: tuple[Json, ...] = (None,) if kind == "null" else (True, False)
            out.append(rest.only(tuple(value for value in everything if value not in values)))
        elif kind == "string":
            excluded = StringFacet(excluded=tuple(str(value) for value in values))
            out.append(rest._replace(string=rest.string.join(excluded)))
        elif kind == "number":
            out += _between(
                rest,
                sorted({Decimal(value) for value in values if isinstance(value, int | Decimal)}),
            )
        else:
            raise UnsupportedSchema(
                f"an array or object as a negated value at {flat.path}",
                keyword="not",
                path=f"{flat.path}/not",
            )
    return out


def _between(flat: Flat, values: list[Decimal]) -> list[Flat]:
    """The open intervals between the excluded numbers."""
    edges: list[Bound | None] = [None, *(Bound(value, True) for value in values), None]
    return [
        flat._replace(number=flat.number.join(NumberFacet(low=low, high=high)))
        for low, high in pairwise(edges)
    ]
