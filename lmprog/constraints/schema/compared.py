"""Arrays whose items are compared with each other: all have to differ, or two have to be equal.

Of few values, the net knows which were used. Strings and numbers of many values are written in one
spelling, and whoever walks the net remembers them (`unique_items.py`). Does not know how strings
are built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from lmprog.constraints.automaton import LazyAutomaton
from lmprog.constraints.constraint import CompileTooLong
from lmprog.constraints.expression import whole
from lmprog.constraints.finish import finish
from lmprog.constraints.leaves import Leaf, text_leaf
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import FAIL, NetBuilder, Node, UniqueArray
from lmprog.constraints.net_arrays import EVERY_BYTE
from lmprog.constraints.pattern import parse_pattern
from lmprog.constraints.schema.arrays import MAX_UNIQUE, repeating_content, unique_content
from lmprog.constraints.schema.flat import FIRST_LETTERS, ArrayFacet, Bound, Flat, NumberFacet
from lmprog.constraints.schema.layout import Layout
from lmprog.constraints.schema.numbers import MAX_PLACES, TooManyDigits, bounded_number
from lmprog.constraints.schema.schema_document import Json, Located
from lmprog.errors import GrammarError, UnsupportedSchema

_MAX_LENGTH = 400
"""Bytes of a string, where it is asked how long several different ones have to be."""
_MAX_STATES = 4000
_MANY = 1_000_000
"""Different strings; no array has so many."""


@dataclass(frozen=True, slots=True)
class ItemParts:
    """The schema compiler's callbacks for building items."""

    net: NetBuilder
    layout: Layout
    depth: int
    """Of the array's brackets."""
    strict: bool
    expand: Callable[[Sequence[Located]], list[Flat]]
    value: Callable[[Flat, Json], Node]
    flat: Callable[[Flat], Node]
    """Of an alternative; FAIL for what may be left out."""
    string: Callable[[Flat, NetBuilder], Node]
    """A string in the spelling that all equal ones have."""


