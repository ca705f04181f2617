"""Converts Python types to JSON schemas, and generated JSON to values of those types.

Supported: `int float bool str bytes None`, `Any`, `Decimal`, dates, durations, UUIDs, IP addresses
and networks, enums, `Literal`, dataclasses, attrs classes, typed dicts, named tuples, `list tuple
set dict` and their abstract counterparts, `Optional` and unions, `Annotated` with bounds (objects
with attributes such as `ge`, `max_length`, `pattern`) and a description, and pydantic models with
their constraints. Types may be recursive. Objects are closed: only the declared fields are
generated, and each key of a dict with few keys at most once, in their order.

Uses the standard library only; pydantic is used only through models that the caller passes. Knows
no automata: schemas are interpreted where they are compiled.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import types
import typing
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from lmprog.errors import UnsupportedSchema, ValidationFailed
from lmprog.lang.ops.pydantic_schemas import (
    JsonObject,
    bounded_integer,
    decimal_schema,
    duration_schema,
    model_schema,
    set_schema,
)
from lmprog.lang.ops.type_values import (
    MAPPINGS,
    SEQUENCES,
    SETS,
    convert,
    hints_of,
    is_named_tuple,
    is_pydantic,
    is_record,
    name_of,
    record_fields,
    unwrapped,
)
from lmprog.wire.constraints import exact_json

_PLAIN: dict[object, JsonObject] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
    decimal.Decimal: {"type": "number"},
    bytes: {"type": "string"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.time: {"type": "string", "format": "time"},
    datetime.timedelta: {"type": "string", "format": "duration"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    ipaddress.IPv4Address: {"type": "string", "format": "ipv4"},
    ipaddress.IPv6Address: {"type": "string", "format": "ipv6"},
    ipaddress.IPv4Network: {"type": "string", "format": "ipv4network"},
    ipaddress.IPv6Network: {"type": "string", "format": "ipv6network"},
    ipaddress.IPv4Interface: {"type": "string", "format": "ipv4interface"},
    ipaddress.IPv6Interface: {"type": "string", "format": "ipv6interface"},
    list: {"type": "array"},
    dict: {"type": "object"},
}
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "pattern": "pattern",
}
_LENGTHS = {
    "min_length": ("minLength", "minItems", "minProperties"),
    "max_length": ("maxLength", "maxItems", "maxProperties"),
}


def schema_of(tp: object) -> JsonObject:
    """The JSON schema of a type. Raises UnsupportedSchema, with the place in the type, if there is
    none.
    """
    builder = _SchemaBuilder()
    schema = builder.build(tp, "#")
    return {**schema, "$defs": builder.defs} if builder.defs else schema


def value_of(tp: object, text: str) -> object:
    """Parses `text`, JSON for `schema_of(tp)`. Raises ValidationFailed if it does not fit
    the type.
    """
    try:
        return convert(tp, exact_json(text))
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise ValidationFailed(f"the text is no {name_of(tp)}: {error}", text=text) from error


class _SchemaBuilder:
    """Builds one schema; types that may be recursive are defined once, under `$defs`."""

    def __init__(self) -> None:
        self.defs: dict[str, JsonObject] = {}
        self._names: dict[object, str] = {}

    def build(self, tp: object, path: str) -> JsonObject:
        tp = unwrapped(tp)
        try:
            plain = _PLAIN.get(tp)
        except TypeError:
            plain = None  # an unhashable annotation is not a plain type
        if plain is not None:
            return bounded_integer(plain) if tp is int else dict(plain)
        origin, args = typing.get_origin(tp), typing.get_args(tp)
        if origin is typing.Annotated:
            return self._annotated(args, path)
        if origin is typing.Literal:
            return _enumeration(args, path)
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.build(arg, path) for arg in args]}
        if isinstance(tp, type) and issubclass(tp, enum.Enum):
            return _enumeration(tuple(tp), path)
        if is_pydantic(tp) or is_record(tp):
            return self._defined(tp, path)
        return self._container(tp, origin or tp, args, path)

    def _container(
        self, tp: object, origin: object, args: tuple[object, ...], path: str
    ) -> JsonObject:
        if origin in SEQUENCES:
            return {"type": "array", "items": self.build(args[0], f"{path}/items") if args else {}}
        if origin in SETS:
            return set_schema(self.build(args[0], f"{path}/items") if args else True, 0)
        if origin in MAPPINGS:
            return self._mapping(args, path)
        if is_named_tuple(tp):
            return self._fixed(tuple(hints_of(tp).values()), path)
        if origin is tuple:
            if len(args) == 2 and args[1] is Ellipsis:
                return {"type": "array", "items": self.build(args[0], f"{path}/items")}
            return self._fixed(args, path) if args or tp is not tuple else {"type": "array"}
        raise UnsupportedSchema(
            f"{name_of(tp)} at {path} has no JSON schema", keyword="type", path=path
        )

    def _fixed(self, args: Sequence[object], path: str) -> JsonObject:
        if not args:
            return {"type": "array", "maxItems": 0}
        items = [self.build(arg, f"{path}/prefixItems/{i}") for i, arg in enumerate(args)]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}

    def _mapping(self, args: tuple[object, ...], path: str) -> JsonObject:
        if not args:
            return {"type": "object"}
        keys = self.build(args[0], f"{path}/propertyNames")
        schema: JsonObject = {
            "type": "object",
            "additionalProperties": self.build(args[1], f"{path}/additionalProperties"),
        }
        if keys.get("type") != "string" and not all(
            isinstance(value, str) for value in keys.get("enum", [0])
        ):
            raise UnsupportedSchema(
                f"keys at {path} must be strings", keyword="propertyNames", path=path
            )
        return schema if keys == {"type": "string"} else _few({**schema, "propertyNames": keys})

    def _annotated(self, args: tuple[Any, ...], path: str) -> JsonObject:
        said = {
            name: getattr(note, name)
            for note in _notes(args[1:])
            for name in (*_BOUNDS, "max_digits", "decimal_places", "min_length")
            if getattr(note, name, None) is not None
        }
        if args[0] is decimal.Decimal:
            return decimal_schema(said)
        if args[0] is datetime.timedelta:
            return duration_schema(said)
        schema = dict(_PLAIN[int]) if args[0] is int else self.build(args[0], path)
        if schema.get("type") == "array" and said.get("min_length", 0) > 1 and _is_set(args[0]):
            schema["uniqueItems"] = True
        kind = (
            ("string", "array", "object").index(schema["type"])
            if schema.get("type") in ("string", "array", "object")
            else 0
        )
        bounds: JsonObject = {}
        for note in _notes(args[1:]):
            for attribute, keyword in _BOUNDS.items():
                value = getattr(note, attribute, None)
                if value is not None:
                    bounds[keyword] = getattr(
                        value, "pattern", value
                    )  # the text of a compiled pattern
            for attribute, keywords in _LENGTHS.items():
                value = getattr(note, attribute, None)
                if value is not None:
                    bounds[keywords[kind]] = value
            description = getattr(note, "description", getattr(note, "documentation", None))
            if isinstance(description, str):
                bounds["description"] = description
        if args[0] is int:
            return bounded_integer({**schema, **bounds})
        return (
            {"allOf": [schema], **bounds}
            if "$ref" in schema and bounds.keys() - {"description"}
            else {**schema, **bounds}
        )

    def _defined(self, tp: Any, path: str) -> JsonObject:
        """A reference to the type's definition, which is built on first use."""
        name = self._names.get(tp)
        if name is None:
            name, count = tp.__name__, 2
            while name in self.defs:
                name, count = f"{tp.__name__}{count}", count + 1
            self._names[tp] = name
            self.defs[name] = {}
            self.defs[name] = (
                self._pydantic(tp, name) if is_pydantic(tp) else self._fields(tp, path)
            )
        return {"$ref": f"#/$defs/{name}"}

    def _fields(self, tp: Any, path: str) -> JsonObject:
        try:
            fields = record_fields(tp)
        except NameError as error:  # string annotations are resolved in the module
            message = (
                f"{name_of(tp)} at {path} names a type that its module does not have "
                f"({error}); define it there"
            )
            raise UnsupportedSchema(message, keyword="type", path=path) from error
        required = [name for name, (_, is_required) in fields.items() if is_required]
        properties = {
            name: self.build(hint, f"{path}/properties/{name}")
            for name, (hint, _) in fields.items()
        }
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def _pydantic(self, tp: Any, name: str) -> JsonObject:
        """The model's own schema; its definitions are moved into this schema's `$defs`."""
        schema = model_schema(tp)
        own = schema.pop("$defs", {})
        renamed = {f"#/$defs/{inner}": f"#/$defs/{name}.{inner}" for inner in own}
        for inner, definition in own.items():
            self.defs[f"{name}.{inner}"] = _closed(definition, renamed)
        closed: JsonObject = _closed(schema, renamed)
        return closed


