"""The layout of constrained JSON as keywords: white space and the order of properties.

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
    `order` of the properties: as "declared" (the default), or "any".
    """

    whitespace: wire.Whitespace | None
    order: Order | None


def with_layout(
    constraint: wire.Constraint | None, options: dict[str, Any]
) -> wire.Constraint | None:
    """`constraint` with `whitespace` and `order`, which are removed from `options`.

    Raises `InvalidParameter` for an unknown value, or if the constraint does not generate JSON.
    """
    whitespace = _taken("whitespace", options, get_args(wire.Whitespace))
    order = _taken("order", options, get_args(Order))
    if whitespace is None and order is None:
        return constraint
    if not isinstance(constraint, wire.JsonSchema):
        name = "order" if whitespace is None else "whitespace"
        raise InvalidParameter(
            f"{name} is an option of JSON only; give a schema, or a type that is written as JSON",
            name=name,
            allowed="an option of JSON",
        )
    return wire.JsonSchema(constraint.schema, whitespace or "fixed", order == "any")


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
