"""Placeholders for constrained generations in a rehearsal: a short text that satisfies the
constraint.

Covers the JSON schemas of Python types and the most common regular expressions. For others the
placeholder is the generation's marker, which a program that parses it will reject. Knows no
automata.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lmprog import wire

_CANDIDATES = (
    "0", "1", "10", "100", "1000", "0.0", "0.00", "1.0", "yes", "no", "a", "A", "aa", "text",
    "Text", "a b", '""', "()", '"text"', "[]", "{}", "2000-01-01", "2000-01-01T00:00:00Z",
    "00:00", "00:00:00", "a@b.cc", "127.0.0.1", "-", "true",
)  # fmt: skip
_FORMATS = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "email": "a@example.org",
}
_DEEP = 6  # recursion depth from which the shortest option is taken


def placeholder(constraint: wire.Constraint | None, mark: str) -> str:
    """A text that satisfies `constraint`; `mark` if there is no constraint or no such text is
    found.
    """
    if constraint is None:
        return mark
    choices, asked = constraint.as_choices(), constraint.as_schema()
    if choices is not None:
        return choices[0]
    if asked is not None:
        schema = json.loads(asked.schema)
        return json.dumps(instance(schema, schema), ensure_ascii=False)
    pattern = constraint.as_pattern()
    return mark if pattern is None else _matching(pattern) or mark


def _matching(pattern: str) -> str | None:
    try:
        compiled = re.compile(pattern)
    except re.error:
        return None  # the runtime reports what is wrong with it
    return next((text for text in _CANDIDATES if compiled.fullmatch(text)), None)


def instance(schema: Any, root: Any, depth: int = 0) -> Any:
    """A small value that satisfies `schema`; references are resolved in `root`."""
    if not isinstance(schema, Mapping):
        return None
    if "$ref" in schema:
        return instance(_referred(str(schema["$ref"]), root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for several in ("anyOf", "oneOf", "allOf"):
        if schema.get(several):
            return instance(_option(schema[several], depth), root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        return _object(schema, root, depth)
    if kind == "array":
        fixed = [instance(item, root, depth + 1) for item in schema.get("prefixItems", [])]
        more = max(schema.get("minItems", 0) - len(fixed), 0)
        return fixed + [instance(schema.get("items"), root, depth + 1) for _ in range(more)]
    if kind == "string":
        return _string(schema)
    if kind in ("integer", "number"):
        return _number(schema)
    return False if kind == "boolean" else None


def _referred(path: str, root: Any) -> Any:
    found = root
    for part in path.removeprefix("#").strip("/").split("/"):
        if part:
            found = (
                found.get(part.replace("~1", "/").replace("~0", "~"))
                if isinstance(found, Mapping)
                else None
            )
    return found


def _option(options: Sequence[Any], depth: int) -> Any:
    """The first option; deep inside a recursion, one that ends it."""
    if depth > _DEEP:
        return next((option for option in options if option.get("type") == "null"), options[-1])
    return options[0]


def _object(schema: Mapping[str, Any], root: Any, depth: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {
        name: instance(properties.get(name, {}), root, depth + 1)
        for name in schema.get("required", ())
    }


def _string(schema: Mapping[str, Any]) -> str:
    if "pattern" in schema:
        found = _matching(str(schema["pattern"]))
        if found is not None:
            return found
    text = _FORMATS.get(str(schema.get("format")), "text")
    if "format" in schema:
        return text
    return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", len(text) + 4096)]


def _number(schema: Mapping[str, Any]) -> int | float:
    value: int | float = 0
    if "minimum" in schema:
        value = max(value, schema["minimum"])
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        value = schema["exclusiveMinimum"] + 1
    if "maximum" in schema:
        value = min(value, schema["maximum"])
    if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        value = schema["exclusiveMaximum"] - 1
    step = schema.get("multipleOf")
    return value if not step else -(-value // step) * step
