"""Builds the nodes of objects: declared properties in order, then further ones, counts and names.

A declared name is written without escapes. The names of further properties are all strings that
differ from every declared name in any spelling, so no property escapes its schema. Does not know
how values are built.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from functools import cached_property
from json.encoder import encode_basestring

from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.finish import finish
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import EMPTY, FAIL, EachOnce, NetBuilder, Node
from lmprog.constraints.net_arrays import EVERY_BYTE
from lmprog.constraints.schema.conditions import (
    ConditionalMembers,
    FurtherMembers,
    without_faults,
)
from lmprog.constraints.schema.flat import ObjectFacet, Properties, Sourced, Witness
from lmprog.constraints.schema.object_parts import Entry, ObjectParts
from lmprog.constraints.schema.schema_document import Located
from lmprog.constraints.schema.strings import Searched, search_pattern
from lmprog.constraints.text_set import TextSet
from lmprog.constraints.textset import contains, lower_text_set
from lmprog.errors import UnsatisfiableConstraint, UnsupportedSchema

_FEW_PATTERNS = 5
_MAX_TOGETHER = 64
"""Sets of patterns that a name may match."""
_MAX_COUNTED = 4000
_MAX_WAYS = 256


@functools.lru_cache(maxsize=4096)
def _is_like(pattern: Sourced, name: str, limits: CompileLimits) -> bool:
    """Whether a name contains a match of a pattern."""
    return search_pattern(pattern, limits).takes(name)


class ObjectBuilder:
    """Builds the content of one object, braces excluded."""

    def __init__(self, facet: ObjectFacet, parts: ObjectParts) -> None:
        self._facet = facet
        self._parts = parts
        self._net = parts.net
        self._patterns: dict[str, Searched] = {
            pattern.text: search_pattern(pattern, parts.limits)
            for group in facet.properties
            for pattern, _ in group.patterns
        }
        self._by_name = [dict(group.named) for group in facet.properties]
        self._all_names = not facet.names
        self._is_plain = len(facet.properties) == 1 and not self._patterns and not facet.names
        """Whether one schema says all that is said about the properties, by their names."""
        self._names = parts.name_sets(facet.names) if facet.names else [TextSet()]

    def content(self) -> tuple[Node, bool]:
        """At least one member, separated by commas, and whether the object may be empty."""
        assert self._matched_together  # refused before anything is built, where they are too many
        if self._facet.faults and self._parts.any_order:
            return self._alternatives()
        low, high = self._facet.low, self._facet.high
        entries, further = self._entries(), self._further()
        known = sum(entry.value != FAIL for entry in entries)
        if further != FAIL and low > known + 1:  # two of these might have one name
            why = "more than one member of a name that nothing declares"
            raise self._refuse("minProperties", why)
        low = max(low, sum(entry.required for entry in entries))
        if high is not None and high < low:
            return FAIL, False
        if self._facet.witnesses or self._facet.faults:
            return self._conditional(entries, further, low)
        counted = self._facet.low > sum(entry.required for entry in entries) or high is not None
        if not self._parts.any_order and not counted:
            return self._declared(entries, further), low == 0
        members = {entry.name: self._net.seq(self._member(entry)) for entry in entries}
        if self._parts.any_order:
            return self._any_order(entries, members, further, low), low == 0
        return self._declared_counted(entries, members, further, low, high), low == 0

    def _refuse(self, keyword: str, why: str) -> UnsupportedSchema:
        path = f"{self._facet.path}/{keyword}"
        return UnsupportedSchema(f"{keyword} at {path}: {why}", keyword=keyword, path=path)

    def _schemas_of(self, name: str) -> list[Located]:
        if self._is_plain and name in self._by_name[0]:
            return [self._by_name[0][name]]
        out: list[Located] = []
        for group, named in zip(self._facet.properties, self._by_name, strict=True):
            own = [named[name]] if name in named else []
            own += [
                located
                for pattern, located in group.patterns
                if _is_like(pattern, name, self._parts.limits)
            ]
            out += own or ([group.additional] if group.additional is not None else [])
        return out

    def _named(self) -> list[str]:
        named = [name for group in self._facet.properties for name, _ in group.named]
        wrong = [name for one in self._facet.faults for name, _ in one.members]
        absent = [name for one in self._facet.faults for name, _ in one.absent]
        return list(dict.fromkeys([*named, *self._facet.required, *wrong, *absent]))

    def _entries(self) -> list[Entry]:
        required = set(self._facet.required)
        out = []
        for name in self._named():
            fits = self._all_names or any(contains(names, name) for names in self._names)
            value = self._parts.compile_schemas(self._schemas_of(name)) if fits else FAIL
            out.append(Entry(name, value, name in required))
        return out

    def _member(self, entry: Entry) -> tuple[Node, Node]:
        """Name with its colon, and value."""
        name = encode_basestring(entry.name).encode(errors="replace")
        return self._parts.named(name), entry.value

    def _further(self, witnesses: Sequence[Witness] = ()) -> Node:
        """One undeclared member, and a witness of each of `witnesses`. Each set of patterns that a
        name can match gets its own schemas.
        """
        if self._is_plain and not witnesses:
            return self._any_other(self._facet.properties[0])
        named = tuple(self._named())
        ways = []
        for chosen in self._matched_together:
            hit = [self._patterns[one].texts for one in chosen]
            missed = [one.others() for text, one in self._patterns.items() if text not in chosen]
            schemas = self._further_schemas(set(chosen))
            if any(schema.value is False for schema in schemas):
                continue
            value = self._parts.compile_schemas([*schemas, *(one.value for one in witnesses)])
            known = [self._parts.name_sets([one.name]) for one in witnesses]
            for sets in itertools.product(self._names, *known, *missed):
                texts = TextSet(excluded=named)
                for names in (*hit, *sets):
                    texts = names.and_also(texts)
                ways.append(
                    self._net.seq([self._parts.lower_names(texts), self._parts.colon, value])
                )
        return self._net.alt(ways)

    def _any_other(self, group: Properties) -> Node:
        """One member that is not declared, where nothing is said but by names."""
        if group.is_closed:
            return FAIL
        value = self._parts.compile_schemas([group.additional] if group.additional else [])
        names = self._parts.lower_names(TextSet(excluded=tuple(self._named())))
        return self._net.seq([names, self._parts.colon, value])

    @cached_property
    def _matched_together(self) -> list[tuple[str, ...]]:
        """The sets of patterns that one name may match; if there are many patterns, without those
        of which two have no name in common.
        """
        found: list[tuple[str, ...]] = [()]
        for number, pattern in enumerate(self._patterns):
            known = [*self._patterns][:number]
            apart = set[str]()
            if len(self._patterns) > _FEW_PATTERNS:
                apart = {other for other in known if self._have_no_name(pattern, other)}
            found += [(*one, pattern) for one in found if apart.isdisjoint(one)]
            if len(found) > _MAX_TOGETHER:
                raise self._refuse(
                    "patternProperties", "so many patterns that match the same names"
                )
        return found

    def _have_no_name(self, pattern: str, other: str) -> bool:
        net = NetBuilder(self._parts.limits, self._net.check)
        both = self._patterns[pattern].texts.and_also(self._patterns[other].texts)
        try:
            finish(net, lower_text_set(both, net, Lowering(net, False)), EVERY_BYTE)
        except UnsatisfiableConstraint:
            return True
        return False

    def _further_schemas(self, patterns: set[str]) -> list[Located]:
        out = []
        for group in self._facet.properties:
            own = [located for pattern, located in group.patterns if pattern.text in patterns]
            out += own or ([group.additional] if group.additional is not None else [])
        return out

    def _declared(self, entries: list[Entry], further: Node) -> Node:
        """Works backwards: the node after a previous member, and the node at the start, for each
        entry.
        """
        net, comma = self._net, self._parts.comma
        following = net.repeat(net.seq([comma, further]), 0, None)
        first = net.seq([further, following])
        # Behind the first required entry no text begins, and nothing precedes entry 0.
        begin_at = next((i for i, entry in enumerate(entries) if entry.required), len(entries))
        for number in reversed(range(len(entries))):
            entry = entries[number]
            name, value = self._member(entry)
            if number <= begin_at:
                begun = net.seq([name, value, following])
                first = begun if entry.required else net.alt([begun, first])
            if number == 0:
                break
            more = net.seq([comma, name, value, following])
            following = more if entry.required else net.alt([more, following])
        return first

    def _alternatives(self) -> tuple[Node, bool]:
        if math.prod(len(one.absent + one.members) for one in self._facet.faults) > _MAX_WAYS:
            raise self._refuse("not", "so many negated properties in any order")
        facets = without_faults(self._facet)
        ways = [ObjectBuilder(facet, self._parts).content() for facet in facets]
        return self._net.alt(node for node, _ in ways), any(may_be for _, may_be in ways)

    def _conditional(self, entries: list[Entry], further: Node, low: int) -> tuple[Node, bool]:
        others = FurtherMembers(
            further,
            self._further,
            lambda count, low, high: self._further_counted(further, count, low, high),
            self._member,
            self._schemas_of,
            self._refuse,
        )
        members = ConditionalMembers(self._facet, self._parts, others)
        return members.node(entries), low == 0 and members.may_be_empty

    def _declared_counted(
        self,
        entries: list[Entry],
        members: dict[str, Node],
        further: Node,
        low: int,
        high: int | None,
    ) -> Node:
        """The same, with the number of members so far counted as far as a bound needs it."""
        net, comma = self._net, self._parts.comma
        cap = max(low, high or 0, 1)
        if len(entries) * cap > _MAX_COUNTED:
            raise self._refuse("maxProperties", "bounds this large are not supported")
        rows = [self._further_counted(further, count, low, high) for count in range(cap + 1)]
        for entry in reversed(entries):
            member = members[entry.name]
            above = rows
            rows = []
            for count in range(cap + 1):
                full = high is not None and count >= high
                more = (
                    FAIL
                    if full
                    else net.seq([comma if count else EMPTY, member, above[min(count + 1, cap)]])
                )
                rows.append(more if entry.required else net.alt([more, above[count]]))
        return rows[0]

    def _further_counted(self, further: Node, count: int, low: int, high: int | None) -> Node:
        """Further members after `count` others. Two may share a name, so at most one counts towards
        `low`.
        """
        net, comma = self._net, self._parts.comma
        missing = max(low - count, 0)
        if missing > 1:
            return FAIL
        most = None if high is None else max(high - count, 0)
        if count:
            return net.repeat(net.seq([comma, further]), missing, most)
        if most == 0:
            return FAIL
        rest = net.repeat(net.seq([comma, further]), 0, None if most is None else most - 1)
        return net.seq([further, rest])

    def _any_order(
        self, entries: list[Entry], members: dict[str, Node], further: Node, low: int
    ) -> Node:
        """Each declared member at most once, further ones between them."""
        required = [members[entry.name] for entry in entries if entry.required]
        optional = [members[entry.name] for entry in entries if not entry.required]
        high = self._facet.high
        # Two further members may share a name, so at most one counts towards the fewest.
        return self._net.once(EachOnce(self._parts.comma, required, optional, low, high, further))
