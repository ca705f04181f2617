"""Generations of Python types: what confines them, and the values that come back."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import UnsupportedSchema, ValidationFailed
from lmprog.testing import Scripted


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int


class Row(TypedDict):
    name: str
    tags: list[str]


@lmprog.function
def typed(s: lmprog.Branch, tp: Any) -> object:
    s.append("x")
    return s.gen(tp).value


@pytest.mark.parametrize(
    ("tp", "text", "value"),
    [
        (str, "plain", "plain"),
        (int, "-42", -42),
        (float, "1e-3", 0.001),
        (bool, "true", True),
        (Literal["yes", "no"], "no", "no"),
        (Literal[1, 2], "2", 2),
        (Color, "blue", Color.BLUE),
        (list[int], "[1, 2]", [1, 2]),
        (int | None, "null", None),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (Row, '{"name": "n", "tags": []}', {"name": "n", "tags": []}),
    ],
)
def test_a_generation_comes_back_as_its_type(tp: object, text: str, value: object) -> None:
    with Scripted([text]) as scripted:
        assert typed.using(backend=scripted).run(tp).value == value
    asked = scripted.asked[0].op
    assert isinstance(asked, wire.Gen)
    assert (asked.constraint is None) == (tp is str)


def test_a_pydantic_model_comes_back_as_an_instance() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Invoice", vendor=(str, ...), total=(float, ...))
    with Scripted(['{"vendor": "ACME", "total": 12.5}']) as scripted:
        assert typed.using(backend=scripted).run(model).value == model(vendor="ACME", total=12.5)


def test_strings_to_choose_from_travel_bare_and_objects_as_a_schema_in_their_order() -> None:
    with Scripted(["red", '{"x": 1, "y": 2}']) as scripted:
        typed.using(backend=scripted).run(Color)
        typed.using(backend=scripted).run(Point)
    bare, schema = (asked.op.constraint for asked in scripted.asked if isinstance(asked.op, wire.Gen))
    assert bare == wire.Choices(("red", "blue"))
    assert isinstance(schema, wire.JsonSchema)
    assert list(json.loads(schema.schema)["$defs"]["Point"]["properties"]) == ["x", "y"]


def test_text_that_was_cut_fails_with_the_text_where_it_is_read() -> None:
    with Scripted(['{"x": 1, "y']) as scripted, pytest.raises(ValidationFailed) as caught:
        typed.using(backend=scripted).run(Point)
    assert caught.value.text == '{"x": 1, "y'


def test_a_type_without_a_schema_is_refused_where_it_is_asked_for() -> None:
    with Scripted() as scripted, pytest.raises(UnsupportedSchema):
        typed.using(backend=scripted).run(bytes)


def test_all_results_of_a_typed_generation_are_typed() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[int]:
        s.append("x")
        return s.gen(int, n=3).values

    with Scripted([["1", "2", "3"]]) as scripted:
        assert program.using(backend=scripted).run().value == [1, 2, 3]
