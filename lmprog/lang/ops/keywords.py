"""What keywords of `gen` make of an op that are no sampling: one for each kind of constraint, the
layout of JSON, `dtype`, `check` and `tries`. `lmprog.constraint` has those that constrain.

A function that is given the options takes its keywords away; it runs only where one of them was
given. Knows the wire's types; compiles nothing, and knows no branches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from lmprog import wire
from lmprog.errors import InvalidParameter, UnsupportedSchema, ValidationFailed, not_allowed

Order: TypeAlias = Literal["declared", "any"]


class JsonLayout(TypedDict, total=False):
    """`whitespace`: "fixed" (`", "` and `": "`, the default), "compact", "indented" or "flexible".
    `whitespace_pattern`: instead, a regular expression of what stands in each place where JSON may
    have white space (at most 32 characters). `order` of the properties: as "declared" (the
    default), or "any". `strict=False`: what of the schema cannot be enforced exactly is never
    written, instead of refused; `Meta.left_out` says what. `schemas`: others by their URIs, to
    which references in the schema, and in these, may point.
    """

    whitespace: wire.Whitespace | None
    whitespace_pattern: str | None
    order: Order | None
    strict: bool | None
    schemas: Mapping[str, Mapping[str, Any] | str | bool] | None


class ConstraintOptions(JsonLayout, total=False):
    """At most one of these is given, and the layout with a schema only."""

    regex: str | None
    schema: Mapping[str, Any] | str | None
    choices: Sequence[str] | None
    grammar: str | None
    structural_tag: Mapping[str, Any] | str | None


def constraint_of(name: str, value: Any) -> wire.Constraint:
    """The constraint that the keyword `name` asks for. Raises InvalidParameter, or
    UnsupportedSchema.
    """
    return _MAKERS[name](name, value)


def _regex(name: str, value: Any) -> wire.Constraint:
    allowed = "text; of a compiled pattern give .pattern, its flags as (?i) and the like"
    return wire.Regex(_text(name, value, allowed))


def _schema(name: str, value: Any) -> wire.Constraint:
    if isinstance(value, str):
        return wire.JsonSchema(value)
    if isinstance(value, type):
        allowed = "a dict or JSON text; a Python type is given by itself, or to constraint as type="
        raise _mistaken(name, value, allowed)
    try:
        return wire.JsonSchema(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsupportedSchema(
            f"the schema cannot be written as JSON: {error}", keyword="", path="#"
        ) from error


def _choices(name: str, value: Any) -> wire.Constraint:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise _mistaken(name, value, "a list of texts")
    return wire.Choices(tuple(_text("a choice", choice, "text") for choice in value))


def _grammar(name: str, value: Any) -> wire.Constraint:
    return wire.Grammar(_text(name, value, "text"))


def _structural_tag(name: str, value: Any) -> wire.Constraint:
    """Free text with confined regions, as SGLang and vLLM write it: `{"structures": [...],
    "triggers": [...]}` or `{"format": {...}}`.
    """
    from lmprog.tool_calls.structural_tags import TagError, structural_tag

    try:
        return structural_tag(value)
    except TagError as error:
        raise InvalidParameter(f"{name}: {error}", name=name, allowed="a structural tag") from error


def _text(name: str, value: object, allowed: str) -> str:
    if not isinstance(value, str):
        raise _mistaken(name, value, allowed)
    return value


def _mistaken(name: str, value: object, allowed: str) -> InvalidParameter:
    shown = repr(value)[:80]
    return InvalidParameter(
        f"{name} is {shown}; it must be {allowed}", name=name, value=shown, allowed=allowed
    )


_MAKERS: dict[str, Callable[[str, Any], wire.Constraint]] = {
    "regex": _regex,
    "schema": _schema,
    "json_schema": _schema,
    "choices": _choices,
    "grammar": _grammar,
    "ebnf": _grammar,
    "structural_tag": _structural_tag,
}
CONSTRAINT_NAMES = tuple(_MAKERS)
"""Those of `gen`, which has some under SGLang's names too."""


