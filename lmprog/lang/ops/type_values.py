"""Converts JSON data to values of Python types and back, and inspects types without a schema.

The counterpart of `type_schemas.py`, which lists the supported types. Knows pydantic's models and
attrs' classes without importing either.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import datetime
import decimal
import enum
import inspect
import ipaddress
import json
import pathlib
import re
import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmprog.errors import InvalidParameter

_DURATION = re.compile(
    r"(-)?P(?:(\d+)W)?(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)D)?"
    r"(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,6}))?S)?)?"
)
_DAYS = (7, 365, 30, 1)
"""Of a week, a year, a month and a day, as pydantic counts them."""


def _duration(text: str) -> datetime.timedelta:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no duration")
    sign, *whole, fraction = found.groups()
    *days, hours, minutes, seconds = (int(part or 0) for part in whole)
    length = datetime.timedelta(
        days=sum(count * days_each for count, days_each in zip(days, _DAYS, strict=True)),
        hours=hours,
        minutes=minutes,
        seconds=seconds,
        microseconds=int((fraction or "").ljust(6, "0")),
    )
    return -length if sign else length


_TEXT_PARSERS: dict[object, Callable[[str], object]] = {
    datetime.date: datetime.date.fromisoformat,
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    datetime.timedelta: _duration,
    uuid.UUID: uuid.UUID,
    ipaddress.IPv4Address: ipaddress.IPv4Address,
    ipaddress.IPv6Address: ipaddress.IPv6Address,
    ipaddress.IPv4Network: ipaddress.IPv4Network,
    ipaddress.IPv6Network: ipaddress.IPv6Network,
    ipaddress.IPv4Interface: ipaddress.IPv4Interface,
    ipaddress.IPv6Interface: ipaddress.IPv6Interface,
    bytes: str.encode,
}
SEQUENCES = (
    list,
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.MutableSequence,
)
SETS = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)
MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def name_of(tp: object) -> str:
    return getattr(tp, "__name__", None) or str(tp)


def is_pydantic(tp: object) -> bool:
    return (
        isinstance(tp, type) and hasattr(tp, "model_json_schema") and hasattr(tp, "model_validate")
    )


def is_named_tuple(tp: object) -> bool:
    return isinstance(tp, type) and issubclass(tp, tuple) and hasattr(tp, "_fields")


def hints_of(tp: object) -> dict[str, Any]:
    return typing.get_type_hints(tp, include_extras=True)


def is_typed_dict(tp: object) -> bool:
    """Whether of `typing` or of `typing_extensions`, whose classes are others."""
    return isinstance(tp, type) and issubclass(tp, dict) and hasattr(tp, "__required_keys__")


def is_attrs(tp: object) -> bool:
    return isinstance(tp, type) and hasattr(tp, "__attrs_attrs__")


def is_record(tp: object) -> bool:
    """Whether it has named fields, and is no model of pydantic and no tuple."""
    return dataclasses.is_dataclass(tp) or is_typed_dict(tp) or is_attrs(tp)


def record_fields(tp: Any) -> dict[str, tuple[Any, bool]]:
    """The type of each field that a record is made with, and whether it must be given."""
    hints, missing = hints_of(tp), dataclasses.MISSING
    if dataclasses.is_dataclass(tp):
        return {
            field.name: (
                hints[field.name],
                field.default is missing and field.default_factory is missing,
            )
            for field in dataclasses.fields(tp)
            if field.init
        }
    if is_attrs(tp):  # its own marks, since attrs need not be installed
        given = [field for field in tp.__attrs_attrs__ if field.init]
        return {
            field.alias: (hints.get(field.name, Any), repr(field.default) == "NOTHING")
            for field in given
        }
    required = required_keys(tp)
    return {name: (hint, name in required) for name, hint in hints.items()}


def required_keys(tp: Any) -> set[str]:
    """The required keys of a typed dict. In postponed annotations the class itself does not see
    `NotRequired`.
    """
    marks = {name: typing.get_origin(hint) for name, hint in hints_of(tp).items()}
    known = {
        name
        for name, mark in marks.items()
        if mark is typing.Required or name in tp.__required_keys__
    }
    return known - {name for name, mark in marks.items() if mark is typing.NotRequired}


def unwrapped(tp: object) -> object:
    """Removes wrappers that do not change a value: NewType, `type X = ...`, Required, ReadOnly."""
    while True:
        if isinstance(tp, typing.NewType):
            tp = tp.__supertype__
        elif type(tp).__name__ == "TypeAliasType":
            tp = tp.__value__  # type: ignore[attr-defined]
        elif typing.get_origin(tp) in (typing.Required, typing.NotRequired, typing.Final):
            tp = typing.get_args(tp)[0]
        else:
            return tp


def convert(tp: Any, data: Any) -> Any:
    """JSON data, whose fractions may be decimals, as a value of `tp`. Raises ValueError or
    TypeError if it does not fit.
    """
    tp = unwrapped(tp)
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin is typing.Annotated:
        return convert(args[0], data)
    if origin is typing.Literal:
        return _member(args, data)
    if origin in (typing.Union, types.UnionType):
        return _first_that_fits(args, data)
    if is_pydantic(tp):
        return tp.model_validate(_with_floats(data, _ExactFloat))
    if isinstance(tp, type) and issubclass(tp, enum.Enum):
        return _member(list(tp), data)
    if is_record(tp):
        return _record(tp, data)
    if is_named_tuple(tp):
        return tp(*_fixed_items(tuple(hints_of(tp).values()), data))
    if (origin or tp) in SEQUENCES:
        return [convert(args[0] if args else Any, item) for item in _expect(list, data)]
    if (origin or tp) in SETS:
        items = [convert(args[0] if args else Any, item) for item in _expect(list, data)]
        return frozenset(items) if (origin or tp) is frozenset else set(items)
    if (origin or tp) in MAPPINGS:
        value_type = args[1] if args else Any
        key_type = args[0] if args else str
        return {
            convert(key_type, key): convert(value_type, item)
            for key, item in _expect(dict, data).items()
        }
    if (origin or tp) is tuple:
        if not args:
            return tuple(_expect(list, data))
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(convert(args[0], item) for item in _expect(list, data))
        return tuple(_fixed_items(args, data))
    return _scalar(tp, data)


def _scalar(tp: Any, data: Any) -> Any:
    if tp in (Any, object):
        return _with_floats(data)
    if tp is None or tp is type(None):
        return _expect(type(None), data)
    if tp is datetime.timedelta and isinstance(data, int):
        return datetime.timedelta(seconds=data)
    if tp in _TEXT_PARSERS:
        return _TEXT_PARSERS[tp](_expect(str, data))
    if tp is bool or tp is str:
        return _expect(tp, data)
    if tp is decimal.Decimal and isinstance(data, str):
        return decimal.Decimal(data)
    if isinstance(data, bool) or not isinstance(data, int | float | decimal.Decimal):
        raise ValueError(f"{data!r} is no {name_of(tp)}")
    if tp is int:
        if data != int(data):
            raise ValueError(f"{data!r} is no int")
        return int(data)
    if tp is float:
        return float(data)
    if tp is decimal.Decimal:
        return data if isinstance(data, decimal.Decimal) else decimal.Decimal(str(data))
    raise ValueError(f"values of {name_of(tp)} are not supported")


def _with_floats(data: Any, kind: type[float] = float) -> Any:
    """The data with a float in place of each decimal."""
    if isinstance(data, dict):
        return {key: _with_floats(item, kind) for key, item in data.items()}
    if isinstance(data, list):
        return [_with_floats(item, kind) for item in data]
    return kind(data) if isinstance(data, decimal.Decimal) else data


class _ExactFloat(float):
    """For pydantic, which makes a decimal of how a float is written, and takes it for a float
    everywhere else.
    """

    __slots__ = ("_digits",)
    _digits: str

    def __new__(cls, value: decimal.Decimal) -> _ExactFloat:
        made = super().__new__(cls, value)
        made._digits = str(value)
        return made

    def __str__(self) -> str:
        return self._digits


def _expect(kind: Any, data: Any) -> Any:
    if not isinstance(data, kind):
        raise ValueError(f"{data!r} is no {kind.__name__}")
    return data


def _member(values: Sequence[Any], data: Any) -> Any:
    """The member that is equal and of the same type: 1 is not True. A member of an enum is meant by
    its value.
    """
    data = _with_floats(data)
    for value in values:
        plain = value.value if isinstance(value, enum.Enum) else value
        if plain == data and isinstance(plain, bool) == isinstance(data, bool):
            return value
    raise ValueError(f"{data!r} is none of {list(values)}")


def _first_that_fits(args: Sequence[object], data: Any) -> Any:
    """The value for a union: members that keep all data come before models that would drop some."""
    for arg in [
        *(arg for arg in args if _takes_all(arg, data)),
        *(arg for arg in args if not _takes_all(arg, data)),
    ]:
        try:
            return convert(arg, data)
        except (ValueError, TypeError):
            continue
    raise ValueError(f"{data!r} fits none of {', '.join(map(name_of, args))}")


def _takes_all(tp: Any, data: Any) -> bool:
    """Whether `tp` is not a pydantic model that would ignore part of `data`."""
    if not is_pydantic(tp) or not isinstance(data, dict):
        return True
    try:
        found = _with_floats(data, _ExactFloat)
        tp.model_validate(found, extra="forbid")  # also in nested models
    except ValueError:
        return False
    except TypeError:  # pydantic before 2.12 has no such argument
        return data.keys() <= {field.alias or name for name, field in tp.model_fields.items()}
    return True


def _record(tp: Any, data: Any) -> Any:
    known = record_fields(tp)
    if unknown := sorted(_expect(dict, data).keys() - known):
        raise ValueError(f"there is no field {unknown[0]!r}")
    fields = {name: convert(known[name][0], value) for name, value in data.items()}
    required = {name for name, (_, is_required) in known.items() if is_required}
    if missing := required - fields.keys():
        raise ValueError(f"missing {sorted(missing)}")
    return tp(**fields)


def _fixed_items(args: Sequence[object], data: Any) -> list[Any]:
    items = _expect(list, data)
    if len(items) != len(args):
        raise ValueError(f"{len(items)} items where {len(args)} are expected")
    return [convert(arg, item) for arg, item in zip(args, items, strict=True)]


def as_json_data(value: Any) -> Any:
    """A value as JSON data, which `convert` turns back. Raises TypeError for what is none."""
    if isinstance(value, enum.Enum):
        return as_json_data(value.value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if is_pydantic(type(value)):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [(field.name, field.name) for field in dataclasses.fields(value)]
    elif is_attrs(type(value)):
        names = [(field.alias, field.name) for field in type(value).__attrs_attrs__]
    elif isinstance(value, collections.abc.Mapping):
        return {as_json_data(key): as_json_data(item) for key, item in value.items()}
    elif isinstance(value, list | tuple | set | frozenset):
        return [as_json_data(item) for item in value]
    else:
        return _text_of(value)
    return {shown: as_json_data(getattr(value, name)) for shown, name in names}


def _text_of(value: Any) -> str:
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        seconds = decimal.Decimal(value // datetime.timedelta(microseconds=1)).scaleb(-6)
        return f"{'-' if seconds < 0 else ''}PT{abs(seconds).normalize():f}S"
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, decimal.Decimal | pathlib.PurePath) or type(value) in _TEXT_PARSERS:
        return str(value)
    raise TypeError(f"a value of {type(value).__name__} has no JSON")


# --- the arguments of a program


def written_arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of a program's function, after its branch, as JSON data that `read_arguments` reads.
    Raises `InvalidParameter` for what JSON does not have and no type of a parameter reads back.
    """
    bound = inspect.signature(function).bind(None, *args, **kwargs)
    typed = []
    for name, value in list(bound.arguments.items())[1:]:
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            bound.arguments[name] = _written_argument(function, name, value, error)
            typed.append(name)
    given = {"args": list(bound.args[1:]), "kwargs": bound.kwargs}
    as_json: dict[str, Any] = json.loads(json.dumps(given))
    return as_json | {"typed": typed} if typed else as_json