def _is_set(tp: object) -> bool:
    return (typing.get_origin(tp) or tp) in SETS


def _notes(notes: Sequence[Any]) -> list[Any]:
    """The annotations, including those inside pydantic's `Field(...)`."""
    return [inner for note in notes for inner in (note, *(getattr(note, "metadata", None) or ()))]


def _closed(node: Any, renamed: Mapping[str, str]) -> Any:
    """The schema with renamed references; every object with declared properties is closed."""
    if isinstance(node, list):
        return [_closed(item, renamed) for item in node]
    if not isinstance(node, dict):
        return node
    out = {
        key: renamed.get(value, value)
        if key == "$ref"
        else value
        if key in _DATA
        else _closed(value, renamed)
        for key, value in node.items()
    }
    if isinstance(out.get("properties"), dict) and out.get("type") == "object":
        out.setdefault("additionalProperties", False)
    return _few(out)


def _few(mapping: JsonObject) -> JsonObject:
    """A mapping whose keys are an enumeration has each of them as a property, which comes once."""
    keys = mapping.get("propertyNames", {}).get("enum")
    values = mapping.get("additionalProperties")
    if not keys or not isinstance(values, dict) or "properties" in mapping:
        return mapping
    rest = {key: part for key, part in mapping.items() if key != "propertyNames"}
    return {**rest, "properties": dict.fromkeys(keys, values), "additionalProperties": False}


_DATA = frozenset(["const", "enum", "default", "examples", "title", "description"])


def _enumeration(values: Sequence[object], path: str) -> JsonObject:
    plain = [value.value if isinstance(value, enum.Enum) else value for value in values]
    for value in plain:
        if not isinstance(value, str | int | float | None):
            raise UnsupportedSchema(
                f"{value!r} at {path} is no JSON value", keyword="enum", path=path
            )
    return {"enum": plain}
