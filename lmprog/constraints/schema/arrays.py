"""Builds the nodes of arrays: first and further items, counts, `contains`, finite uniqueness."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from lmprog.constraints.net import EMPTY, FAIL, EachOnce, NetBuilder, Node
from lmprog.constraints.schema.flat import ArrayFacet
from lmprog.constraints.schema.schema_document import Located
from lmprog.errors import UnsupportedSchema

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
