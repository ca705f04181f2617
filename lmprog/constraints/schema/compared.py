"""Arrays whose items are compared with each other: all have to differ, or two have to be equal.

Of few values, the net knows which were used. Strings of many values are written in one spelling,
and whoever walks the net remembers them (`unique_items.py`). Does not know how items are built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lmprog.constraints.automaton import LazyAutomaton
from lmprog.constraints.constraint import CompileTooLong
from lmprog.constraints.finish import finish
from lmprog.constraints.leaves import Leaf, text_leaf
from lmprog.constraints.net import FAIL, NetBuilder, Node, UniqueArray
from lmprog.constraints.net_arrays import EVERY_BYTE
from lmprog.constraints.schema.arrays import MAX_UNIQUE, repeating_content, unique_content
from lmprog.constraints.schema.flat import FIRST_LETTERS, ArrayFacet, Flat
from lmprog.constraints.schema.layout import Layout
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
        if facet.unique and _are_many_strings(flats):
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
                raise self._refuse("supported only for strings, and items with few possible values")
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
        """All arrays of these strings, with a leaf of its own at the beginning."""
        net, layout, depth, facet = self._net, self._parts.layout, self._parts.depth, self._facet
        item = self._strings(flats, net)
        further = net.seq([layout.comma(depth), item])
        most = None if facet.high is None else facet.high - 1
        content = net.seq([item, net.repeat(further, max(facet.low - 1, 0), most)])
        counted = self._counted(flats)
        if counted is None:
            return FAIL
        # Two items are told apart byte by byte: the white space between them counts too.
        spare = counted.length + 2 + (2 * depth + 2 if layout.depends_on_depth else 0)
        opening = net.leaf(_bracket(spare * max(facet.low - 1, 0)))
        net.unique_arrays[opening] = UniqueArray(max(facet.low, 1), spare, counted.are_many)
        close = layout.close(b"]", depth)
        array = net.seq([opening, layout.behind_open(depth), content, close])
        return net.alt([array, *([] if facet.low else [layout.empty(b"[]")])])

    def _strings(self, flats: list[Flat], net: NetBuilder) -> Node:
        ways = []
        for flat in flats:
            if flat.values is not None:
                assert net is self._net or flat.values, self._path
                ways += [self._parts.value(flat, value) for value in flat.values]
                continue
            try:
                ways.append(self._parts.string(flat, net))
            except CompileTooLong:
                raise
            except GrammarError as error:
                raise self._refuse(error.message) from error
        return net.alt(ways)

    def _counted(self, flats: list[Flat]) -> _Counted | None:
        """None where there are fewer strings than there must be items."""
        low = self._facet.low
        if low < 2 and any(_is_plain(flat) for flat in flats):
            return _Counted(0, True)
        net = NetBuilder(self._net.limits, self._net.check)
        root = self._strings([flat for flat in flats if flat.values is None], net)
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
    """Whether there are certainly many such strings."""
    facet = flat.string
    narrows = facet.patterns or facet.formats or facet.not_patterns or facet.not_formats
    return flat.values is None and not narrows and (facet.high is None or facet.high > 5)


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


def _are_many_strings(flats: list[Flat]) -> bool:
    values = [flat.values for flat in flats if flat.values is not None]
    is_few = len(values) == len(flats) and sum(map(len, values)) <= MAX_UNIQUE
    plain = all(flat.types == {"string"} and not flat.not_values for flat in flats)
    return plain and not is_few and not any(flat.string.excluded for flat in flats)
