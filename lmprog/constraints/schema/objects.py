"""Builds the nodes of objects: declared properties in order, then further ones, counts and names,
and members that must meet conditions which only negation asks for: witnesses and faults.

A declared name is written without escapes. The names of further properties are all strings that
differ from every declared name in any spelling, so no property escapes its schema. Does not know
how values are built.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from json.encoder import encode_basestring
from typing import NamedTuple

from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.finish import finish
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import EMPTY, EVERY_BYTE, FAIL, EachOnce, NetBuilder, Node
from lmprog.constraints.schema.flat import ObjectFacet, Properties, Sourced, Witness
from lmprog.constraints.schema.schema_document import Located
from lmprog.constraints.schema.strings import Searched, search_pattern
from lmprog.constraints.text_set import TextSet, contains, lower_text_set
from lmprog.errors import UnsatisfiableConstraint, UnsupportedSchema


class Entry(NamedTuple):
    name: str
    value: Node
    required: bool


@dataclass(frozen=True, slots=True)
class ObjectParts:
    """The schema compiler's callbacks for building parts of an object."""

    net: NetBuilder
    limits: CompileLimits
    any_order: bool
    comma: Node
    colon: Node
    named: Callable[[bytes], Node]
    """The name of a member, in quotes, and its colon."""
    compile_schemas: Callable[[Sequence[Located]], Node]
    name_sets: Callable[[Sequence[Located]], list[TextSet]]
    """The sets of strings whose union a list of schemas takes."""
    lower_names: Callable[[TextSet], Node]
    """A set of strings as they are written, quotes included."""


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


# --- conditions of negation

_MAX_CELLS = 4000
_MAX_WITNESSES = 4
_MAX_DOUBTFUL = 5
"""Conditions that a member with one name may meet or not."""


@dataclass(frozen=True, slots=True)
class FurtherMembers:
    """The object builder's callbacks."""

    any: Node
    """One further member, whichever."""
    witnesses: Callable[[Sequence[Witness]], Node]
    """One that is a witness of all of these."""
    counted: Callable[[int, int, int | None], Node]
    """Those after so many others, with bounds for all."""
    member: Callable[[Entry], tuple[Node, Node]]
    schemas_of: Callable[[str], list[Located]]
    refuse: Callable[[str, str], UnsupportedSchema]


def without_faults(facet: ObjectFacet) -> list[ObjectFacet]:
    """The same as alternatives, one for each way to have all the faults."""
    named = [one for fault in facet.faults for one in (*fault.members, *fault.absent)]
    # All of their names are declared in each alternative, so that each counts as a member.
    known = tuple([(name, at.sibling(f"{at.path}/any", True)) for name, at in named])
    ways = [facet._replace(faults=()).join(ObjectFacet((Properties(known, (), None),)))]
    for fault in facet.faults:
        events: list[tuple[tuple[str, ...], tuple[str, Located]]] = [
            *(((), one) for one in fault.absent),
            *(((one[0],), one) for one in fault.members),
        ]
        ways = [
            way.join(ObjectFacet((Properties((one,), (), None),), required))
            for way in ways
            for required, one in events
        ]
    return ways


