"""What the constraint benchmark walks: 18 regexes and 22 schemas, each with texts that match and
texts that do not (constraint_corpus.jsonl), patterns of bad intent, and schemas that are costly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
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
