"""The assertion keywords of JSON Schema: each reads its value and narrows a flat schema.

Malformed values are rejected with keyword and path. Applicators that produce alternatives are in
`expand.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from lmprog.constraints.schema.flat import (
    TYPES,
    ArrayFacet,
    Bound,
    Contains,
    Fault,
    Flat,
    Items,
    NumberFacet,
    ObjectFacet,
    Properties,
    Sourced,
    StringFacet,
    Witness,
)
from lmprog.constraints.schema.schema_document import Json, Located, escape
from lmprog.errors import UnsupportedSchema

NOT_PATTERN, NOT_VALUES, FRACTIONAL = "\0notPattern", "\0notValues", "\0fractional"
NOT_FORMAT, NOT_MULTIPLE, REPEATS = "\0notFormat", "\0notMultiple", "\0repeats"
WITNESS, FAULT, CONTAINS_FROM = "\0witness", "\0fault", "\0containsFrom"
"""Keywords of our own, made by negation; documents with such keys are refused."""

Keyword = Callable[[Flat, Json, Located], Flat]

ANNOTATIONS = frozenset(
    [
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
    ]
)
"""Keywords that say nothing about validity, whatever stands beside them."""


def refuse(at: Located, keyword: str, why: str) -> UnsupportedSchema:
    path = f"{at.path}/{keyword}"
    return UnsupportedSchema(f"{keyword} at {path}: {why}", keyword=keyword, path=path)


def keywords_of(at: Located) -> dict[str, Json]:
    assert isinstance(at.value, dict)
    return at.value


def _number(value: Json, at: Located, keyword: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise refuse(at, keyword, "a number is expected")
    return Decimal(value)


def count(value: Json, at: Located, keyword: str) -> int:
    number = _number(value, at, keyword)
    if number < 0 or number != number.to_integral_value() or number >= 1 << 31:
        raise refuse(at, keyword, "a count of less than 2**31 is expected")
    return int(number)


def strings(value: Json, at: Located, keyword: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise refuse(at, keyword, "a list of strings is expected")
    return tuple(str(item) for item in value)


def mapping(value: Json, at: Located, keyword: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise refuse(at, keyword, "an object is expected")
    return value


def _type(flat: Flat, value: Json, at: Located) -> Flat:
    names = [value] if isinstance(value, str) else value
    known = isinstance(names, list) and all(
        isinstance(name, str) and (name in TYPES or name == "integer") for name in names
    )
    if not isinstance(names, list) or not known:
        raise refuse(at, "type", f"{value!r} is not a type")
    types = frozenset("number" if name == "integer" else str(name) for name in names)
    if "integer" in names and "number" not in names:
        flat = flat._replace(number=flat.number.join(NumberFacet(integer=True)))
    return flat.of_types(types)


def _enum(flat: Flat, value: Json, at: Located) -> Flat:
    if not isinstance(value, list):
        raise refuse(at, "enum", "a list is expected")
    return flat.only(tuple(value))


def _const(flat: Flat, value: Json, at: Located) -> Flat:
    return flat.only((value,))


def _bound(keyword: str) -> Keyword:
    is_low = keyword.endswith("inimum")

    def narrow(flat: Flat, value: Json, at: Located) -> Flat:
        siblings = keywords_of(at)
        if isinstance(value, bool) and keyword.startswith(
            "exclusive"
        ):  # draft 4: a boolean beside the bound
            return flat
        old_flag = siblings.get("exclusiveMinimum" if is_low else "exclusiveMaximum") is True
        bound = Bound(_number(value, at, keyword), keyword.startswith("exclusive") or old_flag)
        facet = NumberFacet(low=bound) if is_low else NumberFacet(high=bound)
        return flat._replace(number=flat.number.join(facet))

    return narrow


def _multiple_of(make: Callable[[Decimal], NumberFacet]) -> Keyword:
    def narrow(flat: Flat, value: Json, at: Located) -> Flat:
        number = _number(value, at, "multipleOf")
        if number <= 0:
            raise refuse(at, "multipleOf", "a number above 0 is expected")
        return flat._replace(number=flat.number.join(make(number)))

    return narrow


def _string(keyword: str, make: Callable[[Json, Located], StringFacet]) -> Keyword:
    def narrow(flat: Flat, value: Json, at: Located) -> Flat:
        return flat._replace(string=flat.string.join(make(value, at)))

    return narrow


def _sourced(value: Json, at: Located, keyword: str) -> Sourced:
    if not isinstance(value, str):
        raise refuse(at, keyword, "a string is expected")
    return Sourced(value, f"{at.path}/{keyword}")


def _items(flat: Flat, _: Json, at: Located) -> Flat:
    """Merges `prefixItems`, `items` (a list of schemas in older drafts) and `additionalItems`."""
    schema = keywords_of(at)
    old_list = isinstance(schema.get("items"), list)
    listed = "items" if old_list else "prefixItems"
    values = schema.get(listed, [])
    if not isinstance(values, list):
        raise refuse(at, listed, "a list of schemas is expected")
    prefix = tuple(at.child(listed, i) for i in range(len(values)))
    further = "additionalItems" if old_list else "items"
    rest = at.child(further) if further in schema else None
    return flat._replace(array=flat.array.join(ArrayFacet(items=(Items(prefix, rest),))))


def _array(make: Callable[[Json, Located], ArrayFacet]) -> Keyword:
    def narrow(flat: Flat, value: Json, at: Located) -> Flat:
        return flat._replace(array=flat.array.join(make(value, at)))

    return narrow


def _unique(value: Json, at: Located) -> ArrayFacet:
    if not isinstance(value, bool):
        raise refuse(at, "uniqueItems", "true or false is expected")
    return ArrayFacet(unique=f"{at.path}/uniqueItems" if value else None)


def _contains(_: Json, at: Located) -> ArrayFacet:
    schema = keywords_of(at)
    low = count(schema.get("minContains", 1), at, "minContains")
    high = count(schema["maxContains"], at, "maxContains") if "maxContains" in schema else None
    begin = count(schema.get(CONTAINS_FROM, 0), at, "prefixItems")
    return ArrayFacet(contains=(Contains(at.child("contains"), low, high, begin),))


def _object(make: Callable[[Json, Located], ObjectFacet]) -> Keyword:
    def narrow(flat: Flat, value: Json, at: Located) -> Flat:
        return flat._replace(object=flat.object.join(make(value, at)))

    return narrow


def _not_values(flat: Flat, value: Json, at: Located) -> Flat:
    assert isinstance(value, list), at.path
    return flat.without(tuple(value))


def properties_of(_: Json, at: Located) -> ObjectFacet:
    """`properties`, `patternProperties` and `additionalProperties`, which depend on each other."""
    schema = keywords_of(at)
    named = mapping(schema.get("properties", {}), at, "properties")
    patterns = mapping(schema.get("patternProperties", {}), at, "patternProperties")
    where = f"{at.path}/patternProperties"
    within = f"{at.path}/properties/"
    return ObjectFacet(
        properties=(
            Properties(
                tuple([(name, at.sibling(within + escape(name), named[name])) for name in named]),
                tuple(
                    (Sourced(pattern, where), at.child("patternProperties", pattern))
                    for pattern in patterns
                ),
                at.child("additionalProperties") if "additionalProperties" in schema else None,
            ),
        ),
        path=at.path,
    )


def _fault(value: Json, at: Located) -> ObjectFacet:
    parts = mapping(value, at, FAULT)
    members = mapping(parts["properties"], at, FAULT)
    named = tuple((name, at.child(FAULT, "properties", name)) for name in members)
    nothing = at.sibling(f"{at.path}/{FAULT}/absent", False)
    absent = tuple((name, nothing) for name in strings(parts["required"], at, FAULT))
    return ObjectFacet(faults=(Fault(absent, named),), path=at.path)


def required_of(value: Json, at: Located) -> ObjectFacet:
    if isinstance(value, bool):  # draft 3: a boolean inside the property's own schema
        raise refuse(at, "required", "a list of names is expected")
    return ObjectFacet(required=strings(value, at, "required"), path=at.path)


ASSERTIONS: dict[str, Keyword] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    **{
        keyword: _bound(keyword)
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    },
    "multipleOf": _multiple_of(lambda number: NumberFacet(multiples=(number,))),
    NOT_MULTIPLE: _multiple_of(lambda number: NumberFacet(not_multiples=(number,))),
    "minLength": _string("minLength", lambda v, at: StringFacet(low=count(v, at, "minLength"))),
    "maxLength": _string("maxLength", lambda v, at: StringFacet(high=count(v, at, "maxLength"))),
    "pattern": _string(
        "pattern", lambda v, at: StringFacet(patterns=(_sourced(v, at, "pattern"),))
    ),
    "format": _string("format", lambda v, at: StringFacet(formats=(_sourced(v, at, "format"),))),
    NOT_PATTERN: _string(
        NOT_PATTERN, lambda v, at: StringFacet(not_patterns=(_sourced(v, at, "not"),))
    ),
    NOT_FORMAT: _string(
        NOT_FORMAT, lambda v, at: StringFacet(not_formats=(_sourced(v, at, "not"),))
    ),
    NOT_VALUES: _not_values,
    FRACTIONAL: lambda flat, _, at: flat._replace(
        number=flat.number.join(NumberFacet(fractional=True))
    ),
    "prefixItems": _items,
    "items": _items,
    "minItems": _array(lambda v, at: ArrayFacet(low=count(v, at, "minItems"))),
    "maxItems": _array(lambda v, at: ArrayFacet(high=count(v, at, "maxItems"))),
    "uniqueItems": _array(_unique),
    "contains": _array(_contains),
    REPEATS: _array(lambda v, at: ArrayFacet(repeats=f"{at.path}/not")),
    "properties": _object(properties_of),
    "patternProperties": _object(properties_of),
    "additionalProperties": _object(properties_of),
    "required": _object(required_of),
    "minProperties": _object(
        lambda v, at: ObjectFacet(low=count(v, at, "minProperties"), path=at.path)
    ),
    "maxProperties": _object(
        lambda v, at: ObjectFacet(high=count(v, at, "maxProperties"), path=at.path)
    ),
    WITNESS: _object(
        lambda _, at: ObjectFacet(
            witnesses=(Witness(at.child(WITNESS, "name"), at.child(WITNESS, "value")),),
            path=at.path,
        )
    ),
    FAULT: _object(_fault),
    "propertyNames": _object(
        lambda v, at: ObjectFacet(names=(at.child("propertyNames"),), path=at.path)
    ),
}
"""Keywords of one group (`items`, `properties`) appear under each name; the first one present
speaks for all.
"""

GROUPS: tuple[frozenset[str], ...] = (
    frozenset(["prefixItems", "items"]),
    frozenset(["properties", "patternProperties", "additionalProperties"]),
)
