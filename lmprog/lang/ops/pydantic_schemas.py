"""The JSON schema of a pydantic model, as exact as what pydantic then checks.

pydantic's own generator leaves out what it has no keyword for (the digits of a `Decimal`, the
bounds of a `timedelta`), and asks sets for unique items, which a set does not need. Imports
pydantic only for a model that the caller has, so it is then installed.
"""

from __future__ import annotations

import datetime
import functools
import importlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, TypeAlias

from lmprog.errors import UnsupportedSchema

JsonObject: TypeAlias = dict[str, Any]

INT64 = 2**63
_MOST_FEW = 2000
"""Sets over at most so many values have unique items; the same number as in the compiler."""
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_MOST_PLACES = 8
"""Digits after the point that are tried where only the number of all digits is bounded."""


def model_schema(model: Any) -> JsonObject:
    """The schema of what `model.model_validate` takes."""
    made: JsonObject = model.model_json_schema(schema_generator=_generator())
    return made


def bounded_integer(schema: JsonObject) -> JsonObject:
    """An integer without a bound on a side has that of 64 bits there, so that its digits end. A
    bound beyond these on the other side leaves it open.
    """
    low, high = (
        schema.get("minimum", schema.get("exclusiveMinimum")),
        schema.get("maximum", schema.get("exclusiveMaximum")),
    )
    out = dict(schema)
    if low is None and (high is None or high > -INT64):
        out["minimum"] = -INT64
    if high is None and (low is None or low < INT64 - 1):
        out["maximum"] = INT64 - 1
    return out


def without_default_bounds(schema: Any) -> Any:
    """The schema as it is shown to a model: without the bounds that `bounded_integer` adds."""
    if isinstance(schema, list):
        return [without_default_bounds(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {key: without_default_bounds(part) for key, part in schema.items()}
    if shown.get("type") == "integer":
        for keyword, bound in (("minimum", -INT64), ("maximum", INT64 - 1)):
            if shown.get(keyword) == bound:
                del shown[keyword]
    return shown


def decimal_schema(keywords: Mapping[str, Any]) -> JsonObject:
    """A number with the bounds, the digits and the decimal places that `said` has."""
    digits, places = keywords.get("max_digits"), keywords.get("decimal_places")
    bounds: JsonObject = {
        keyword: _plain(keywords[name])
        for name, keyword in _BOUNDS.items()
        if keywords.get(name) is not None
    }
    if keywords.get("multiple_of") is not None:
        bounds["allOf"] = [{"multipleOf": _plain(keywords["multiple_of"])}]
    schema = {"type": "number", **bounds}
    if digits is None and places is None:
        return schema
    if digits is None and places is not None:
        return {**schema, "multipleOf": _unit(places)}
    assert digits is not None
    if places is not None:
        return _with_digits(schema, digits, places)
    return {
        "anyOf": [_with_digits(schema, digits, at) for at in range(min(digits, _MOST_PLACES) + 1)]
    }


def _with_digits(schema: JsonObject, digits: int, places: int) -> JsonObject:
    """At most `digits` digits, `places` of them after the point."""
    most = _plain(Decimal(10) ** max(digits - places, 0))
    sizes = {"exclusiveMinimum": -most, "exclusiveMaximum": most}
    return {
        **schema,
        "multipleOf": _unit(min(places, digits)),
        "allOf": [*schema.get("allOf", ()), sizes],
    }


def _unit(places: int) -> float | int:
    """The least number above 0 with so many decimal places."""
    return _plain(Decimal(1).scaleb(-places))


def _plain(value: Any) -> float | int:
    """A number as JSON writes it."""
    number = Decimal(str(value))
    return int(number) if number == number.to_integral_value() else float(number)


def set_schema(items: JsonObject | bool, fewest: int) -> JsonObject:
    """A list whose values become a set. Equal ones fall together, so they are excluded only where
    the set must not be smaller, or where there are few values anyway.
    """
    schema: JsonObject = {"type": "array", "items": items}
    is_few = isinstance(items, dict) and "enum" in items and len(items["enum"]) <= _MOST_FEW
    return {**schema, "uniqueItems": True} if fewest > 1 or is_few else schema


def duration_schema(keywords: Mapping[str, Any]) -> JsonObject:
    """An ISO 8601 duration; a number of seconds where there are bounds."""
    bounds: JsonObject = {}
    for name, keyword in _BOUNDS.items():
        bound = keywords.get(name)
        if isinstance(bound, datetime.timedelta):
            bounds[keyword] = _plain(bound / datetime.timedelta(seconds=1))
    if not bounds:
        return {"type": "string", "format": "duration"}
    return bounded_integer({"type": "integer", **bounds})


@functools.cache
def _generator() -> type:
    """pydantic's generator with our types in it."""
    base: Any = importlib.import_module("pydantic.json_schema").GenerateJsonSchema

    class ExactGenerator(base):  # type: ignore[misc]
        def decimal_schema(self, schema: Any) -> JsonObject:
            return decimal_schema(schema)

        def int_schema(self, schema: Any) -> JsonObject:
            return bounded_integer(super().int_schema(schema))

        def timedelta_schema(self, schema: Any) -> JsonObject:
            return duration_schema(schema)

        def set_schema(self, schema: Any) -> JsonObject:
            made: JsonObject = super().set_schema(schema)
            unique = set_schema(made["items"], schema.get("min_length") or 0).get("uniqueItems")
            return made if unique else {k: v for k, v in made.items() if k != "uniqueItems"}

        frozenset_schema = set_schema

        def bytes_schema(self, schema: Any) -> JsonObject:
            """One character is one byte where their number is bounded."""
            made: JsonObject = super().bytes_schema(schema)
            return {**made, "pattern": "^[ -~]*$"} if "maxLength" in made else made

        def datetime_schema(self, schema: Any) -> JsonObject:
            made: JsonObject = super().datetime_schema(schema)
            is_naive = schema.get("tz_constraint") == "naive"
            return {**made, "format": "date-time-local"} if is_naive else made

        def url_schema(self, schema: Any) -> JsonObject:
            made: JsonObject = super().url_schema(schema)
            is_web = set(schema.get("allowed_schemes") or ()) == {"http", "https"}
            return {**made, "format": "http-url"} if is_web else made

        def complex_schema(self, schema: Any) -> JsonObject:
            raise UnsupportedSchema("a complex number has no JSON schema", keyword="type", path="#")

    return ExactGenerator
