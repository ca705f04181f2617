"""The complement of a schema, as a schema; needed by `not`, `if` and overlapping `oneOf` branches.

A schema is the conjunction of its keywords, so its complement is the `anyOf` of the keywords'
complements. Each is written with ordinary keywords and some internal ones that no document can
contain. A keyword without such a complement is rejected with its name and path.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence, Set

from lmprog.constraints.schema.flat import TYPES
from lmprog.constraints.schema.keywords import (
    CONTAINS_FROM,
    FAULT,
    FRACTIONAL,
    NOT_FORMAT,
    NOT_MULTIPLE,
    NOT_PATTERN,
    NOT_VALUES,
    REPEATS,
    WITNESS,
    count,
    keywords_of,
    mapping,
    refuse,
    strings,
)
from lmprog.constraints.schema.schema_document import Document, Json, Located
from lmprog.errors import UnsupportedSchema

_WITHOUT_COMPLEMENT = frozenset(
    [
        *("unevaluatedProperties", "unevaluatedItems", "disallow", "extends"),
        *("$recursiveRef", REPEATS),
    ]
)
"""Keywords with a meaning that no list of alternatives negates."""
_MAX_ONE_OF = 12
"""Branches of a `oneOf` whose pairs are taken one by one."""
_ANNOTATIONS = frozenset(
    [
        *(
            "$schema",
            "$id",
            "id",
            "$anchor",
            "$dynamicAnchor",
            "$comment",
            "$defs",
            "definitions",
            "$vocabulary",
            "title",
            "description",
        ),
        *(
            "default",
            "examples",
            "deprecated",
            "readOnly",
            "writeOnly",
            "contentEncoding",
            "contentMediaType",
        ),
        *("contentSchema", "minContains", "maxContains", "then", "else", CONTAINS_FROM),
    ]
)


def complement(
    at: Located, document: Document, leave_out: Callable[[UnsupportedSchema], None] | None = None
) -> Located:
    """The schema that accepts exactly the values that `at` rejects. With `leave_out`: fewer of
    them where a keyword cannot be negated, of which it is told.
    """
    path = f"{at.path}/\0not"
    if isinstance(at.value, bool):
        return at.sibling(path, not at.value)
    branches: list[Json] = []
    for keyword, value in at.value.items():
        if keyword in _ANNOTATIONS:
            continue
        try:
            if keyword in ("$ref", "$dynamicRef"):
                follow = document.resolve if keyword == "$ref" else document.resolve_dynamic
                target = follow(at, value)
                if len(at.value.keys() - _ANNOTATIONS) == 1:
                    return complement(target, document, leave_out)
                branches.append({"not": _in_its_place(target, at)})
            else:
                branches += _negated(keyword, value, at)
        except UnsupportedSchema as why:
            if leave_out is None:
                raise
            leave_out(why)
    return at.sibling(path, {"anyOf": branches} if branches else False)


def _in_its_place(target: Located, at: Located) -> Json:
    """The schema's value, to stand at another place: references within mean what they mean."""
    if isinstance(target.value, bool) or target.base == at.base:
        return target.value
    return {**target.value, "$id": target.base}


def _negated(keyword: str, value: Json, at: Located) -> list[Json]:
    if keyword in _NEGATED:
        return _NEGATED[keyword](value, at)
    if keyword in _WITHOUT_COMPLEMENT:
        raise refuse(
            at, keyword, "this keyword cannot be negated (in `not`, `if` or overlapping `oneOf`)"
        )
    return []  # unknown: nothing violates it


def _type(value: Json, at: Located) -> list[Json]:
    names = {value} if isinstance(value, str) else set(strings(value, at, "type"))
    if "integer" in names and "number" not in names:
        return [_of(TYPES - names - {"number"}), {"type": "number", FRACTIONAL: True}]
    return [_of(TYPES - names)]


def _of(types: Set[str]) -> Json:
    return {"type": list[Json](sorted(types))}


def _values(value: Json, at: Located) -> list[Json]:
    """Another value than these. Arrays and objects are told by their parts."""
    if not isinstance(value, list):
        raise refuse(at, "enum", "a list is expected")
    plain: list[Json] = [one for one in value if not isinstance(one, list | dict)]
    made = [_exactly(one) for one in value if isinstance(one, list | dict)]
    if not made:
        return [{NOT_VALUES: plain}]
    return [{"allOf": [{NOT_VALUES: plain}, *({"not": one} for one in made)]}]


