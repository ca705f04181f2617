"""Many programs under many different constraints at once: nobody waits for ever."""

from __future__ import annotations

import json
from itertools import permutations

import lmprog

FIELDS = ("name", "age", "town", "animal", "job")


def test_two_hundred_programs_under_a_hundred_schemas_all_end() -> None:
    orders = list(permutations(FIELDS, 3))

    @lmprog.function
    async def extract(s: lmprog.Branch, number: int) -> str:
        names = orders[number % len(orders)]
        fields = {
            name: {"type": "integer" if name == "age" else "string", "maxLength": 12}
            for name in names
        }
        if "age" in fields:
            del fields["age"]["maxLength"]
        schema = {
            "type": "object",
            "properties": fields,
            "required": list(names),
            "additionalProperties": False,
        }
        s.append(f"Text: Mia is 31 years old.\nExtract {', '.join(names)} as JSON.\nJSON: ")
        text: str = await s.gen(schema=schema, max_tokens=80, temperature=0, timeout=60)
        return text if isinstance(text, str) else json.dumps(text)

    with lmprog.Runtime("nano") as runtime:
        results = list(extract.using(backend=runtime).map(range(200), concurrency=32))
    for number, text in enumerate(results):
        assert tuple(json.loads(text)) == orders[number % len(orders)]
