"""What a requested type means for a generation: the constraint that travels, and the value made from the text.

A union of plain strings (`Literal["yes", "no"]`, an enum of strings) is generated bare, without quotes; everything
else is JSON, by `lmprog.lang.types`, which is imported when the first typed generation is asked for.
"""

from __future__ import annotations

import enum
import json
import typing

from lmprog import wire
from lmprog.errors import ValidationFailed


def _bare_options(tp: object) -> tuple[str, ...] | None:
    """The texts of a type that consists of plain strings only; None for any other type."""
    if typing.get_origin(tp) is typing.Literal:
        values: tuple[object, ...] = typing.get_args(tp)
    elif isinstance(tp, type) and issubclass(tp, enum.Enum):
        values = tuple(member.value for member in tp)
    else:
        return None
    texts = tuple(value for value in values if isinstance(value, str))
    return texts if len(texts) == len(values) else None


def constraint_of(tp: object) -> wire.Constraint | None:
    """What confines the text to `tp`; None for `str`. Raises `UnsupportedSchema` for a type that has no schema."""
    if tp is str:
        return None
    options = _bare_options(tp)
    if options is not None:
        return wire.Choices(options)
    from lmprog.lang.types import schema_of

    return wire.JsonSchema(json.dumps(schema_of(tp), ensure_ascii=False))


def natural_stops(tp: object) -> tuple[str, ...]:
    """What ends a bare value where nobody says what does: the end of its line. () for text, and for types whose
    values end by themselves (an object does, a number does not)."""
    if tp in (int, float):
        return ("\n",)
    options = _bare_options(tp) or ()
    return ("\n",) if options and not any("\n" in text for text in options) else ()


def value_of(tp: object, text: str) -> object:
    """`text` as a value of `tp`. Raises `ValidationFailed` where it is none (cut by `max_tokens`, say)."""
    if tp is str:
        return text
    options = _bare_options(tp)
    if options is None:
        from lmprog.lang import types

        return types.value_of(tp, text)
    if text not in options:
        raise ValidationFailed(f"the model wrote {text!r}, which is none of {', '.join(options)}", text=text)
    return tp(text) if isinstance(tp, type) else text