class ComparedItems:
    def __init__(self, facet: ArrayFacet, parts: ItemParts) -> None:
        self._facet = facet
        self._parts = parts
        self._net = parts.net
        self._path = facet.unique or facet.repeats or "#"

    def node(self, schemas: list[Located]) -> Node:
        """The array; `schemas` are those of every item."""
        facet, layout, depth = self._facet, self._parts.layout, self._parts.depth
        if facet.unique and facet.repeats:
            return FAIL
        if any(one.asserts for one in facet.contains) or any(items.prefix for items in facet.items):
            raise self._refuse("beside prefixItems or contains")
        flats = self._parts.expand(schemas)
        if facet.unique and _are_many_scalars(flats):
            return self._remembered(flats)
        comma = layout.comma(depth)
        try:
            values = self._finite_values(flats)
        except UnsupportedSchema as why:
            if self._parts.strict or facet.repeats:
                raise
            self._net.leave_out(why)
            values = self._told_apart(flats)
        compare = repeating_content if facet.repeats else unique_content
        array = layout.enclosed(b"[]", depth, compare(self._net, values, comma, facet))
        is_empty = layout.empty(b"[]") if facet.low == 0 and not facet.repeats else FAIL
        return self._net.alt([array, is_empty])

    def _refuse(self, why: str) -> UnsupportedSchema:
        return UnsupportedSchema(
            f"uniqueItems at {self._path}: {why}", keyword="uniqueItems", path=self._path
        )

    def _finite_values(self, flats: list[Flat]) -> list[Node]:
        """One node per possible value."""
        values: dict[Node, None] = {}
        for flat in flats:
            if flat.values is None and flat.types <= {"null", "boolean"}:
                constants: list[Json] = [None] if "null" in flat.types else []
                flat = flat.only((*constants, *([False, True] if "boolean" in flat.types else [])))
            if flat.values is None:
                raise self._refuse(
                    "supported only for strings, integers, numbers without bounds, and items with "
                    "few possible values"
                )
            values.update((self._parts.value(flat, value), None) for value in flat.values)
        return [value for value in values if value != FAIL]

    def _told_apart(self, flats: list[Flat]) -> list[Node]:
        """Nodes that have no value in common: strings by their first letter, numbers, all else."""
        ways: dict[str, list[Node]] = {}
        for flat in flats:
            for kind in sorted(flat.types):
                one = flat.of_types(frozenset([kind]))
                others = "number" if kind == "number" else ""
                for letters in FIRST_LETTERS if kind == "string" else [others]:
                    part = one.beginning(letters) if kind == "string" else one
                    ways.setdefault(letters, []).append(self._parts.flat(part))
        values = [self._net.alt(nodes) for nodes in ways.values()]
        return [value for value in values if value != FAIL]

    def _remembered(self, flats: list[Flat]) -> Node:
        """All arrays of these items, with a leaf of its own at the beginning."""
        net, layout, depth, facet = self._net, self._parts.layout, self._parts.depth, self._facet
        item = self._items(flats, net)
        further = net.seq([layout.comma(depth), item])
        most = None if facet.high is None else facet.high - 1
        content = net.seq([item, net.repeat(further, max(facet.low - 1, 0), most)])
        counted = self._counted(flats)
        if counted is None:
            return FAIL
        # Two items are told apart byte by byte: the white space between them counts too.
        spare = counted.length + 2 + (2 * depth + 2 if layout.depends_on_depth else 0)
        opening = net.leaf(_bracket(spare * max(facet.low - 1, 0)))
        has_bare = any(flat.types != {"string"} for flat in flats)
        may_run_out = has_bare and _has_few_strings(flats)
        net.unique_arrays[opening] = UniqueArray(
            max(facet.low, 1), spare, counted.are_many and not may_run_out, has_bare
        )
        close = layout.close(b"]", depth)
        array = net.seq([opening, layout.behind_open(depth), content, close])
        return net.alt([array, *([] if facet.low else [layout.empty(b"[]")])])

    def _items(self, flats: list[Flat], net: NetBuilder) -> Node:
        ways = []
        for flat in flats:
            if flat.values is not None:
                assert net is self._net or flat.values, self._path
                ways += [self._value(flat, value) for value in flat.values]
                continue
            texts = {"null": (b"null",), "boolean": (b"false", b"true")}
            ways += [net.text(text) for kind in texts if kind in flat.types for text in texts[kind]]
            try:
                if "number" in flat.types:
                    ways.append(_number(flat.number, net))
                if "string" in flat.types:
                    ways.append(self._parts.string(flat, net))
            except CompileTooLong:
                raise
            except (GrammarError, TooManyDigits) as error:
                raise self._refuse(str(error) or "numbers of too many digits") from error
        return net.alt(ways)

    def _value(self, flat: Flat, value: Json) -> Node:
        """A constant, if it is written as all that are equal to it."""
        if isinstance(value, Decimal) and str(value) != _text_of(value):
            raise self._refuse(f"the constant {value} could be written as {_text_of(value)}")
        return self._parts.value(flat, value)

    def _counted(self, flats: list[Flat]) -> _Counted | None:
        """None where there are fewer strings than there must be items."""
        low = self._facet.low
        if low < 2 and any(_is_plain(flat) for flat in flats):
            return _Counted(0, True)
        net = NetBuilder(self._net.limits, self._net.check)
        root = self._items([flat for flat in flats if flat.values is None], net)
        if root == FAIL:
            raise self._refuse(f"more than {MAX_UNIQUE} values that are constants")
        walk = LazyAutomaton(finish(net, root, EVERY_BYTE), net.limits)
        found, enough, counts = 0, 0, {walk.start: 1}
        for length in range(_MAX_LENGTH):
            self._net.check()
            found += sum(count for state, count in counts.items() if walk.is_final(state))
            enough = length if found >= low and not enough else enough
            if found >= _MANY:
                return _Counted(enough, True)
            counts = _after_a_byte(walk, counts)
            if not counts or walk.num_states > _MAX_STATES:
                break
        if found >= low:
            return _Counted(enough, False)
        if counts:
            raise self._refuse(f"so many different strings as {low}")
        return None


