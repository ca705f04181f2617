"""Objects that must meet conditions which only negation asks for: witnesses and faults.

A state is the number of members, as far as bounds need it, and the set of conditions that were met.
Does not know how further members and values are built.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lmprog.constraints.net import EMPTY, FAIL, Node
from lmprog.constraints.schema.flat import ObjectFacet, Properties, Witness
from lmprog.constraints.schema.object_parts import Entry, ObjectParts
from lmprog.constraints.schema.schema_document import Located
from lmprog.constraints.textset import contains
from lmprog.errors import UnsupportedSchema

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
