"""Typed generations: the constraint for a requested type, and parsing the text into a value.

A union of plain strings (`Literal["yes", "no"]`, an enum of strings) is generated without quotes;
all other types are JSON, through `lmprog.lang.ops.type_schemas`, which is imported with the first
typed generation.
"""

from __future__ import annotations

import decimal
import enum
import json
import types
import typing
from collections.abc import Sequence
from typing import Any

from lmprog import wire
from lmprog.errors import IncompleteValue, ValidationFailed
from lmprog.lang.ops.text_patterns import TextPattern
from lmprog.lang.ops.tool_calls import OfferedTools

_ENDING = (str, bool, None, type(None))  # as union members: self-delimiting JSON


def _bare_options(tp: object) -> dict[str, object] | None:
    """The options of a type that consists of plain strings only, with their values; else None."""
    if typing.get_origin(tp) is typing.Literal:
        values: tuple[object, ...] = typing.get_args(tp)
    elif isinstance(tp, type) and issubclass(tp, enum.Enum):
        values = tuple(tp)
    else:
        return None
    plain = [value.value if isinstance(value, enum.Enum) else value for value in values]
    texts = [str(value) for value in plain if isinstance(value, str)]
    return dict(zip(texts, values, strict=True)) if 0 < len(texts) == len(values) else None


def constraint_of(tp: object) -> wire.Constraint | None:
    """The constraint for `tp`; None for `str`. Raises `UnsupportedSchema` for a type without a
    schema.
    """
    if tp is str:
        return None
    if isinstance(tp, TextPattern):
        return wire.Regex(tp.source)
    options = _bare_options(tp)
    if options is not None:
        return wire.Choices(tuple(options))
    from lmprog.lang.ops.type_schemas import schema_of

    return wire.JsonSchema(json.dumps(schema_of(tp), ensure_ascii=False))


def natural_stops(tp: object) -> tuple[str, ...]:
    """The default stops of a bare value: the end of its line. () for text and for types whose
    values are self-delimiting (an object is, a number is not).
    """
    if tp is str or isinstance(tp, TextPattern | OfferedTools):
        return ()
    options = _bare_options(tp)
    if options is not None:
        return () if any("\n" in text for text in options) else ("\n",)
    return ("\n",) if _is_bare_number(tp) else ()


def _is_bare_number(tp: object) -> bool:
    """Whether values of `tp`, written as JSON, may be numbers but never arrays or objects. In a
    single line (line ends in strings are escaped) only a number leaves open where it ends.
    """
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
    """Parses `text` as `tp`. Raises `ValidationFailed` if it does not fit, for instance if cut off
    by `max_tokens`.
    """
    if tp is str:
        return text
    if isinstance(tp, TextPattern):
        tp.captured(text)
        return text
    options = _bare_options(tp)
    if options is None:
        from lmprog.lang.ops.type_schemas import value_of as value_of_json

        return value_of_json(tp, text)
    if text not in options:
        raise ValidationFailed(
            f"the model wrote {text!r}, which is none of {', '.join(options)}", text=text
        )
    return options[text]


def values_of(tp: object, texts: Sequence[str], outputs: Sequence[wire.Output]) -> list[Any]:
    """The values of several results. Raises `ValidationFailed`."""
    if isinstance(tp, OfferedTools):
        return [tp.reply(text, output) for text, output in zip(texts, outputs, strict=True)]
    return [value_of(tp, text) for text in texts]


def refuse_incomplete(tp: object, outputs: Sequence[wire.Output]) -> None:
    """Raises where the token limit ended a typed value: it may be a value, but not the one that the
    model was writing.
    """
    for output in outputs:
        if isinstance(tp, OfferedTools) and not tp.is_cut(output):
            continue
        if output.finish == "length":
            raise IncompleteValue(
                f"max_tokens ended the value early, at {output.text!r}; give more tokens, or "
                "on_incomplete='keep' to have what there is",
                text=output.text,
            )
