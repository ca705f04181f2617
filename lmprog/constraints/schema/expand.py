"""Expands a schema into alternatives that contain no applicators.

References are followed, `allOf` is merged and the other applicators are multiplied out: an instance
is valid exactly if one alternative accepts it. `oneOf` is multiplied out only where its branches
are known to be disjoint or are made so by negation. Whether they are disjoint is first looked at in
the raw schemas, which saves building their conjunction. Does not know bytes.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from itertools import takewhile

from lmprog.constraints.constraint import Check, never_stop
from lmprog.constraints.schema.flat import ArrayFacet, Flat, Items, ObjectFacet, Properties
from lmprog.constraints.schema.keywords import (
    ANNOTATIONS,
    ASSERTIONS,
    GROUPS,
    keywords_of,
    mapping,
    refuse,
    strings,
)
from lmprog.constraints.schema.negate import complement
from lmprog.constraints.schema.schema_document import Document, Json, Located, json_key
from lmprog.errors import UnsupportedSchema

_MAX_ALTERNATIVES = 512
_MANY_ALTERNATIVES = 64
"""From so many on, those that contradict themselves plainly are looked for."""
REFUSED = frozenset(["$recursiveRef", "disallow", "extends"])
CLOSING = frozenset(["unevaluatedProperties", "unevaluatedItems"])
_RANK = {keyword: rank for rank, keyword in enumerate(ASSERTIONS)}

_JOINED = frozenset(["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf"])
"""Applicators whose properties come in the order of the text, before or after this object's own.
The others add properties by negation, which declares nothing."""

_TWICE = frozenset(["if", "not", "oneOf"])
"""Applicators that need a schema and its complement, or its complement's."""

Disjoint = Callable[[Located, Located], bool]
LeaveOut = Callable[[UnsupportedSchema], None]
_Done = tuple[int, str, tuple[str, ...] | None, bool, bool, tuple[Flat, ...]]
"""The schema, its base and scope, whether it stands in a negation, whether it is negated, and
the alternatives that it was applied to."""


def weakly(method: Disjoint) -> Disjoint:
    """The method, without a hold on its object: builders are freed at once, not as cycles."""
    found = weakref.WeakMethod(method)

    def call(left: Located, right: Located) -> bool:
        bound = found()
        assert bound is not None, "an expander is asked by its own builder only"
        return bound(left, right)

    return call


@functools.lru_cache(maxsize=4096)
def sorted_keywords(*schema: str) -> tuple[str | None, list[str]]:
    """The first keyword that is refused; the assertions in their order, one for each group."""
    refused = next((keyword for keyword in schema if keyword in REFUSED), None)
    done: set[str] = set()
    asserted = []
    for keyword in sorted([one for one in schema if one in _RANK], key=_RANK.__getitem__):
        if keyword not in done:
            asserted.append(keyword)
            done.update(*(group for group in GROUPS if keyword in group))
    return refused, asserted


