"""Python types: what is generated for a type validates, and comes back as a value of it."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import random
import subprocess
import sys
import uuid
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict

import jsonschema
import pydantic
import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import UnsupportedSchema, ValidationFailed
from lmprog.lang.ops.type_schemas import schema_of, value_of
from tests.constraints.conftest import EOS


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: float


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


@dataclasses.dataclass
class Node:
    value: int
    children: list[Node]
    note: str | None = None


class Address(pydantic.BaseModel):
    street: Annotated[str, pydantic.Field(min_length=1, max_length=5, pattern="^[A-Z]")]
    number: Annotated[int, pydantic.Field(ge=1, lt=100)]


class Person(pydantic.BaseModel):
    name: str
    home: Address
    friends: list[Address] = []


Score = NewType("Score", int)

CASES: list[tuple[Any, str, Any]] = [
    (int, "3", 3),
    (float, "3", 3.0),
    (float, "2.5", 2.5),
    (bool, "true", True),
    (str, '"é"', "é"),
    (None, "null", None),
    (Any, '{"a": [1]}', {"a": [1]}),
    (decimal.Decimal, "1.10", decimal.Decimal("1.10")),
    (datetime.date, '"2024-02-29"', datetime.date(2024, 2, 29)),
    (
        datetime.datetime,
        '"2024-02-29T01:02:03+00:00"',
        datetime.datetime(2024, 2, 29, 1, 2, 3, tzinfo=datetime.UTC),
    ),
    (
        uuid.UUID,
        '"123e4567-e89b-12d3-a456-426614174000"',
        uuid.UUID("123e4567-e89b-12d3-a456-426614174000"),
    ),
    (Color, '"blue"', Color.BLUE),
    (Level, "2", Level.HIGH),
    (Literal["a", 1, None], "1", 1),
    (Literal[True, 1], "true", True),
    (list[int], "[1, 2]", [1, 2]),
    (list, "[1]", [1]),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (dict, "{}", {}),
    (dict[Color, int], '{"red": 1}', {Color.RED: 1}),
    (tuple[int, str], '[1, "a"]', (1, "a")),
    (tuple[int, ...], "[1, 2, 3]", (1, 2, 3)),
    (tuple[()], "[]", ()),
    (Point, "[1, 2.5]", Point(1, 2.5)),
    (int | None, "null", None),
    (int | str, '"a"', "a"),
    (list[int | None], "[1, null]", [1, None]),
    (Score, "7", 7),
    (Movie, '{"title": "x"}', {"title": "x"}),
    (Movie, '{"title": "x", "year": 1}', {"title": "x", "year": 1}),
    (Node, '{"value": 1, "children": [{"value": 2, "children": []}]}', Node(1, [Node(2, [])])),
    (Annotated[int, pydantic.Field(ge=3, le=5)], "4", 4),
    (Annotated[list[int], pydantic.Field(min_length=2)], "[1, 2]", [1, 2]),
    (Annotated[str, pydantic.Field(max_length=2)], '"ab"', "ab"),
    (
        Person,
        '{"name": "n", "home": {"street": "A", "number": 9}}',
        Person(name="n", home=Address(street="A", number=9)),
    ),
    (list[Person], "[]", []),
    (
        dict[str, Address],
        '{"k": {"street": "B", "number": 1}}',
        {"k": Address(street="B", number=1)},
    ),
]


@pytest.mark.parametrize(("tp", "text", "value"), CASES, ids=str)
def test_a_type_takes_its_values_and_gives_them_back(
    tp: Any, text: str, value: Any, small: Vocabulary
) -> None:
    schema = schema_of(tp)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(text), schema)
    constraint = compile_constraint(wire.JsonSchema(json.dumps(schema)), small)
    state = constraint.advance_bytes(constraint.start, text.encode())
    assert state is not None
    assert constraint.is_final(state)
    found = value_of(tp, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("tp", [tp for tp, _, _ in CASES if tp is not Any], ids=str)
def test_what_a_random_model_writes_for_a_type_is_a_value_of_it(
    tp: Any, small: Vocabulary, rng: random.Random
) -> None:
    schema = schema_of(tp)
    constraint = compile_constraint(wire.JsonSchema(json.dumps(schema)), small)
    for _ in range(3):
        state, out = constraint.start, b""
        for left in range(constraint.distance(state) + 30, 0, -1):
            moves = [
                t for t in range(len(small)) if constraint.mask(state, left).allows(t) and t != EOS
            ]
            if not moves:
                break
            token = rng.choice(moves)
            out += small.bytes_of(token) or b""
            state = constraint.advance(state, token)
        assert constraint.is_final(state)
        jsonschema.validate(json.loads(out), schema)
        value_of(tp, out.decode())


@pytest.mark.parametrize(
    ("tp", "text"),
    [
        (int, "1.5"),
        (int, "true"),
        (int, "1"[:0]),
        (bool, "1"),
        (Color, '"green"'),
        (Literal[1], "true"),
        (Point, "[1]"),
        (Movie, "{}"),
        (Node, '{"value": 1}'),
        (Person, "{}"),
        (list[int], '["a"]'),
        (int | None, '"x"'),
        (datetime.date, '"x"'),
    ],
)
def test_a_text_that_is_no_value_fails_with_the_text(tp: Any, text: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        value_of(tp, text)
    assert caught.value.text == text


@pytest.mark.parametrize("tp", [complex, dict[int, str], list[complex], Literal[b"a"]], ids=str)
def test_a_type_without_a_schema_is_refused(tp: Any) -> None:
    with pytest.raises(UnsupportedSchema):
        schema_of(tp)


def test_the_mapping_imports_no_numpy_and_no_torch() -> None:
    code = (
        "import sys, lmprog.lang.ops.type_schemas; "
        "print([m for m in ('numpy', 'torch', 'pydantic') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
