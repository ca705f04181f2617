"""17 usual types, and more, on the strict doubles of services: taken by both, and read right."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from pydantic import BaseModel, Field

from lmprog.errors import ValidationFailed
from lmprog.testing import StrictAnthropic, StrictOpenAI
from tests.backends.test_strict_doubles import SERVICES, Service, each_service, typed


class Color(enum.Enum):
    RED = "red"
    TWO = 2


@dataclasses.dataclass
class Point:
    x: int
    y: int = 7


class Part(BaseModel):
    count: int = Field(ge=1, le=9, description="how many")


class Invoice(BaseModel):
    vendor: str
    part: Part = Field(description="the one that matters")
    others: list[Part]


class Settings(BaseModel):
    name: str
    size: int = 3
    tags: list[str] = ["new"]


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Node(BaseModel):
    value: int
    children: list[Node] = []


def entries(**given: object) -> list[dict[str, object]]:
    return [{"key": key, "value": value} for key, value in given.items()]


PART = {"count": 2}
FOUR_DEEP = Node(value=1, children=[Node(value=2, children=[Node(value=3)])])
TYPES: dict[str, tuple[Any, object, object]] = {
    # the type, what a service writes in the form that it was asked for, the value
    "int": (int, {"value": 42}, 42),
    "float": (float, {"value": 0.5}, 0.5),
    "bool": (bool, {"value": True}, True),
    "str": (str, "any text", "any text"),
    "Literal": (Literal["yes", "no"], {"value": "no"}, "no"),
    "Enum": (Color, {"value": 2}, Color.TWO),
    "list": (list[int], {"value": [1, 2]}, [1, 2]),
    "dict": (dict[str, int], {"value": entries(a=1, b=2)}, {"a": 1, "b": 2}),
    "Optional": (int | None, {"value": None}, None),
    "Union": (int | str, {"value": "x"}, "x"),
    "discriminated union": (
        Owner,
        {"pet": {"kind": "dog", "name": "Rex"}},
        Owner(pet=Dog(kind="dog", name="Rex")),
    ),
    "dataclass": (Point, {"x": 1, "y": 2}, Point(1, 2)),
    "nested model": (
        Invoice,
        {"vendor": "A", "part": PART, "others": [PART]},
        Invoice(vendor="A", part=Part(count=2), others=[Part(count=2)]),
    ),
    "model with defaults": (
        Settings,
        {"name": "n", "size": 4, "tags": []},
        Settings(name="n", size=4, tags=[]),
    ),
    "TypedDict": (Movie, {"title": "M", "year": 1931}, {"title": "M", "year": 1931}),
    "recursive model": (Node, FOUR_DEEP.model_dump(), FOUR_DEEP),
    "date": (datetime.date, {"value": "2026-11-27"}, datetime.date(2026, 11, 27)),
}
MORE: dict[str, tuple[Any, object, object]] = {
    "datetime": (
        datetime.datetime,
        {"value": "2026-11-27T01:02:03"},
        datetime.datetime(2026, 11, 27, 1, 2, 3),
    ),
    "tuple": (tuple[int, str], {"item_1": 1, "item_2": "a"}, (1, "a")),
    "Decimal": (
        decimal.Decimal,
        '{"value": 123456789012.123450}',
        decimal.Decimal("123456789012.123450"),
    ),
    "dict of Decimals": (
        dict[str, decimal.Decimal],
        '{"value": [{"key": "a", "value": 0.1234567890123456789}]}',
        {"a": decimal.Decimal("0.1234567890123456789")},
    ),
    "dict of options": (dict[Literal["a", "b"], int], {"a": 1, "b": 2}, {"a": 1, "b": 2}),
    "dict of lists of dicts": (
        dict[str, list[dict[str, int]]],
        {"value": entries(a=[entries(b=1)])},
        {"a": [{"b": 1}]},
    ),
    "any value": (Any, {"value": '{"a": [1, null]}'}, {"a": [1, None]}),
    "union of a map and a text": (
        dict[str, int] | str,
        {"value": entries(key=1)},
        {"key": 1},
    ),
}


def test_there_are_17_usual_types() -> None:
    assert len(TYPES) == 17


@each_service
@pytest.mark.parametrize("name", [*TYPES, *MORE])
def test_a_usual_type_is_taken_and_its_value_read(make: Callable[..., Service], name: str) -> None:
    tp, answer, value = {**TYPES, **MORE}[name]
    text = answer if isinstance(answer, str) else json.dumps(answer)
    with make([text]) as service, service.connect() as backend:
        found = typed.using(backend=backend).run(tp).value
    assert (found, type(found)) == (value, type(value))


@each_service
@pytest.mark.parametrize("name", [*TYPES, *MORE])
def test_the_least_answer_to_a_usual_type_is_a_value_of_it(
    make: Callable[..., Service], name: str
) -> None:
    """Where no answers are written, and a text that is JSON stands for any value."""
    tp = {**TYPES, **MORE}[name][0]
    if tp is Any or (tp is Invoice and make is StrictAnthropic):
        return  # "" is no JSON; the bound of `count` is not asked of Anthropic
    with make() as service, service.connect() as backend:
        typed.using(backend=backend).run(tp)


def test_a_field_with_a_default_may_be_left_out() -> None:
    """By null where a service wants all fields: the rest stays strict."""
    for make, left_out in (
        (StrictOpenAI, {"name": "n", "size": None, "tags": None}),
        (StrictAnthropic, {"name": "n"}),
    ):
        with make([json.dumps(left_out)]) as service, service.connect() as backend:
            assert typed.using(backend=backend).run(Settings).value == Settings(name="n")
        sent = json.dumps(service.requests)
        assert '"strict": false' not in sent
        assert '"default"' not in sent


def test_a_null_that_the_type_allows_is_a_value() -> None:
    class Loose(BaseModel):
        size: int | None = 5

    for make in SERVICES.values():
        with make(['{"size": null}']) as service, service.connect() as backend:
            assert typed.using(backend=backend).run(Loose).value == Loose(size=None)


@pytest.mark.parametrize(
    ("tp", "answer"),
    [
        (Annotated[int, Field(ge=1, le=5)], {"value": 6}),
        (Annotated[str, Field(min_length=3)], {"value": "ab"}),
        (Annotated[list[int], Field(min_length=2)], {"value": [1]}),
        (Annotated[set[int], Field(min_length=2)], {"value": [1, 1]}),
        (Annotated[str, Field(pattern="^(?=a)[a-z]+$")], {"value": "b"}),
        (Part, {"count": 10}),
    ],
)
def test_a_bound_that_a_service_cannot_keep_is_checked_in_the_answer(
    tp: Any, answer: object
) -> None:
    with StrictAnthropic([json.dumps(answer)]) as service, service.connect() as backend:
        with pytest.raises(ValidationFailed):
            typed.using(backend=backend).run(tp)
        assert "minimum" not in [*_keys(service.requests[0])]


def test_what_cannot_be_asked_for_is_said_in_the_description() -> None:
    with StrictAnthropic(['{"count": 2}']) as service, service.connect() as backend:
        typed.using(backend=backend).run(Part)
    count = service.requests[0]["output_config"]["format"]["schema"]["properties"]["count"]
    assert count == {"type": "integer", "description": "how many\nmaximum: 9, minimum: 1"}


def test_recursion_that_a_service_does_not_know_ends_in_json_as_text() -> None:
    deep = Node(value=0)
    for value in range(1, 9):
        deep = Node(value=value, children=[deep])
    sent = deep.model_dump()
    level = sent
    for _ in range(4):
        level = level["children"][0]
    level["children"] = [json.dumps(child) for child in level["children"]]
    with StrictAnthropic([json.dumps(sent)]) as service, service.connect() as backend:
        assert typed.using(backend=backend).run(Node).value == deep


def _keys(node: Any) -> list[str]:
    if isinstance(node, list):
        return [key for part in node for key in _keys(part)]
    if not isinstance(node, dict):
        return []
    return [*node, *(key for part in node.values() for key in _keys(part))]