class Expander:
    """Expands the schemas of one document. `disjoint` tells whether no instance is valid for both
    schemas.
    """

    def __init__(self, document: Document, disjoint: Disjoint, check: Check = never_stop) -> None:
        self._check = check
        self._document = document
        self._disjoint = disjoint
        self._leave_out: LeaveOut | None = None
        self._following: list[str] = []
        self._done: dict[_Done, tuple[Located, list[Flat]]] = {}
        """What was expanded before of what else is expanded again at each level that it is in, with
        the schema, so that its id stays its."""

    def lenient(self, leave_out: LeaveOut) -> Expander:
        """One that leaves out alternatives where exactness is not possible, and says so."""
        other = Expander(self._document, self._disjoint, self._check)
        other._leave_out = leave_out
        return other

    def expand(self, schemas: Sequence[Located]) -> list[Flat]:
        """The alternatives of the conjunction of all `schemas`."""
        flats = [Flat(path=schemas[0].path if schemas else "#")]
        for schema in schemas:
            flats = self._apply(schema, flats)
        return flats

    def _apply(self, at: Located, flats: list[Flat]) -> list[Flat]:
        self._check()
        if isinstance(at.value, bool):
            return flats if at.value else []
        if _TWICE.isdisjoint(at.value):
            return self._expanded(at, flats)
        return self._once(at, flats, False, self._expanded)

    def _once(
        self,
        at: Located,
        flats: list[Flat],
        is_negated: bool,
        make: Callable[[Located, list[Flat]], list[Flat]],
    ) -> list[Flat]:
        """What `make` gives, made once for a schema wherever it stands: the complement of an `if`
        has the `if` in it, so that nested ones would be expanded twice at every level.
        """
        if self._leave_out is not None or any(
            flat.values is not None or flat.not_values for flat in flats
        ):  # what is left out depends on the place; 1 and True are equal
            return make(at, flats)
        # Annotations of what is negated do not count, which the path says.
        key = (id(at.value), at.base, at.scope, "\0not" in at.path, is_negated, tuple(flats))
        found = self._done.get(key)
        if found is None:
            found = self._done[key] = (at, make(at, flats))
        return found[1]

    def _expanded(self, at: Located, flats: list[Flat]) -> list[Flat]:
        assert not isinstance(at.value, bool), "those are decided before"
        if at.path in self._following:
            raise refuse(at, "$ref", "the schema refers to itself without anything in between")
        self._following.append(at.path)
        try:
            if "unevaluatedProperties" not in at.value and "unevaluatedItems" not in at.value:
                return self._keywords(at, flats)
            # Only what `at` and the schemas below it describe counts as evaluated, so `at` is
            # expanded on its own first.
            alone = [_closed(flat, at) for flat in self._keywords(at, [Flat(path=at.path)])]
            joined = [flat.join(other) for flat in flats for other in alone]
            return self._few(
                at, "unevaluatedProperties", [flat for flat in joined if not flat.impossible]
            )
        finally:
            self._following.pop()

    def _apply_or_nothing(self, at: Located, flats: list[Flat]) -> list[Flat]:
        """For one of several alternatives: none of its own where it may be left out."""
        try:
            return self._apply(at, flats)
        except UnsupportedSchema as why:
            if self._leave_out is None:
                raise
            self._leave_out(why)
            return []

    def _complement(self, at: Located, flats: list[Flat]) -> list[Flat]:
        def make(at: Located, flats: list[Flat]) -> list[Flat]:
            return self._apply(complement(at, self._document, self._leave_out), flats)

        return self._once(at, flats, True, make)

    def _keywords(self, at: Located, flats: list[Flat]) -> list[Flat]:
        schema = keywords_of(at)
        if APPLICATORS.keys().isdisjoint(schema):
            return self._assertions(at, flats)
        # Properties are ordered as in the schema text: first those of keywords before `properties`.
        before = [*takewhile(lambda keyword: keyword != "properties", schema)]
        joined = [keyword for keyword in schema if keyword in _JOINED]
        first = [one for one in joined if one in before and "properties" in schema]
        after = [one for one in joined if one not in first]
        others = [one for one in APPLICATORS if one in schema and one not in _JOINED]
        for keyword in first:
            flats = self._few(at, keyword, APPLICATORS[keyword](self, at, flats))
        flats = self._assertions(at, flats)
        for keyword in after + others:
            flats = self._few(at, keyword, APPLICATORS[keyword](self, at, flats))
        return flats

    def _few(self, at: Located, keyword: str, flats: list[Flat]) -> list[Flat]:
        if len(flats) > _MANY_ALTERNATIVES:
            flats = [flat for flat in flats if not self._is_plainly_impossible(flat)]
        if len(flats) > _MAX_ALTERNATIVES:
            why = refuse(at, keyword, f"more than {_MAX_ALTERNATIVES} alternatives")
            if self._leave_out is None:
                raise why
            self._leave_out(why)
        return flats[:_MAX_ALTERNATIVES]

    def _is_plainly_impossible(self, flat: Flat) -> bool:
        """Whether two schemas of a required property plainly exclude each other."""
        if flat.types != {"object"}:
            return False
        wanted: dict[str, list[Located]] = {name: [] for name in flat.object.required}
        for group in flat.object.properties:
            for name, one in group.named:
                if name in wanted:
                    wanted[name].append(target(one, self._document))
        return any(
            one.value is False or plainly_disjoint(one, other, self._document, self._check)
            for schemas in wanted.values()
            for one, other in itertools.combinations(schemas, 2)
        )

    def _assertions(self, at: Located, flats: list[Flat]) -> list[Flat]:
        schema = keywords_of(at)
        refused, asserted = sorted_keywords(*schema)
        if refused is not None:
            raise refuse(at, refused, "this keyword is not supported")
        for keyword in asserted:
            flats = [ASSERTIONS[keyword](flat, schema[keyword], at) for flat in flats]
        return [flat for flat in flats if not flat.impossible]

    def _ref(self, at: Located, flats: list[Flat]) -> list[Flat]:
        return self._apply(self._document.resolve(at, keywords_of(at)["$ref"]), flats)

    def _dynamic_ref(self, at: Located, flats: list[Flat]) -> list[Flat]:
        return self._apply(
            self._document.resolve_dynamic(at, keywords_of(at)["$dynamicRef"]), flats
        )

    def _branches(self, at: Located, keyword: str) -> list[Located]:
        value = keywords_of(at)[keyword]
        if not isinstance(value, list) or not value:
            raise refuse(at, keyword, "a list of schemas is expected")
        return [at.child(keyword, i) for i in range(len(value))]

    def _all_of(self, at: Located, flats: list[Flat]) -> list[Flat]:
        for branch in self._branches(at, "allOf"):
            flats = self._apply(branch, flats)
        return flats

    def _any_of(self, at: Located, flats: list[Flat]) -> list[Flat]:
        return [
            flat
            for branch in self._branches(at, "anyOf")
            for flat in self._apply_or_nothing(branch, flats)
        ]

    def _one_of(self, at: Located, flats: list[Flat]) -> list[Flat]:
        branches = self._branches(at, "oneOf")
        out: list[Flat] = []
        for i, branch in enumerate(branches):
            chosen = self._apply_or_nothing(branch, flats)
            for k, other in enumerate(branches):
                if i != k and chosen and not self._are_disjoint(branch, other, at):
                    chosen = self._complement(other, chosen)
            out += chosen
        return out

    def _are_disjoint(self, left: Located, right: Located, at: Located) -> bool:
        """`at`: the schema that has both as branches."""
        document = self._document
        one, other = (beside(target(branch, document), at) for branch in (left, right))
        return plainly_disjoint(one, other, document, self._check) or self._disjoint(left, right)

    def _not(self, at: Located, flats: list[Flat]) -> list[Flat]:
        return self._complement(at.child("not"), flats)

    def _if(self, at: Located, flats: list[Flat]) -> list[Flat]:
        """Either `if` and `then` hold, or `if` does not and `else` does."""
        schema = keywords_of(at)
        if not {"then", "else", "unevaluatedProperties", "unevaluatedItems"} & schema.keys():
            return flats  # asserts nothing, and no `unevaluated...` keyword needs its annotations
        condition = at.child("if")
        holds = self._apply_or_nothing(condition, flats)
        fails = self._complement(condition, flats)
        if "then" in schema:
            holds = self._apply(at.child("then"), holds)
        if "else" in schema:
            fails = self._apply(at.child("else"), fails)
        return holds + fails

    def _dependent(self, at: Located, flats: list[Flat], keyword: str) -> list[Flat]:
        """Either the property is absent (or this is not an object), or the dependent
        schema holds.
        """
        for name, needed in mapping(keywords_of(at)[keyword], at, keyword).items():
            path = f"{at.path}/{keyword}/{name}"
            absent = at.sibling(f"{path}/absent", {"properties": {name: False}})
            if isinstance(needed, list):
                present: Json = {
                    "type": "object",
                    "required": [name, *strings(needed, at, keyword)],
                }
                there = self._apply(at.sibling(f"{path}/present", present), flats)
            else:
                there = self._apply(
                    at.sibling(f"{path}/present", {"type": "object", "required": [name]}), flats
                )
                there = self._apply_or_nothing(at.child(keyword, name), there)
            flats = self._apply(absent, flats) + there
        return flats