def _exactly(value: Json) -> Json:
    """The schema of one value."""
    if isinstance(value, list):
        first: list[Json] = [_exactly(one) for one in value]
        size = len(value)
        return {"type": "array", "prefixItems": first, "minItems": size, "maxItems": size}
    if isinstance(value, dict):
        named: dict[str, Json] = {name: _exactly(one) for name, one in value.items()}
        return {
            "type": "object",
            "properties": named,
            "required": list[Json](named),
            "additionalProperties": False,
        }
    return {"const": value}


def _of_type(kind: str, keyword: str) -> Callable[[Json, Located], list[Json]]:
    return lambda value, at: [{"type": kind, keyword: value}]


def _fewer(
    kind: str, keyword: str, opposite: str, step: int
) -> Callable[[Json, Located], list[Json]]:
    """The complement of a count's bound is the opposite bound, shifted by one."""

    def negate(value: Json, at: Located) -> list[Json]:
        bound = count(value, at, keyword) + step
        return [{"type": kind, opposite: bound}] if bound >= 0 else []

    return negate


def _required(value: Json, at: Located) -> list[Json]:
    """Some name is absent; beside `properties` that is said with these."""
    return [] if "properties" in keywords_of(at) else _faults(strings(value, at, "required"), {})


def _properties(value: Json, at: Located) -> list[Json]:
    """Some property is present and violates its schema, or a required one is absent."""
    required = strings(keywords_of(at).get("required", []), at, "required")
    named = mapping(value, at, "properties")
    return _faults(required, {name: {"not": one} for name, one in named.items() if one is not True})


def _faults(absent: Sequence[str], wrong: dict[str, Json]) -> list[Json]:
    """Several ways to be wrong are one alternative: each of many would be multiplied with those of
    others."""
    if len(absent) + len(wrong) > 1:
        return [{"type": "object", FAULT: {"required": list[Json](absent), "properties": wrong}}]
    out: list[Json] = [{"type": "object", "properties": {name: False}} for name in absent]
    for name, one in wrong.items():
        out.append({"type": "object", "required": [name], "properties": {name: one}})
    return out


def _no_fault(value: Json, at: Located) -> list[Json]:
    parts = mapping(value, at, FAULT)
    named: dict[str, Json] = {
        name: {"not": one} for name, one in mapping(parts["properties"], at, FAULT).items()
    }
    return [{"type": "object", "required": parts["required"], "properties": named}]


def _items(value: Json, at: Located) -> list[Json]:
    """Some item behind the first ones violates the schema; or a list of schemas, as older drafts
    have it."""
    if isinstance(value, list):
        return _prefix_items(value, at)
    return _behind(_list(keywords_of(at).get("prefixItems", []), at, "prefixItems"), value)


def _additional_items(value: Json, at: Located) -> list[Json]:
    first = keywords_of(at).get("items")
    return _behind(first, value) if isinstance(first, list) else []


def _behind(first: list[Json], value: Json) -> list[Json]:
    return [{"type": "array", "contains": {"not": value}, CONTAINS_FROM: len(first)}]


def _prefix_items(value: Json, at: Located) -> list[Json]:
    """Some item is present and violates its schema."""
    first = _list(value, at, "prefixItems")
    return [
        {"type": "array", "minItems": i + 1, "prefixItems": [*([True] * i), {"not": schema}]}
        for i, schema in enumerate(first)
    ]


def _contains(value: Json, at: Located) -> list[Json]:
    """Fewer items match, or more."""
    schema = keywords_of(at)
    low = count(schema.get("minContains", 1), at, "minContains")
    most = count(schema["maxContains"], at, "maxContains") if "maxContains" in schema else None
    out: list[Json] = []
    if low == 1:
        out.append({"type": "array", "items": {"not": value}})
    elif low > 1:
        fewer: Json = {"type": "array", "contains": value, "minContains": 0, "maxContains": low - 1}
        out.append(fewer)
    if most is not None:
        out.append({"type": "array", "contains": value, "minContains": most + 1})
    return out


def _additional(value: Json, at: Located) -> list[Json]:
    """Some property that nothing beside it describes violates the schema."""
    if value is True:
        return []
    schema = keywords_of(at)
    named = list[Json](mapping(schema.get("properties", {}), at, "properties"))
    patterns = mapping(schema.get("patternProperties", {}), at, "patternProperties")
    described: list[Json] = [{"pattern": pattern} for pattern in patterns]
    if named:
        described.append({"enum": named})
    return [_witness({"not": {"anyOf": described}} if described else True, {"not": value})]


