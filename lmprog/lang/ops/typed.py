"""What a requested type means for a generation: the constraint that travels, and the value made
from the text.

A union of plain strings (`Literal["yes", "no"]`, an enum of strings) is generated bare, without
quotes; everything else is JSON, by `lmprog.lang.ops.type_schemas`, which is imported when the first
typed generation is asked for.
"""

from __future__ import annotations

import decimal
import enum
import json
import types
import typing

from lmprog import wire
from lmprog.errors import ValidationFailed

_ENDING = (str, bool, None, type(None))  # in a union these are JSON that says itself where it ends


def _bare_options(tp: object) -> tuple[str, ...] | None:
    """The texts of a type that consists of plain strings only; None for any other type."""
    if typing.get_origin(tp) is typing.Literal:
        values: tuple[object, ...] = typing.get_args(tp)
    elif isinstance(tp, type) and issubclass(tp, enum.Enum):
        values = tuple(member.value for member in tp)
    else:
        return None
    texts = tuple(value for value in values if isinstance(value, str))
    return texts if texts and len(texts) == len(values) else None


def constraint_of(tp: object) -> wire.Constraint | None:
    """What confines the text to `tp`; None for `str`. Raises `UnsupportedSchema` for a type that
    has no schema.
    """
    if tp is str:
        return None
    options = _bare_options(tp)
    if options is not None:
        return wire.Choices(options)
    from lmprog.lang.ops.type_schemas import schema_of

    return wire.JsonSchema(json.dumps(schema_of(tp), ensure_ascii=False))


def natural_stops(tp: object) -> tuple[str, ...]:
    """What ends a bare value where nobody says what does: the end of its line. () for text, and for
    types whose values end by themselves (an object does, a number does not)."""
    if tp is str:
        return ()
    options = _bare_options(tp)
    if options is not None:
        return () if any("\n" in text for text in options) else ("\n",)
    return ("\n",) if _is_bare_number(tp) else ()


def _is_bare_number(tp: object) -> bool:
    """Whether values of `tp`, which are JSON, may be numbers, and never an array or an object: in
    what stands in one line (a string's line ends are escaped) only a number leaves open where it
    ends."""
    from lmprog.lang.ops.type_values import unwrapped

    tp = unwrapped(tp)
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin is typing.Annotated:
        return _is_bare_number(args[0])
    if origin in (typing.Union, types.UnionType):
        return any(map(_is_bare_number, args)) and all(
            _is_bare_number(arg) or arg in _ENDING for arg in args
        )
    if origin is typing.Literal:
        return True
    return (
        isinstance(tp, type)
        and issubclass(tp, int | float | decimal.Decimal | enum.Enum)
        and tp is not bool
    )


def value_of(tp: object, text: str) -> object:
    """`text` as a value of `tp`. Raises `ValidationFailed` where it is none (cut by `max_tokens`,
    say).
    """
    if tp is str:
        return text
    options = _bare_options(tp)
    if options is None:
        from lmprog.lang.ops.type_schemas import value_of as value_of_json

        return value_of_json(tp, text)
    if text not in options:
        raise ValidationFailed(
            f"the model wrote {text!r}, which is none of {', '.join(options)}", text=text
        )
    return tp(text) if isinstance(tp, type) else text