def _closed(flat: Flat, at: Located) -> Flat:
    """Applies `unevaluated...` to whatever no schema below `at` has described in this
    alternative.
    """
    schema = keywords_of(at)
    if "unevaluatedProperties" in schema:
        groups = [group for group in flat.object.properties if not _negated(_schemas_of(group))]
        if all(group.additional is None for group in groups):
            anything = at.sibling(f"{at.path}/unevaluatedProperties/\0any", True)
            named = {name: anything for group in groups for name, _ in group.named}
            patterns = {pattern: anything for group in groups for pattern, _ in group.patterns}
            rest = at.child("unevaluatedProperties")
            closed = Properties(tuple(named.items()), tuple(patterns.items()), rest)
            flat = flat._replace(
                object=flat.object.join(ObjectFacet(properties=(closed,), path=at.path))
            )
    if "unevaluatedItems" in schema:
        told = [items for items in flat.array.items if not _negated([*items.prefix, items.rest])]
        if all(items.rest is None for items in told):
            length = max((len(items.prefix) for items in told), default=0)
            anything = at.sibling(f"{at.path}/unevaluatedItems/\0any", True)
            closed_items = Items((anything,) * length, _unevaluated_item(flat, at))
            flat = flat._replace(array=flat.array.join(ArrayFacet(items=(closed_items,))))
    return flat


