"""Builds the nodes of arrays: first and further items, counts, `contains`, finite uniqueness."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lmprog.constraints.net import EMPTY, FAIL, NetBuilder, Node
from lmprog.constraints.schema.flat import ArrayFacet
from lmprog.constraints.schema.schema_document import Located
from lmprog.errors import UnsupportedSchema

_MAX_UNIQUE = 10
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
        if facet.contains:
            return self._containing(), facet.low == 0 and all(
                one.low == 0 for one in facet.contains
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
        """Counts items and `contains` matches, each only up to its bound."""
        facet = self._facet
        if len(facet.contains) > 1:
            raise UnsupportedSchema(
                "more than one contains", keyword="contains", path=facet.contains[1].schema.path
            )
        contains = facet.contains[0]
        last_item = max(facet.low, (facet.high or 0), self._num_first, 1)
        last_match = contains.low if contains.high is None else contains.high
        if (last_item + 1) * (last_match + 1) > _MAX_CELLS:
            raise UnsupportedSchema(
                "contains with bounds this large", keyword="contains", path=contains.schema.path
            )
        cells = {
            (i, m): self._net.hole() for i in range(last_item + 1) for m in range(last_match + 1)
        }
        for (index, matches), hole in cells.items():
            schemas = self.schemas(index)
            after = min(index + 1, last_item)
            comma = self._comma if index else EMPTY
            ways = [EMPTY] if index >= max(facet.low, 1) and matches >= contains.low else []
            if facet.high is None or index < facet.high:
                if contains.high is None or matches < contains.high:
                    matching = self._compile([*schemas, contains.schema])
                    ways.append(
                        self._net.seq([comma, matching, cells[after, min(matches + 1, last_match)]])
                    )
                other = self._other(schemas, contains.schema, exactly=contains.high is not None)
                ways.append(self._net.seq([comma, other, cells[after, matches]]))
            self._net.fill(hole, self._net.alt(ways))
        return cells[0, 0]

    def _other(self, schemas: list[Located], wanted: Located, exactly: bool) -> Node:
        """An item not counted as a match: any, unless an upper bound requires a non-match."""
        if not exactly:
            return self._compile(schemas)
        return self._compile(
            [*schemas, wanted.sibling(f"{wanted.path}/\0others", {"not": wanted.value})]
        )


def unique_content(net: NetBuilder, values: Sequence[Node], comma: Node, facet: ArrayFacet) -> Node:
    """At least one item, each of `values` at most once: one node per set of remaining values."""
    path = facet.unique or "#"
    if len(values) > _MAX_UNIQUE:
        raise UnsupportedSchema(
            f"uniqueItems at {path}: supported for items with at most {_MAX_UNIQUE} possible "
            f"values",
            keyword="uniqueItems",
            path=path,
        )
    most = len(values) if facet.high is None else min(facet.high, len(values))
    nodes: dict[int, Node] = {}
    for used in sorted(range(1 << len(values)), key=int.bit_count, reverse=True):
        size = used.bit_count()
        ways = [EMPTY] if size and size >= facet.low else []
        if size < most:
            ways += [
                net.seq([comma if used else EMPTY, value, nodes[used | 1 << i]])
                for i, value in enumerate(values)
                if not used >> i & 1
            ]
        nodes[used] = net.alt(ways) if size <= most else FAIL
    return nodes[0]
