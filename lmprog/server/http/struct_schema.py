"""Our msgspec structs as pydantic sees them, so that FastAPI's own generator describes them.

Every struct becomes a schema with a name, in which the ranges, defaults and descriptions of its
fields stand. Only the description is made: bodies are read and checked by `bodies`. Knows the types
of msgspec and of pydantic's core; knows no routes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import inspect
from pydantic_core import CoreSchema, core_schema


def schema_of(
    kind: type[msgspec.Struct], around: Callable[[CoreSchema], CoreSchema] = lambda inner: inner
) -> CoreSchema:
    """The description of a struct, with those of the structs in it. `around` makes a schema that
    holds the struct's.
    """
    describing = _Describing()
    found = around(describing.of(_type_info(kind)))
    return core_schema.definitions_schema(found, list(describing.definitions.values()))


_type_info = functools.cache(inspect.type_info)
"""Of a struct; every router asks for the same ones."""


class _Describing:
    """Makes the schemas of one type; each struct's once, by reference from everywhere."""

    def __init__(self) -> None:
        self.definitions: dict[type, CoreSchema] = {}

    def of(self, kind: inspect.Type) -> CoreSchema:
        match kind:
            case inspect.Metadata(type=inner, extra_json_schema=extra):
                made = self.of(inner)
                if extra and made["type"] != "definition-ref":
                    made = {**made, "metadata": {"pydantic_js_updates": dict(extra)}}
                return made
            case inspect.StructType():
                return self._struct(kind)
            case inspect.UnionType(types=types):
                return core_schema.union_schema([self.of(one) for one in types])
            case inspect.LiteralType(values=values):
                return core_schema.literal_schema(list(values))
            case inspect.ListType() | inspect.VarTupleType():
                return core_schema.list_schema(self.of(kind.item_type), **_lengths(kind))
            case inspect.TupleType(item_types=items):
                return core_schema.tuple_schema([self.of(one) for one in items])
            case inspect.DictType():
                return core_schema.dict_schema(
                    self.of(kind.key_type), self.of(kind.value_type), **_lengths(kind)
                )
            case inspect.StrType():
                return core_schema.str_schema(**_lengths(kind))
            case inspect.IntType():
                return core_schema.int_schema(**_range(kind))
            case inspect.FloatType():
                return core_schema.float_schema(**_range(kind))
            case inspect.BoolType():
                return core_schema.bool_schema()
            case inspect.NoneType():
                return core_schema.none_schema()
        return core_schema.any_schema()

    def _struct(self, kind: inspect.StructType) -> CoreSchema:
        ref = f"{kind.cls.__module__}.{kind.cls.__qualname__}:{id(kind.cls)}"
        if kind.cls not in self.definitions:
            self.definitions[kind.cls] = core_schema.any_schema()  # it may hold itself
            fields = {field.encode_name: self._field(field) for field in kind.fields}
            if kind.tag_field is not None:
                tag = core_schema.literal_schema([kind.tag])
                fields[kind.tag_field] = core_schema.typed_dict_field(tag, required=True)
            self.definitions[kind.cls] = core_schema.typed_dict_schema(
                fields, cls=kind.cls, ref=ref
            )
        return core_schema.definition_reference_schema(ref)

    def _field(self, field: inspect.Field) -> core_schema.TypedDictField:
        made = self.of(field.type)
        if field.default not in (None, msgspec.NODEFAULT):
            default = msgspec.to_builtins(field.default)
            made = core_schema.with_default_schema(made, default=default)
        return core_schema.typed_dict_field(made, required=field.required)


def _lengths(kind: Any) -> Mapping[str, Any]:
    found = {"min_length": kind.min_length, "max_length": kind.max_length}
    return {name: value for name, value in found.items() if value is not None}


def _range(kind: Any) -> Mapping[str, Any]:
    found = {name: getattr(kind, name) for name in ("ge", "gt", "le", "lt")}
    return {name: value for name, value in found.items() if value is not None}
