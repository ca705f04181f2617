"""What keywords of `gen` make of an op that are no sampling: the layout of JSON, `dtype`,
structural tags, `check` and `tries`.

Each function takes its keywords away from the options; it runs only where one of them was given.
Knows the wire's types; compiles nothing, and knows no branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from lmprog import wire
from lmprog.errors import InvalidParameter, ValidationFailed, not_allowed

Order: TypeAlias = Literal["declared", "any"]


class JsonLayout(TypedDict, total=False):
    """`whitespace`: "fixed" (`", "` and `": "`, the default), "compact", "indented" or "flexible".
    `whitespace_pattern`: instead, a regular expression of what stands in each place where JSON may
    have white space (at most 32 characters). `order` of the properties: as "declared" (the
    default), or "any". `strict=False`: what of the schema cannot be enforced exactly is never
    written, instead of refused; `Meta.left_out` says what.
    """

    whitespace: wire.Whitespace | None
    whitespace_pattern: str | None
    order: Order | None
    strict: bool | None


def with_layout(
    constraint: wire.Constraint | None, options: dict[str, Any]
) -> wire.Constraint | None:
    """`constraint` with the layout in `options`, from which it is removed.

    Raises `InvalidParameter` for an unknown value, or if the constraint does not generate JSON.
    """
    pattern = options.pop("whitespace_pattern", None)
    whitespace = _taken("whitespace", options, get_args(wire.Whitespace))
    order = _taken("order", options, get_args(Order))
    strict = options.pop("strict", None)
    if strict is not None and not isinstance(strict, bool):
        raise InvalidParameter(
            "strict must be a boolean", name="strict", value=repr(strict)[:80], allowed="a boolean"
        )
    given = {
        "whitespace": whitespace,
        "whitespace_pattern": pattern,
        "order": order,
        "strict": strict,
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
    if not isinstance(constraint, wire.JsonSchema):
        name = present[0]
        raise InvalidParameter(
            f"{name} is an option of JSON only; give a schema, or a type that is written as JSON",
            name=name,
            allowed="an option of JSON",
        )
    return wire.JsonSchema(
        constraint.schema,
        whitespace or "fixed",
        order == "any",
        constraint.whitespace_pattern if pattern is None and whitespace is None else pattern,
        strict is not False,
    )


def _taken(name: str, options: dict[str, Any], valid: Iterable[str]) -> Any:
    value = options.pop(name, None)
    if value is not None and value not in valid:
        raise not_allowed(name, value, ", ".join(map(repr, valid)))
    return value


QUOTED = r'"([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
"""A string in double quotes, with any characters that JSON allows."""
_NAMES = {
    **dict.fromkeys(("str", "string"), str),
    **dict.fromkeys(("int", "integer"), int),
    **dict.fromkeys(("float", "number"), float),
    **dict.fromkeys(("bool", "boolean"), bool),
}


def dtype_of(options: dict[str, Any], constraints: Iterable[str]) -> object:
    """The type that the option `dtype` asks for, which it takes away; `str` without one.

    As in SGLang `dtype=str` is a string in double quotes, unless one of `constraints` is given.
    """
    given = options.pop("dtype", None)
    if isinstance(given, str) and given not in _NAMES:
        allowed = f"a type, or one of {', '.join(_NAMES)}"
        raise not_allowed("dtype", given, allowed)
    tp = _NAMES[given] if isinstance(given, str) else given
    if tp is str and not any(options.get(name) for name in constraints):
        options["regex"] = QUOTED
    return str if tp is None else tp


def tags_constraint(given: Mapping[str, Any] | str) -> wire.Constraint:
    """Free text with confined regions, as SGLang and vLLM write it: `{"structures": [...],
    "triggers": [...]}` or `{"format": {...}}`. Raises InvalidParameter.
    """
    try:
        return wire.structural_tag(given)
    except wire.TagError as error:
        raise InvalidParameter(
            f"structural_tag: {error}", name="structural_tag", allowed="a structural tag"
        ) from error


Check: TypeAlias = Callable[[Any], object]
"""Gives False or a text that says what is wrong, or raises ValueError or AssertionError, where a
value is not to be taken.
"""
MAX_TRIES = 16


def trying(options: dict[str, Any]) -> tuple[int, Check | None]:
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


def passed(check: Check, value: object, text: str) -> None:
    """Raises `ValidationFailed` where the value does not pass."""
    try:
        said = check(value)
    except (ValueError, AssertionError) as error:
        raise ValidationFailed(str(error) or f"{text!r} does not pass", text=text) from error
    if isinstance(said, str) and said:
        raise ValidationFailed(said, text=text)
    if said is False:
        raise ValidationFailed(f"{text!r} does not pass", text=text)