class ConditionalMembers:
    """The content of an object, braces excluded."""

    def __init__(self, facet: ObjectFacet, parts: ObjectParts, others: FurtherMembers) -> None:
        self._facet = facet
        self._parts = parts
        self._net = parts.net
        self._others = others
        self._tails: dict[tuple[tuple[int, ...], int | None, bool], Node] = {}

    @property
    def may_be_empty(self) -> bool:
        """As far as the conditions allow it."""
        return not self._facet.witnesses and all(one.absent for one in self._facet.faults)

    def node(self, entries: list[Entry]) -> Node:
        """Members in order that meet conditions: a witness of each of the facet's, and each of its
        faults. A state is the number of members, as far as bounds need it, and the set of
        conditions that were met.
        """
        net, comma, high = self._net, self._parts.comma, self._facet.high
        witnesses = self._facet.witnesses
        if self._parts.any_order:
            raise self._others.refuse("not", "negated properties in any order")
        by_value = sum(map(_takes_more_than_a_name, witnesses)) if self._others.any != FAIL else 0
        if len(witnesses) > _MAX_WITNESSES or by_value > 1:
            raise self._others.refuse("not", "too many negated properties")
        num_required = sum(entry.required for entry in entries)
        low = self._facet.low if self._facet.low > num_required else 0
        cap = max(low, high or 0, 1)
        steps = [self._members_by_condition(entry) for entry in entries]
        levels = self._reached(entries, steps, cap)
        rows = {cell: self._last(*cell, low) for cell in levels.pop()}
        for entry, members in zip(reversed(entries), reversed(steps), strict=True):
            above, rows = rows, {}
            for n, met in levels.pop():
                begun, after = comma if n else EMPTY, min(n + 1, cap)
                ways = []
                if high is None or n < high:
                    ways = [
                        net.seq([begun, *member, above[after, met | more]])
                        for more, member in members.items()
                    ]
                if not entry.required:
                    ways.append(above[n, met | self._conditions_without(entry.name)])
                rows[n, met] = net.alt(ways)
        return rows[0, 0]

    def _reached(
        self, entries: list[Entry], steps: list[dict[int, tuple[Node, Node]]], cap: int
    ) -> list[set[tuple[int, int]]]:
        """How many members there may be before each entry and behind the last, as far as bounds
        need it, and what conditions they meet.
        """
        levels, total = [{(0, 0)}], 0
        for entry, members in zip(entries, steps, strict=True):
            absent = self._conditions_without(entry.name)
            there = {(min(n + 1, cap), met | more) for n, met in levels[-1] for more in members}
            without = set() if entry.required else {(n, met | absent) for n, met in levels[-1]}
            levels.append(there | without)
            total += len(levels[-1])
            if total > _MAX_CELLS:
                raise self._others.refuse(
                    "not", "too many negated properties, or bounds this large"
                )
        return levels

    def _last(self, count: int, met: int, low: int) -> Node:
        """Further members after `count` others, where the conditions `met` are."""
        witnesses, high = self._facet.witnesses, self._facet.high
        if met >> len(witnesses) != (1 << len(self._facet.faults)) - 1:
            return FAIL
        missing = tuple([i for i in range(len(witnesses)) if not met >> i & 1])
        if not missing:
            return self._others.counted(count, low, high)
        room = None if high is None else high - count
        return FAIL if low - count > 1 else self._witnessed(missing, room, count > 0)

    def _witnessed(self, missing: tuple[int, ...], room: int | None, begun: bool) -> Node:
        """At most `room` further members with all `missing` witnesses among them. Of several with
        one name the last one counts, so one that is a witness by its value is the last of all.
        """
        net, comma, further = self._net, self._parts.comma, self._others.any
        less = None if room is None else room - 1
        if not missing:
            return net.repeat(net.seq([comma, further]), 0, room)
        if room == 0:
            return FAIL
        key = (missing, room, begun)
        found = self._tails.get(key)
        if found is not None:
            return found
        before, ways = comma if begun else EMPTY, []
        for size in range(1, len(missing) + 1):
            for chosen in itertools.combinations(missing, size):
                left = tuple([i for i in missing if i not in chosen])
                ones = [self._facet.witnesses[i] for i in chosen]
                by_value = any(_takes_more_than_a_name(one) for one in ones)
                if by_value and left:
                    continue
                behind = EMPTY if by_value else self._witnessed(left, less, True)
                ways.append(net.seq([before, self._others.witnesses(ones), behind]))
        if room is None and begun:
            made = net.seq([net.repeat(net.seq([comma, further]), 0, None), net.alt(ways)])
        else:
            others = net.seq([before, further, self._witnessed(missing, less, True)])
            made = net.alt([*ways, others])
        self._tails[key] = made
        return made

    def _conditions_without(self, name: str) -> int:
        """The conditions that are met where there is no such member, as bits."""
        first = len(self._facet.witnesses)
        return sum(
            1 << first + i for i, one in enumerate(self._facet.faults) if name in dict(one.absent)
        )

    def _members_by_condition(self, entry: Entry) -> dict[int, tuple[Node, Node]]:
        """The member for each set of conditions that it may meet, as bits."""
        witnesses = self._facet.witnesses
        schemas = {
            i: one.value
            for i, one in enumerate(witnesses)
            if any(contains(names, entry.name) for names in self._parts.name_sets([one.name]))
        }
        for i, fault in enumerate(self._facet.faults, len(witnesses)):
            schemas.update((i, one) for name, one in fault.members if name == entry.name)
        same: dict[str, list[int]] = {}
        for i, one in schemas.items():
            same.setdefault(f"{one.base} {one.value!r}", []).append(i)
        own, always = self._others.schemas_of(entry.name), 0
        doubtful: list[tuple[Located, int]] = []
        for conditions in same.values():
            schema, bits = schemas[conditions[0]], sum(1 << i for i in conditions)
            if self._parts.compile_schemas([*own, schema]) == FAIL:
                continue
            if self._parts.compile_schemas([*own, _negated(schema)]) == FAIL:
                always |= bits
            else:
                doubtful.append((schema, bits))
        if len(doubtful) > _MAX_DOUBTFUL:
            raise self._others.refuse("not", "too many negated properties of one name")
        found: dict[int, tuple[Node, Node]] = {}
        for size in range(len(doubtful) + 1):
            for chosen in itertools.combinations(doubtful, size):
                value = entry.value
                if chosen and value != FAIL:
                    value = self._parts.compile_schemas([*own, *(schema for schema, _ in chosen)])
                if value != FAIL:
                    bits = always | sum(bits for _, bits in chosen)
                    found[bits] = self._others.member(entry._replace(value=value))
        return found


def _negated(schema: Located) -> Located:
    value = schema.value
    if isinstance(value, dict) and value.keys() == {"not"}:
        return schema.child("not")
    return schema.sibling(f"{schema.path}/\0not", {"not": value})


def _takes_more_than_a_name(witness: Witness) -> bool:
    return witness.value.value not in (True, {}, {"not": False})
