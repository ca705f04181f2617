"""Extraction: a passage about one thing, then a JSON object of the fields asked for, in the order
asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.document import Document, Family, Page
from training.draw import Draw, ways
from training.kinds import draw_kind
from training.kinds.model import Field, FieldType, Value
from training.passage import sentences

_TYPE_WORDS = {
    FieldType.STRING: ("string", "str"),
    FieldType.INTEGER: ("integer", "int", "number"),
    FieldType.BOOLEAN: ("boolean", "bool", "true or false"),
    FieldType.LIST: ("list of strings", "list", "array of strings"),
    FieldType.ENUM: ("string",),
}
_ASK = ways(
    "Extract {f} as JSON.",
    "Extract {f} from the text as JSON.",
    "Give {f} as a JSON object.",
    "Write a JSON object with {f}.",
    "Return JSON with the fields {f}.",
    "Fields: {f}",
    "Turn the text into JSON with the keys {f}.",
    "Extract the fields {f} as JSON.",
    "Describe this as JSON with {f}.",
    "JSON keys: {f}",
    "Write {f} as JSON.",
    "Extract {f} and return JSON.",
    "Read the text and write JSON: {f}",
    "As JSON: {f}",
    "Give the keys {f} as JSON.",
    "Make a JSON object with the fields {f}.",
    "Please extract {f}. Write JSON.",
    "Put {f} into a JSON object.",
    "Find {f} and give JSON.",
    "I need {f} as JSON.",
    held=(
        "Extract {f} and write JSON.",
        "Write the fields {f} as a JSON object.",
        "Give JSON with the keys {f}.",
        "Extract as JSON: {f}",
    ),
)
_COMPACT = ways(
    " Use compact JSON.",
    " Write it without spaces.",
    " Compact, please.",
    " No spaces.",
    " Compact JSON.",
    " Use compact JSON, no spaces.",
    " Without spaces, please.",
    " Make the JSON compact.",
    held=(" Use compact JSON without spaces.", " Write compact JSON."),
)
_HEADS = ways(
    "",
    "Text: ",
    "Text: ",
    "Passage: ",
    "Input: ",
    "Description: ",
    held=("Text: ", "", "Passage:\n"),
)
_CUES = ways(
    "JSON:",
    "JSON:",
    "Answer:",
    "Output:",
    "Result:",
    "JSON:\n",
    "Output:\n",
    "",
    held=("JSON:", "JSON:\n", "Output:", "Answer:\n"),
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The passage, the field list as asked, the object that is right, and its schema."""

    text: str
    keys: tuple[str, ...]
    asked: str
    right: Mapping[str, object]
    schema: Mapping[str, object]


def dumped(value: object, compact: bool) -> str:
    """JSON in one of the two forms that nano writes."""
    return json.dumps(value, separators=(",", ":")) if compact else json.dumps(value)


def schema_of(field: Field) -> dict[str, object]:
    """The JSON schema of one field."""
    if field.type is FieldType.LIST:
        return {"type": "array", "items": {"type": "string"}}
    if field.type is FieldType.ENUM:
        return {"enum": list(field.options)}
    return {"type": field.type.value}


def plain(value: Value) -> object:
    """The value as `json` knows it."""
    return list(value) if isinstance(value, tuple) else value


def _asked(draw: Draw, keys: Sequence[str], fields: Sequence[Field | None]) -> str:
    style = draw.rng.random()
    if style < 0.5:
        return ", ".join(keys)
    if style < 0.62:
        return ", ".join(keys[:-1]) + " and " + keys[-1]
    types = [_typed(draw, field) for field in fields]
    if style < 0.81:
        return ", ".join(f"{key} ({word})" for key, word in zip(keys, types, strict=True))
    return "{" + ", ".join(f'"{key}": {word}' for key, word in zip(keys, types, strict=True)) + "}"


def _typed(draw: Draw, field: Field | None) -> str:
    if field is None:
        return "string"
    if field.type is FieldType.ENUM:
        return (" or " if draw.chance(0.5) else "|").join(field.options)
    return draw.one(_TYPE_WORDS[field.type])


def wanted(draw: Draw, most: int = 6) -> Wanted:
    """A thing told, and some of its fields asked for in any order."""
    kind = draw_kind(draw)
    record = kind.record(draw, draw.number(2, most))
    told = sentences(draw, record)
    if not told[0].startswith(record.name) and record.name not in told[0]:
        return wanted(draw, most)
    names = list(record.values)
    chosen = draw.some(names, draw.number(min(2, len(names)), min(len(names), 5)))
    entries: list[tuple[str, Field | None, Value]] = []
    used: set[str] = set()
    for key in chosen:
        field = kind.field(key)
        entries.append((_key(draw, field.keys, used), field, record.values[key]))
    if draw.chance(0.85) or len(entries) < 3:
        place = 0 if draw.chance(0.6) else draw.number(0, len(entries))
        entries.insert(place, (_key(draw, kind.name_keys, used), None, record.name))
    keys = [key for key, _, _ in entries]
    schema = {
        "type": "object",
        "properties": {
            key: schema_of(field) if field else {"type": "string"} for key, field, _ in entries
        },
        "required": keys,
        "additionalProperties": False,
    }
    asked = _asked(draw, keys, [field for _, field, _ in entries])
    return Wanted(
        " ".join(told), tuple(keys), asked, {key: plain(value) for key, _, value in entries}, schema
    )


def _key(draw: Draw, keys: Sequence[str], used: set[str]) -> str:
    free = [key for key in keys if key not in used]
    key = (free[0] if draw.chance(0.6) else draw.one(free)) if free else f"{keys[0]}_{len(used)}"
    used.add(key)
    return key


def extraction(draw: Draw) -> Document:
    """One to three passages with their objects, the instruction first or last."""
    page = Page(Family.EXTRACTION)
    compact = draw.chance(0.4)
    silent = draw.chance(0.1)
    instruct_first = draw.chance(0.4)
    head, cue, gap = draw.template(_HEADS), draw.template(_CUES), draw.one(("\n", "\n", "\n\n"))
    for index in range(draw.one((1, 1, 2, 3))):
        want = wanted(draw)
        ask = draw.say(_ASK, f=want.asked) + (
            draw.template(_COMPACT) if compact and not silent else ""
        )
        parts = [ask, head + want.text] if instruct_first else [head + want.text, ask]
        page.text(("\n" if index else "") + gap.join(parts) + "\n" + cue)
        lead = " " if cue and not cue.endswith("\n") else ""
        page.answer(
            lead + dumped(want.right, compact) + "\n",
            schema=want.schema,
            kind="compact" if compact else "spaced",
        )
    return page.done()