def with_layout(
    constraint: wire.Constraint | None, options: dict[str, Any]
) -> wire.Constraint | None:
    """`constraint` with the layout in `options`, from which it is removed.

    Raises `InvalidParameter` for an unknown value, or if the constraint does not generate JSON.
    """
    pattern = options.pop("whitespace_pattern", None)
    whitespace = _taken("whitespace", options, get_args(wire.Whitespace))
    order = _taken("order", options, get_args(Order))
    strict, others = options.pop("strict", None), options.pop("schemas", None)
    if strict is not None and not isinstance(strict, bool):
        raise InvalidParameter(
            "strict must be a boolean", name="strict", value=repr(strict)[:80], allowed="a boolean"
        )
    given = {
        "whitespace": whitespace,
        "whitespace_pattern": pattern,
        "order": order,
        "strict": strict,
        "schemas": others,
    }
    present = [name for name, value in given.items() if value is not None]
    if not present:
        return constraint
    if whitespace is not None and pattern is not None:
        raise InvalidParameter(
            "whitespace and whitespace_pattern cannot be combined; give one of them",
            name="whitespace_pattern",
            allowed="one of whitespace and whitespace_pattern",
        )
    if pattern is not None and not isinstance(pattern, str):
        raise InvalidParameter(
            "whitespace_pattern must be a regular expression, as text",
            name="whitespace_pattern",
            allowed="a regular expression",
        )
    schema = None if constraint is None else constraint.as_schema()
    if schema is None:
        name = present[0]
        raise InvalidParameter(
            f"{name} is an option of JSON only; give a schema, or a type that is written as JSON",
            name=name,
            allowed="an option of JSON",
        )
    made = wire.JsonSchema(
        schema.schema,
        whitespace or "fixed",
        order == "any",
        schema.whitespace_pattern if pattern is None and whitespace is None else pattern,
        strict is not False,
    )
    return made if others is None else _with_others(made, others)


def _with_others(schema: wire.JsonSchema, others: object) -> wire.JsonSchema:
    allowed = "schemas by their URIs"
    if not isinstance(others, Mapping):
        raise _mistaken("schemas", others, allowed)
    try:
        return schema.with_others(others)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParameter(f"schemas: {error}", name="schemas", allowed=allowed) from error


def _taken(name: str, options: dict[str, Any], valid: Iterable[str]) -> Any:
    value = options.pop(name, None)
    if value is not None and value not in valid:
        raise not_allowed(name, value, ", ".join(map(repr, valid)))
    return value


QUOTED = r'"([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
"""A string in double quotes, with any characters that JSON allows."""
_DTYPES = {
    **dict.fromkeys(("str", "string"), str),
    **dict.fromkeys(("int", "integer"), int),
    **dict.fromkeys(("float", "number"), float),
    **dict.fromkeys(("bool", "boolean"), bool),
}


def dtype_of(options: dict[str, Any]) -> object:
    """The type that the option `dtype` asks for, which it takes away; `str` without one.

    As in SGLang `dtype=str` is a string in double quotes, unless a constraint is given.
    """
    given = options.pop("dtype", None)
    if isinstance(given, str) and given not in _DTYPES:
        raise not_allowed("dtype", given, f"a type, or one of {', '.join(_DTYPES)}")
    tp = _DTYPES[given] if isinstance(given, str) else given
    if tp is str and not any(options.get(name) for name in CONSTRAINT_NAMES):
        options["regex"] = QUOTED
    return str if tp is None else tp


ValueCheck: TypeAlias = Callable[[Any], object]
"""Gives False or a text that says what is wrong, or raises ValueError or AssertionError, where a
value is not to be taken.
"""
MAX_TRIES = 16


def trying(options: dict[str, Any]) -> tuple[int, ValueCheck | None]:
    """`tries` and `check`, removed from `options`. Raises `InvalidParameter`."""
    tries, check = options.pop("tries", 1), options.pop("check", None)
    allowed = f"1 <= x <= {MAX_TRIES}"
    if not isinstance(tries, int) or isinstance(tries, bool) or not 1 <= tries <= MAX_TRIES:
        raise not_allowed("tries", tries, allowed)
    if check is not None and not callable(check):
        raise not_allowed("check", check, "a function of the value")
    if tries > 1 and options.get("n", 1) != 1:
        raise InvalidParameter(
            "tries and n cannot be combined: only one result can be asked for again",
            name="tries",
            value=str(tries),
            allowed="1 with n > 1",
        )
    return tries, check


def passed(check: ValueCheck, value: object, text: str) -> None:
    """Raises `ValidationFailed` where the value does not pass."""
    try:
        said = check(value)
    except (ValueError, AssertionError) as error:
        raise ValidationFailed(str(error) or f"{text!r} does not pass", text=text) from error
    if isinstance(said, str) and said:
        raise ValidationFailed(said, text=text)
    if said is False:
        raise ValidationFailed(f"{text!r} does not pass", text=text)
