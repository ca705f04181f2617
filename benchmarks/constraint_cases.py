"""What constraints benchmarks take: 18 regexes and 22 schemas, each with texts that match and texts that
do not (constraint_cases.jsonl), patterns of bad intent, schemas that are costly, and a generator of
schemas like those that people send. Knows no engine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    kind: str  # "regex" or "schema"
    source: str
    valid: tuple[str, ...]
    invalid: tuple[str, ...]


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """Others are not allowed."""
    made = {"type": "object", "properties": properties, "required": list(required)}
    return {**made, "additionalProperties": False}


_STRING, _BOOLEAN = {"type": "string"}, {"type": "boolean"}
_WIDE = {
    "name": "wide",
    "kind": "schema",
    "source": _object({f"option_{i}": _BOOLEAN for i in range(200)}),
    "valid": [{"option_3": True, "option_150": False}],
    "invalid": [{"option_3": 1}, {"other": True}],
}


def _cases(lines: Iterable[str]) -> Iterator[Case]:
    *given, last = map(json.loads, lines)
    for one in [*given, _WIDE, last]:
        if one["kind"] == "schema":  # its instances are values, and a regex's texts
            one["source"] = json.dumps(one["source"])
            for side in ("valid", "invalid"):
                one[side] = [json.dumps(value, ensure_ascii=False) for value in one[side]]
        yield Case(
            one["name"], one["kind"], one["source"], tuple(one["valid"]), tuple(one["invalid"])
        )


CASES = tuple(_cases(Path(__file__).with_suffix(".jsonl").read_text("utf-8").splitlines()))
BOMBS: tuple[str, ...] = (
    "[ab]*a[ab]{24}",
    r"(\w+\s?){1,200}",
    ".{1,100000}",
    "((a{1,30}){1,30}){1,30}",
    "a{1000000000}",
    r"(.*a.{24}){3}",
    r"(\w{1,100}){1,100}",
    r"[\w\s]{1,1000}[\W\d]{1,1000}",
)
_TAGGED = [
    _object({"kind": {"const": f"k{i}"}, "value": _STRING}, "kind", "value") for i in range(30)
]
COSTLY: dict[str, Any] = {
    "enum of 2,000 texts": {"enum": [f"value number {i}" for i in range(2000)]},
    "2,000 optional properties": _object({f"p{i}": _STRING for i in range(2000)}),
    "open object, 50 optional properties": {
        "type": "object",
        "properties": {f"property_{i}": _STRING for i in range(50)},
    },
    "pattern, at most 2,048 characters": {
        "type": "string",
        "pattern": r"^\w+( \w+)*$",
        "maxLength": 2048,
    },
    "uri, at most 200 characters": {"type": "string", "format": "uri", "maxLength": 200},
    "oneOf of 30 tagged objects": {"oneOf": _TAGGED},
}


# -- schemas like those that people send, each with a valid instance
#
# The shares are those of a random sample of 420 of MaskBench's 11,306 schemas
# (github.com/guidance-ai/jsonschemabench), measured by keyword: the median schema has 595 characters,
# the ninetieth percentile 2,983; properties per object 3 at the median, 9 at p90, 23 at p99; half of
# all objects are open; 81 % name required properties, 33 % have an enum, 15 % references, 14 %
# patterns, 14 % `anyOf`, 8 % `oneOf`, 9 % formats, 9 % lengths, 9 % numeric bounds, 6 % `allOf`,
# 5 % `not`, 3 % `patternProperties`.

_WORDS_TEXT = """
name id type status value count size color label owner created updated email address city
country price amount currency items tags kind version language description title url path host
port user group role enabled visible width height start end limit offset total code
"""
_WORDS = _WORDS_TEXT.split()
_PATTERNS: list[tuple[str, Callable[[random.Random], str]]] = [
    ("^[a-z][a-z0-9_-]*$", lambda rng: "ab-" + str(rng.randint(0, 999))),
    (r"^\d{4}-\d{2}$", lambda rng: f"20{rng.randint(10, 30)}-0{rng.randint(1, 9)}"),
    ("^[A-Z]{2,3}$", lambda rng: "".join(rng.choices("ABCDE", k=3))),
    (r"^\S+$", lambda rng: "some-text"),
    ("^#[0-9a-fA-F]{6}$", lambda rng: f"#{rng.randint(0, 0xFFFFFF):06x}"),
    (r"^v\d+(\.\d+)*$", lambda rng: f"v{rng.randint(0, 9)}.{rng.randint(0, 99)}"),
    ("^(https?|ftp)://", lambda rng: "https://example.com/a"),
]
_FORMATS = {
    "date": "2024-02-29",
    "date-time": "2024-02-29T12:30:00Z",
    "email": "jane@example.com",
    "uri": "https://example.com/x?y=1",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "ipv4": "192.168.0.1",
}


def generated(count: int, seed: int = 0) -> Iterator[tuple[str, list[Any]]]:
    """Schemas as JSON text, each with its valid instances."""
    for number in range(count):
        schema, instance = _Maker(random.Random(seed * 1_000_003 + number)).document()
        yield json.dumps(schema), [instance]


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._definitions: dict[str, tuple[dict[str, Any], Any]] = {}
        self._may_refer = rng.random() < 0.16

    def document(self) -> tuple[dict[str, Any], Any]:
        schema, instance = self._object(0, self._num_properties(top=True))
        if self._definitions:
            made = {name: definition for name, (definition, _) in self._definitions.items()}
            schema = {**schema, "definitions": made}
        if self._rng.random() < 0.43:
            schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
        return schema, instance

    def _num_properties(self, top: bool = False) -> int:
        weights = (4, 5, 5, 4, 3, 2, 2, 1, 1) if not top else (2, 3, 4, 4, 4, 3, 3, 2, 2)
        number = self._rng.choices(range(1, 10), weights)[0]
        return number + self._rng.randint(8, 25) if self._rng.random() < 0.05 else number

    def _names(self, count: int) -> list[str]:
        found: dict[str, None] = {}
        while len(found) < count:
            parts = self._rng.choices(_WORDS, k=self._rng.choice((1, 1, 1, 2, 2, 3)))
            found["_".join(parts)] = None
        return list(found)

    def _object(self, depth: int, count: int) -> tuple[dict[str, Any], Any]:
        rng = self._rng
        properties: dict[str, Any] = {}
        instance: dict[str, Any] = {}
        required: list[str] = []
        for name in self._names(count):
            properties[name], value = self._value(depth + 1)
            is_required = rng.random() < 0.48
            if is_required:
                required.append(name)
            if is_required or rng.random() < 0.6:
                instance[name] = value
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        if rng.random() < 0.5:
            schema["additionalProperties"] = False
        elif rng.random() < 0.06:
            schema["patternProperties"] = {"^x-": {"type": "string"}}
        if depth == 0 and rng.random() < 0.06:
            schema = {"allOf": [schema, {"properties": {"zz": {"type": "integer"}}}]}
            if schema["allOf"][0].get("additionalProperties") is False:
                del schema["allOf"][1]
        return schema, instance

    def _value(self, depth: int) -> tuple[dict[str, Any], Any]:
        rng = self._rng
        schema, value = self._plain(depth)
        if rng.random() < 0.3:
            schema = {"description": " ".join(rng.choices(_WORDS, k=8)), **schema}
        if rng.random() < 0.03:
            schema = {"anyOf": [schema, {"type": "null"}]}
        elif rng.random() < 0.012:
            kinds = [{"kind": {"const": kind}, "it": schema} for kind in ("a", "b")]
            branches = [
                {"type": "object", "properties": kind, "required": ["kind"]} for kind in kinds
            ]
            return {"oneOf": branches}, {"kind": "b", "it": value}
        elif isinstance(value, str) and rng.random() < 0.01:
            schema = {**schema, "not": {"const": "forbidden"}}
        return schema, value

    def _plain(self, depth: int) -> tuple[dict[str, Any], Any]:
        rng = self._rng
        kind = rng.choices(
            ("string", "number", "boolean", "enum", "array", "object", "reference"),
            (48, 17, 8, 9, 10 if depth < 4 else 0, 10 if depth < 4 else 0, 4),
        )[0]
        if kind == "string":
            return self._string()
        if kind == "number":
            return self._number()
        if kind == "boolean":
            return {"type": "boolean"}, rng.random() < 0.5
        if kind == "enum":
            values = rng.sample(_WORDS, rng.randint(2, 6))
            return {"type": "string", "enum": values}, rng.choice(values)
        if kind == "array":
            return self._array(depth)
        if kind == "reference" and self._may_refer:
            return self._reference(depth)
        return self._object(depth, self._num_properties()) if depth < 5 else self._string()

    def _string(self) -> tuple[dict[str, Any], Any]:
        rng, draw = self._rng, self._rng.random()
        if draw < 0.06:
            pattern, make = rng.choice(_PATTERNS)
            return {"type": "string", "pattern": pattern}, make(rng)
        if draw < 0.11:
            name = rng.choice(list(_FORMATS))
            return {"type": "string", "format": name}, _FORMATS[name]
        if draw < 0.16:
            bounds = {"minLength": 1, "maxLength": rng.choice((16, 64, 255, 2048))}
            return {"type": "string", **bounds}, "some text"
        return {"type": "string"}, " ".join(rng.choices(_WORDS, k=rng.randint(1, 6)))

    def _number(self) -> tuple[dict[str, Any], Any]:
        schema: dict[str, Any] = {"type": self._rng.choice(("integer", "integer", "number"))}
        if self._rng.random() < 0.15:
            schema["minimum"] = 0
        if self._rng.random() < 0.07:
            schema["maximum"] = 10_000
        return schema, self._rng.randint(0, 1000)

    def _array(self, depth: int) -> tuple[dict[str, Any], Any]:
        items, _ = self._value(depth + 1)
        schema: dict[str, Any] = {"type": "array", "items": items}
        if self._rng.random() < 0.15:
            schema["maxItems"] = self._rng.choice((3, 10, 50))
        return schema, []

    def _reference(self, depth: int) -> tuple[dict[str, Any], Any]:
        if not self._definitions or self._rng.random() < 0.4:
            name = f"d{len(self._definitions)}"
            self._definitions[name] = ({"type": "string"}, "text")
            self._definitions[name] = self._object(depth, self._num_properties())
        name = self._rng.choice(list(self._definitions))
        return {"$ref": f"#/definitions/{name}"}, self._definitions[name][1]