def _unevaluated_item(flat: Flat, at: Located) -> Located:
    """An item that no keyword describes by its place: one that `contains` matches is evaluated."""
    rest = at.child("unevaluatedItems")
    matched = [one.schema for one in flat.array.contains if not _negated([one.schema])]
    if not matched:
        return rest
    ways: list[Json] = [rest.value, *(schema.value for schema in matched)]
    path = "+".join([rest.path, *(schema.path for schema in matched)])
    return at.sibling(f"{at.path}/unevaluatedItems/\0or/{path}", {"anyOf": ways})


def _schemas_of(group: Properties) -> list[Located | None]:
    return [
        *(located for _, located in group.named),
        *(located for _, located in group.patterns),
        group.additional,
    ]


def _negated(schemas: list[Located | None]) -> bool:
    """Whether any schema comes from a negation, whose annotations do not count as evaluation."""
    return any(located is not None and "\0not" in located.path for located in schemas)


APPLICATORS: dict[str, Callable[[Expander, Located, list[Flat]], list[Flat]]] = {
    "$ref": Expander._ref,
    "$dynamicRef": Expander._dynamic_ref,
    "allOf": Expander._all_of,
    "if": Expander._if,
    "not": Expander._not,
    "dependentRequired": lambda self, at, flats: self._dependent(at, flats, "dependentRequired"),
    "dependentSchemas": lambda self, at, flats: self._dependent(at, flats, "dependentSchemas"),
    "dependencies": lambda self, at, flats: self._dependent(at, flats, "dependencies"),
    "anyOf": Expander._any_of,
    "oneOf": Expander._one_of,
}


# --- whether schemas exclude each other

_MAX_COMPARED = 4


def target(at: Located, document: Document) -> Located:
    """Follows a schema that consists of a reference only."""
    for _ in range(_MAX_COMPARED):
        if not isinstance(at.value, dict) or at.value.keys() - ANNOTATIONS != {"$ref"}:
            break
        at = document.resolve(at, at.value["$ref"])
    return at


def beside(branch: Located, at: Located) -> Located:
    """The branch with the type and the required names that the schema `at`, which has it, says."""
    if not isinstance(branch.value, dict) or not isinstance(at.value, dict):
        return branch
    names = [*_names(branch.value.get("required")), *_names(at.value.get("required"))]
    also: dict[str, Json] = {"required": list[Json](dict.fromkeys(names))} if names else {}
    if "type" in at.value:
        also["type"] = branch.value.get("type", at.value["type"])
    return branch.sibling(branch.path, {**branch.value, **also})


def _names(value: Json) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def plainly_disjoint(
    left: Located, right: Located, document: Document, check: Check, depth: int = 0
) -> bool:
    """Calls `check` for each pair: schemas that many names share are compared again and again."""
    check()
    if not isinstance(left.value, dict) or not isinstance(right.value, dict):
        return left.value is False or right.value is False
    types = _types(left.value), _types(right.value)
    if types[0] is not None and types[1] is not None and not types[0] & types[1]:
        return True
    values = _values(left.value), _values(right.value)
    if values[0] is not None and values[1] is not None:
        return set(map(json_key, values[0])).isdisjoint(map(json_key, values[1]))
    if depth == _MAX_COMPARED or {"object"} not in types:
        return False
    return any(
        plainly_disjoint(
            target(left.child("properties", name), document),
            target(right.child("properties", name), document),
            document,
            check,
            depth + 1,
        )
        for name in _told_apart_by(left.value, right.value)
    )


def _types(schema: dict[str, Json]) -> set[str] | None:
    """The declared types, with integers as numbers; None if no type is declared."""
    kind = schema.get("type")
    if kind is None:
        return None
    names = kind if isinstance(kind, list) else [kind]
    return {"number" if name == "integer" else str(name) for name in names}


def _values(schema: dict[str, Json]) -> list[Json] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _told_apart_by(left: dict[str, Json], right: dict[str, Json]) -> list[str]:
    """The properties that both schemas require and describe."""
    described, others = left.get("properties"), right.get("properties")
    if not isinstance(described, dict) or not isinstance(others, dict):
        return []
    names = described.keys() & others.keys() & {*_names(right.get("required"))}
    return [name for name in _names(left.get("required")) if name in names]
