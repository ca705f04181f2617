"""Builds the nodes of arrays: first and further items, counts, `contains`, and items that are
compared with each other, since all have to differ or two have to be equal.

Of few values, the net knows which were used. Strings and numbers of many values are written in one
spelling, and whoever walks the net remembers them (`unique_items.py`). Does not know how strings
are built.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from lmprog.constraints.automaton import Automaton, MemoryFull
from lmprog.constraints.constraint import CompileTooLong
from lmprog.constraints.expression import whole
from lmprog.constraints.finish import finish
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import (
    EMPTY,
    EVERY_BYTE,
    FAIL,
    EachOnce,
    Leaf,
    NetBuilder,
    Node,
    UniqueArray,
    text_leaf,
)
from lmprog.constraints.pattern import parse_pattern
from lmprog.constraints.schema.flat import FIRST_LETTERS, ArrayFacet, Bound, Flat, NumberFacet
from lmprog.constraints.schema.layout import Layout
from lmprog.constraints.schema.numbers import MAX_PLACES, TooManyDigits, bounded_number
from lmprog.constraints.schema.schema_document import Json, Located
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError, UnsupportedSchema

MAX_UNIQUE = 2000
"""Values of items that the net counts."""
_MAX_CELLS = 4000

Compile = Callable[[Sequence[Located]], Node]


class ArrayBuilder:
    """Builds the content of one array, brackets excluded."""

    def __init__(
        self, net: NetBuilder, facet: ArrayFacet, comma: Node, compile_schemas: Compile
    ) -> None:
        self._net = net
        self._facet = facet
        self._comma = comma
        self._compile = compile_schemas
        self._contains = [one for one in facet.contains if one.asserts]
        self._num_first = max((len(items.prefix) for items in facet.items), default=0)

    def schemas(self, index: int) -> list[Located]:
        """The schemas that apply to the item at `index`."""
        out = []
        for items in self._facet.items:
            if index < len(items.prefix):
                out.append(items.prefix[index])
            elif items.rest is not None:
                out.append(items.rest)
        return out

    def content(self) -> tuple[Node, bool]:
        """At least one item, separated by commas, and whether the array may be empty."""
        facet = self._facet
        if facet.high is not None and facet.high < facet.low:
            return FAIL, False
        if self._contains:
            return self._containing(), facet.low == 0 and all(
                one.low == 0 for one in self._contains
            )
        return self._counted(), facet.low == 0

    def _counted(self) -> Node:
        """Items by position; further items are one counted repetition."""
        low, high, first = self._facet.low, self._facet.high, self._num_first
        further = self._net.seq([self._comma, self._compile(self.schemas(first))])
        if first == 0:
            if high == 0:
                return FAIL
            more = self._net.repeat(further, max(low - 1, 0), None if high is None else high - 1)
            return self._net.seq([self._compile(self.schemas(0)), more])
        tail = self._net.repeat(
            further, max(low - first, 0), None if high is None else max(high - first, 0)
        )
        for index in range(first - 1, -1, -1):
            here = (
                FAIL if high is not None and index >= high else self._compile(self.schemas(index))
            )
            tail = self._net.seq([self._comma if index else EMPTY, here, tail])
            if index > 0 and index >= low:
                tail = self._net.optional(tail)
        return tail

    def _containing(self) -> Node:
        """Counts items and the matches of each `contains`, each only up to its bound."""
        facet, contains = self._facet, self._contains
        last_item = max(facet.low, (facet.high or 0), self._num_first, 1)
        last_item = max(last_item, *(one.begin for one in contains))
        most = [one.low if one.high is None else one.high for one in contains]
        num_cells = (last_item + 1) * math.prod(last + 1 for last in most)
        if num_cells << len(contains) > _MAX_CELLS:
            raise self._too_large()
        counts = list(itertools.product(*(range(last + 1) for last in most)))
        places = [(index, matches) for index in range(last_item + 1) for matches in counts]
        # Before the holes, which stay unfilled where an item is refused.
        items = {
            place: [*self._items_by_matches(*place)]
            for place in places
            if facet.high is None or place[0] < facet.high
        }
        cells = {place: self._net.hole() for place in places}
        for (index, matches), hole in cells.items():
            enough = all(m >= one.low for m, one in zip(matches, contains, strict=True))
            ways = [EMPTY] if index >= max(facet.low, 1) and enough else []
            after = min(index + 1, last_item)
            comma = self._comma if index else EMPTY
            for item, matching in items.get((index, matches), ()):
                following = tuple(
                    min(m + (i in matching), last)
                    for i, (m, last) in enumerate(zip(matches, most, strict=True))
                )
                ways.append(self._net.seq([comma, item, cells[after, following]]))
            self._net.fill(hole, self._net.alt(ways))
        return cells[0, (0,) * len(contains)]

    def _too_large(self) -> UnsupportedSchema:
        path = self._contains[0].schema.path
        return UnsupportedSchema(
            f"contains at {path}: bounds this large, or this many of them",
            keyword="contains",
            path=path,
        )

    def _items_by_matches(
        self, index: int, matches: tuple[int, ...]
    ) -> Iterator[tuple[Node, frozenset[int]]]:
        """The item at `index`, for each set of `contains` that it may count for. One that counts
        for no upper bound may match all the same.
        """
        counted = [i for i, one in enumerate(self._contains) if index >= one.begin]
        for chosen in itertools.product((True, False), repeat=len(counted)):
            matching = frozenset(i for i, is_match in zip(counted, chosen, strict=True) if is_match)
            tops = [(self._contains[i].high, matches[i]) for i in matching]
            if any(high is not None and seen >= high for high, seen in tops):
                continue
            schemas = self.schemas(index) + [self._contains[i].schema for i in sorted(matching)]
            for i in counted:
                wanted = self._contains[i].schema
                if i not in matching and self._contains[i].high is not None:
                    path = f"{wanted.path}/\0others"
                    schemas.append(wanted.sibling(path, {"not": wanted.value}))
            yield self._compile(schemas), matching


def unique_content(net: NetBuilder, values: Sequence[Node], comma: Node, facet: ArrayFacet) -> Node:
    """At least one item, each of `values` at most once."""
    path = facet.unique or "#"
    if len(values) > MAX_UNIQUE:
        raise UnsupportedSchema(
            f"uniqueItems at {path}: supported for items with at most {MAX_UNIQUE:,} possible "
            f"values, and strings",
            keyword="uniqueItems",
            path=path,
        )
    return net.once(EachOnce(comma, (), values, facet.low, facet.high))


def repeating_content(
    net: NetBuilder, values: Sequence[Node], comma: Node, facet: ArrayFacet
) -> Node:
    """Items of `values`, one of them at least twice: for each, how often it was seen so far."""
    path = facet.repeats or "#"
    last = max(facet.low, facet.high or 0, 2)
    if 3 * last * len(values) > _MAX_CELLS:
        raise UnsupportedSchema(
            f"the negation of uniqueItems at {path}: bounds this large, or too many values",
            keyword="uniqueItems",
            path=path,
        )
    anything = net.alt(values)
    starts = []
    for value in values:
        cells = {(i, seen): net.hole() for i in range(last + 1) for seen in range(3)}
        for (index, seen), hole in cells.items():
            ways = [EMPTY] if seen == 2 and index >= facet.low else []
            if facet.high is None or index < facet.high:
                begun, after = comma if index else EMPTY, min(index + 1, last)
                ways.append(net.seq([begun, anything, cells[after, seen]]))
                if seen < 2:
                    ways.append(net.seq([begun, value, cells[after, seen + 1]]))
            net.fill(hole, net.alt(ways))
        starts.append(cells[0, 0])
    return net.alt(starts)


# --- items that are compared

_MAX_LENGTH = 400
"""Bytes of a string, where it is asked how long several different ones have to be."""
_MAX_STATES = 4000
_MANY = 1_000_000
"""Different strings; no array has so many."""
_NO_TOKENS = Vocabulary([], [], use_cache=False)


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
        walk = Automaton(finish(net, root, EVERY_BYTE), _NO_TOKENS, net.limits)
        found, enough, counts = 0, 0, {walk.start: 1}
        for length in range(_MAX_LENGTH):
            self._net.check()
            found += sum(count for state, count in counts.items() if walk.is_final(state))
            enough = length if found >= low and not enough else enough
            if found >= _MANY:
                return _Counted(enough, True)
            try:
                counts = _after_a_byte(walk, counts)
            except MemoryFull:
                break
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


def _after_a_byte(walk: Automaton, counts: dict[int, int]) -> dict[int, int]:
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
