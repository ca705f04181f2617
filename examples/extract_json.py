"""Constraints: a text becomes an object of a Python type, or fits a JSON schema; it cannot come out
in another form.

python examples/extract_json.py [--model NAME_OR_FOLDER]
lmprog run examples/extract_json.py::person --arg text="Ben is 45 years old. Ben lives in Lima."
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any, Literal

import lmprog

TEXT = "Mia is 31 years old. Mia lives in Oslo. Mia likes singing and hiking. Mia is happy today."

SCHEMA = {
    "type": "object",
    "properties": {"town": {"type": "string"}, "name": {"type": "string"}},
    "required": ["town", "name"],
    "additionalProperties": False,
}


@dataclass
class Person:
    name: str
    age: int
    town: str
    hobbies: list[str]
    mood: Literal["happy", "sad", "angry", "calm", "tired"]


@lmprog.function
async def person(s: lmprog.Branch, text: str = TEXT) -> Person:
    s.append(f"Text: {text}\nExtract name, age, town, hobbies, mood as JSON.\nJSON: ")
    return await s.gen(
        Person, max_tokens=96, temperature=0
    )  # confined to the type, and a value of it


@lmprog.function
async def place(s: lmprog.Branch, text: str = TEXT) -> dict[str, Any]:
    s.append(f"Text: {text}\nExtract town, name as JSON.\nJSON: ")
    found: dict[str, Any] = json.loads(await s.gen(schema=SCHEMA, max_tokens=48, temperature=0))
    return found


def main() -> None:
    run = person.run()
    print(run.value)
    usage = run.usage
    print(f"{usage.generated} tokens, {usage.forced} of them forced: the type left no choice\n")
    print(place.run().value)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Text to typed objects.")
    options.add_argument("--model", default="nano", help="name or folder (default: nano)")
    with lmprog.Runtime(options.parse_args().model) as runtime:
        lmprog.set_default_backend(runtime)
        main()