class _Counted(NamedTuple):
    length: int
    """In bytes, of the longest of so many of the shortest strings as there must be items."""
    are_many: bool


def _is_plain(flat: Flat) -> bool:
    """Whether there are certainly many such items."""
    number = flat.number
    is_bounded = number.low is not None and number.high is not None
    has_numbers = not (is_bounded or number.multiples or number.not_multiples)
    is_numeric = flat.values is None and "number" in flat.types
    return _has_many_strings(flat) or (is_numeric and has_numbers)


def _has_many_strings(flat: Flat) -> bool:
    of = flat.string
    narrows = of.patterns or of.formats or of.not_patterns or of.not_formats
    has_strings = flat.values is None and "string" in flat.types
    return has_strings and not narrows and (of.high is None or of.high > 5)


def _has_few_strings(flats: list[Flat]) -> bool:
    """Whether all strings may be used up, though others are left."""
    has_strings = any(
        "string" in flat.types
        if flat.values is None
        else any(isinstance(value, str) for value in flat.values)
        for flat in flats
    )
    return has_strings and not any(map(_has_many_strings, flats))


_INTEGER = r"0|-?[1-9][0-9]*"
_PLACES = rf"\.[0-9]{{0,{MAX_PLACES - 1}}}[1-9]"
_NUMBER = rf"0|-?[1-9][0-9]{{0,{MAX_PLACES - 1}}}({_PLACES})?|-?0{_PLACES}"
"""In the spelling that all equal ones have; larger numbers, which need an exponent, have none."""


def _number(facet: NumberFacet, net: NetBuilder) -> Node:
    """Raises TooManyDigits."""
    if facet == NumberFacet(integer=facet.integer):
        pattern = _INTEGER if facet.integer else _NUMBER
        return Lowering(net, json_string=False).lower(whole(parse_pattern(pattern, net.limits)))
    assert facet.integer, "others have more spellings than one"
    from_zero = facet.join(NumberFacet(low=Bound(Decimal(0), exclusive=False)))
    below_zero = facet.join(NumberFacet(high=Bound(Decimal(-1), exclusive=False)))
    return net.alt([bounded_number(from_zero, net), bounded_number(below_zero, net)])


def _has_one_spelling(facet: NumberFacet) -> bool:
    return not facet.fractional and (facet.integer or facet == NumberFacet())


def _text_of(value: Decimal) -> str:
    """As all numbers are written that are equal to it."""
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


def _bracket(further: int) -> Leaf:
    """The opening bracket, behind which so many more tokens are needed than the net knows."""
    made = text_leaf(b"[")
    return replace(made, cost=made.cost + np.array([further, 0]))


def _after_a_byte(walk: LazyAutomaton, counts: dict[int, int]) -> dict[int, int]:
    """How many texts lead to each state, as far as that is of interest."""
    out: dict[int, int] = {}
    for state, count in counts.items():
        for after in walk.row(state):
            if after:
                out[after] = min(out.get(after, 0) + count, _MANY)
    return out


def _are_many_scalars(flats: list[Flat]) -> bool:
    """Whether all have one spelling, and the net cannot count them."""
    few = {"null", "boolean"}
    counts = [len(flat.types) if flat.values is None else len(flat.values) for flat in flats]
    is_counted = all(flat.values is not None or flat.types <= few for flat in flats)
    if is_counted and sum(counts) <= MAX_UNIQUE:
        return False
    return all(map(_is_scalar, flats))


def _is_scalar(flat: Flat) -> bool:
    if flat.values is not None:
        return not any(isinstance(value, list | dict) for value in flat.values)
    if not flat.types <= {"null", "boolean", "number", "string"} or flat.not_values:
        return False
    has_strings = "string" not in flat.types or not flat.string.excluded
    return has_strings and ("number" not in flat.types or _has_one_spelling(flat.number))
