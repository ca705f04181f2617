"""JSON schemas for `response_format`: the root must be an object, and strict mode is used if
possible.

A schema with another root is wrapped into an object with one property, and the answer is unwrapped
again, so that the program sees what it requested. Knows JSON, no services.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from lmprog import wire
from lmprog.errors import ValidationFailed

_WRAPPED = "value"
ROOM = 16  # tokens reserved for the wrapper


@dataclass(frozen=True, slots=True)
class ResponseSchema:
    """A response format, and how to read an answer in it."""

    schema: dict[str, Any]
    is_wrapped: bool
    is_bare: bool
    """Whether the value is a string that the program wants without quotes (a `Literal` of strings).
    """

    def field(self) -> dict[str, Any]:
        """The `response_format` field of a request."""
        inner = {"name": "answer", "schema": self.schema, "strict": is_strict(self.schema)}
        return {"type": "json_schema", "json_schema": inner}

    def read(self, text: str) -> str:
        """The requested text. Raises `ValidationFailed` if the answer does not match."""
        if not self.is_wrapped:
            return text
        try:
            value = json.loads(text)[_WRAPPED]
        except (ValueError, TypeError, KeyError):
            raise ValidationFailed(
                f"the model's JSON was cut, or is no answer: {text!r}", text=text
            ) from None
        return (
            value
            if self.is_bare and isinstance(value, str)
            else json.dumps(value, ensure_ascii=False)
        )


def has_format(constraint: wire.Constraint) -> bool:
    return constraint.as_schema() is not None or constraint.as_choices() is not None


def format_of(constraint: wire.Constraint | None) -> ResponseSchema | None:
    """None without a constraint, and for one that has no format."""
    asked = None if constraint is None else constraint.as_schema()
    choices = None if constraint is None else constraint.as_choices()
    if choices is not None:
        return ResponseSchema(_wrapped({"type": "string", "enum": list(choices)}), True, True)
    if asked is None:
        return None
    schema = json.loads(asked.schema)
    if isinstance(schema, dict) and _root(schema).get("type") == "object":
        return ResponseSchema(schema, False, False)
    return ResponseSchema(_wrapped(schema), True, False)


def _root(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that the root refers to, if it is a reference."""
    reference = schema.get("$ref", "")
    prefix = "#/$defs/"
    if isinstance(reference, str) and reference.startswith(prefix):
        found = schema.get("$defs", {}).get(reference.removeprefix(prefix), {})
        return found if isinstance(found, dict) else {}
    return schema


def _wrapped(schema: Any) -> dict[str, Any]:
    inner = dict(schema) if isinstance(schema, dict) else schema
    outer: dict[str, Any] = {
        "type": "object",
        "properties": {_WRAPPED: inner},
        "required": [_WRAPPED],
    }
    outer["additionalProperties"] = False
    if isinstance(inner, dict) and "$defs" in inner:
        outer["$defs"] = inner.pop("$defs")  # references are relative to the root
    return outer


def is_strict(node: Any) -> bool:
    """Whether every object is closed and requires all its properties, as strict mode demands."""
    if isinstance(node, list):
        return all(is_strict(item) for item in node)
    if not isinstance(node, dict):
        return True
    if node.get("type") == "object" or "properties" in node:
        names = set(node.get("properties", {}))
        if node.get("additionalProperties") is not False or set(node.get("required", ())) != names:
            return False
    return all(is_strict(value) for value in node.values())