def _pattern_properties(value: Json, at: Located) -> list[Json]:
    patterns = mapping(value, at, "patternProperties")
    return [_witness({"pattern": pattern}, {"not": schema}) for pattern, schema in patterns.items()]


def _witness(name: Json, value: Json) -> Json:
    return {"type": "object", WITNESS: {"name": name, "value": value}}


def _not_witness(value: Json, at: Located) -> list[Json]:
    raise refuse(at, "additionalProperties", "cannot be negated twice (in `not`, `if` or `oneOf`)")


def _one_of(value: Json, at: Located) -> list[Json]:
    """None of the branches, or two of them."""
    branches = _list(value, at, "oneOf")
    if len(branches) > _MAX_ONE_OF:
        raise refuse(at, "oneOf", f"more than {_MAX_ONE_OF} branches cannot be negated")
    out: list[Json] = [{"allOf": [{"not": branch} for branch in branches]}]
    out.extend({"allOf": list(pair)} for pair in itertools.combinations(branches, 2))
    return out


def _if(value: Json, at: Located) -> list[Json]:
    schema = keywords_of(at)
    out: list[Json] = []
    if "then" in schema:
        out.append({"allOf": [value, {"not": schema["then"]}]})
    if "else" in schema:
        out.append({"allOf": [{"not": value}, {"not": schema["else"]}]})
    return out


def _dependent(value: Json, at: Located) -> list[Json]:
    """Some property is present and what depends on it does not hold: names, or a schema."""
    out: list[Json] = []
    for name, needed in mapping(value, at, "dependencies").items():
        names: Json = [needed] if isinstance(needed, str) else needed
        then: Json = {"required": names} if isinstance(names, list) else names
        broken: Json = {"type": "object", "required": [name], "not": then}
        out.append(broken)
    return out


def _unique(value: Json, at: Located) -> list[Json]:
    return [{"type": "array", REPEATS: True}] if value is True else []


def _list(value: Json, at: Located, keyword: str) -> list[Json]:
    if not isinstance(value, list):
        raise refuse(at, keyword, "a list of schemas is expected")
    return value


_NEGATED: dict[str, Callable[[Json, Located], list[Json]]] = {
    "type": _type,
    "enum": _values,
    "const": lambda value, at: _values([value], at),
    "minimum": _of_type("number", "exclusiveMaximum"),
    "maximum": _of_type("number", "exclusiveMinimum"),
    "exclusiveMinimum": _of_type("number", "maximum"),
    "exclusiveMaximum": _of_type("number", "minimum"),
    "minLength": _fewer("string", "minLength", "maxLength", -1),
    "maxLength": _fewer("string", "maxLength", "minLength", 1),
    "multipleOf": _of_type("number", NOT_MULTIPLE),
    "pattern": _of_type("string", NOT_PATTERN),
    "format": _of_type("string", NOT_FORMAT),
    "minItems": _fewer("array", "minItems", "maxItems", -1),
    "maxItems": _fewer("array", "maxItems", "minItems", 1),
    "items": _items,
    "prefixItems": _prefix_items,
    "additionalItems": _additional_items,
    "contains": _contains,
    "uniqueItems": _unique,
    "minProperties": _fewer("object", "minProperties", "maxProperties", -1),
    "maxProperties": _fewer("object", "maxProperties", "minProperties", 1),
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "patternProperties": _pattern_properties,
    "propertyNames": lambda value, at: [_witness({"not": value}, True)],
    WITNESS: _not_witness,
    FAULT: _no_fault,
    "not": lambda value, at: [value],
    NOT_PATTERN: lambda value, at: [{"type": "string", "pattern": value}],
    NOT_FORMAT: lambda value, at: [{"type": "string", "format": value}],
    NOT_MULTIPLE: lambda value, at: [{"type": "number", "multipleOf": value}],
    NOT_VALUES: lambda value, at: [{"enum": value}],
    FRACTIONAL: lambda value, at: [_of(TYPES - {"number"}), {"type": "integer"}],
    "anyOf": lambda value, at: [
        {"allOf": [{"not": branch} for branch in _list(value, at, "anyOf")]}
    ],
    "oneOf": _one_of,
    "if": _if,
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), _dependent),
    "allOf": lambda value, at: [{"not": branch} for branch in _list(value, at, "allOf")],
}
