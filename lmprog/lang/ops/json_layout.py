"""Keywords of constrained JSON: its layout (white space, the order of properties), and whether the
schema has to be enforced whole.

Shared by `gen` and `lmprog.constraint`. Knows the wire's types; compiles nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from lmprog import wire
from lmprog.errors import InvalidParameter

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
    schema = None if constraint is None else constraint.as_schema()
    if schema is None:
        name = present[0]
        raise InvalidParameter(
            f"{name} is an option of JSON only; give a schema, or a type that is written as JSON",
            name=name,
            allowed="an option of JSON",
        )
    return wire.JsonSchema(
        schema.schema,
        whitespace or "fixed",
        order == "any",
        schema.whitespace_pattern if pattern is None and whitespace is None else pattern,
        strict is not False,
    )


def _taken(name: str, options: dict[str, Any], valid: Iterable[str]) -> Any:
    value = options.pop(name, None)
    if value is not None and value not in valid:
        allowed = ", ".join(map(repr, valid))
        raise InvalidParameter(
            f"{name}={value!r} is not allowed; valid: {allowed}",
            name=name,
            value=repr(value)[:80],
            allowed=allowed,
        )
    return value