def _written_argument(function: Callable[..., Any], name: str, value: Any, error: Exception) -> Any:
    kind = _type_of(function, name)
    with contextlib.suppress(TypeError, ValueError, NameError):
        data = json.loads(json.dumps(as_json_data(value)))
        if kind is not None and convert(kind, data) == _as_list(function, name, value):
            return data
    allowed = "arguments that JSON has: texts, numbers, lists, dicts with texts as keys"
    raise InvalidParameter(
        f"a run with a checkpoint needs {allowed}; or ones that the types of their parameters say "
        f"(`row: Row` for a model, a dataclass, a date), so that they can be written ({error})",
        name="arguments",
        value=name,
        allowed=allowed,
    )


def read_arguments(
    function: Callable[..., Any], written: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Those that were written, with what their parameters' types say."""
    if "typed" not in written:
        return written["args"], written["kwargs"]
    bound = inspect.signature(function).bind(None, *written["args"], **written["kwargs"])
    for name in written["typed"]:
        data = _as_list(function, name, bound.arguments[name])
        bound.arguments[name] = convert(_type_of(function, name), data)
    return list(bound.args[1:]), bound.kwargs


def _as_list(function: Callable[..., Any], name: str, value: Any) -> Any:
    """What `*rows` gets is a tuple, which JSON has as a list."""
    way = inspect.signature(function).parameters[name].kind
    return list(value) if way is inspect.Parameter.VAR_POSITIONAL else value


def _type_of(function: Callable[..., Any], name: str) -> Any:
    """The type of a parameter, of all of `*rows` or `**named`; None where none is given."""
    plain: Any = getattr(function, "func", function)  # of a method
    kind = hints_of(plain).get(name)
    way = inspect.signature(function).parameters[name].kind
    if kind is not None and way is inspect.Parameter.VAR_POSITIONAL:
        return types.GenericAlias(list, (kind,))
    if kind is not None and way is inspect.Parameter.VAR_KEYWORD:
        return types.GenericAlias(dict, (str, kind))
    return kind
