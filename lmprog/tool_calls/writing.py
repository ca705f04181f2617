"""Writes calls of tools in a model's form. The twin of `reading.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmprog import wire


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call of a tool, as it stands in a text."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


def written(form: wire.CallForm, calls: Sequence[WrittenCall]) -> str:
    """All calls of one answer."""
    texts = [call_text(form, call, index) for index, call in enumerate(calls)]
    return form.begin + form.between.join(texts) + form.end


def call_text(form: wire.CallForm, call: WrittenCall, index: int) -> str:
    values = {"name": call.name, "id": call.id, "index": str(index)}
    parts = [form.literals[0]]
    for slot, literal in zip(form.slots, form.literals[1:], strict=True):
        if slot == "arguments":
            parts.append(arguments_text(form, call.arguments))
        else:
            parts.append(values[slot])
        parts.append(literal)
    return "".join(parts)


def arguments_text(form: wire.CallForm, arguments: dict[str, Any]) -> str:
    keyed = form.keyed
    if keyed is None:
        return as_json(arguments)
    return keyed.between.join(_argument(keyed, key, value) for key, value in arguments.items())


def _argument(keyed: wire.KeyedArguments, key: str, value: Any) -> str:
    if isinstance(value, str):
        around, text = keyed.string, as_json(value)[1:-1] if keyed.quoted else value
    else:
        around, text = keyed.other, as_json(value)
    return around.before_key + key + around.before_value + text + around.after_value


def as_json(value: Any) -> str:
    """As models write it: a space after comma and colon."""
    return json.dumps(value, ensure_ascii=False)
