"""Generations of Python types: what confines them, and the values that come back."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import LmprogError, UnsupportedSchema, ValidationFailed
from lmprog.testing import Scripted


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int


@dataclass
class Height:
    x: int


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 10


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
    assert isinstance(asked, wire.Generate)
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
    bare, schema = (
        asked.op.constraint for asked in scripted.asked if isinstance(asked.op, wire.Generate)
    )
    assert bare == wire.Choices(("red", "blue"))
    assert isinstance(schema, wire.JsonSchema)
    assert list(json.loads(schema.schema)["$defs"]["Point"]["properties"]) == ["x", "y"]


def test_text_that_was_cut_fails_with_the_text_where_it_is_read() -> None:
    cut = Scripted(['{"x": 1, "y'], strict=False)
    with cut as scripted, pytest.raises(ValidationFailed) as caught:
        typed.using(backend=scripted).run(Point)
    assert caught.value.text == '{"x": 1, "y'


def test_a_type_without_a_schema_is_refused_where_it_is_asked_for() -> None:
    with Scripted() as scripted, pytest.raises(UnsupportedSchema):
        typed.using(backend=scripted).run(complex)


def test_all_results_of_a_typed_generation_are_typed() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[int]:
        s.append("x")
        return s.gen(int, n=3).values

    with Scripted([["1", "2", "3"]]) as scripted:
        assert program.using(backend=scripted).run().value == [1, 2, 3]


def test_of_a_union_it_is_the_member_that_has_all_that_was_written() -> None:
    """The first member would fit as well, if what it does not know were dropped."""
    with Scripted(['{"x": 1, "y": 2}', '{"x": 1}']) as scripted:
        assert typed.using(backend=scripted).run(Height | Point).value == Point(1, 2)
        assert typed.using(backend=scripted).run(Height | Point).value == Height(1)


def test_of_a_union_of_models_it_is_the_one_that_has_all_that_was_written() -> None:
    pydantic = pytest.importorskip("pydantic")
    small = pydantic.create_model("Small", x=(int, ...))
    large = pydantic.create_model("Large", x=(int, ...), y=(int, ...))
    open_one = pydantic.create_model("Open", __config__={"extra": "allow"}, x=(int, ...))
    in_small = pydantic.create_model("InSmall", a=(small, ...))
    in_large = pydantic.create_model("InLarge", a=(large, ...))
    texts = [
        '{"x": 1, "y": 2}',
        '{"a": {"x": 1, "y": 2}}',
        '{"x": 1, "z": 2}',
        '[{"x": 1}, {"x": 1, "y": 2}]',
    ]
    with Scripted(texts) as scripted:
        program = typed.using(backend=scripted)
        assert program.run(small | large).value == large(x=1, y=2)
        assert program.run(in_small | in_large).value == in_large(a=large(x=1, y=2))
        assert program.run(open_one | None).value == open_one(x=1, z=2)
        assert program.run(list[small | large]).value == [small(x=1), large(x=1, y=2)]  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("tp", "stop"),
    [
        (int | None, ("\n",)),
        (Annotated[int, "any note"], ("\n",)),
        (Decimal, ("\n",)),
        (Literal[1, 10], ("\n",)),
        (Size, ("\n",)),
        (float | Literal["none"], ("\n",)),
        (bool, ()),
        (str | None, ()),
        (list[int], ()),
        (int | list[int], ()),  # within an array, a line may end
        (Literal["a", "b\nc"], ()),
    ],
)
def test_what_may_be_a_number_ends_with_its_line(tp: object, stop: tuple[str, ...]) -> None:
    with (
        Scripted(lambda prompt: LmprogError("not asked further")) as scripted,
        pytest.raises(LmprogError),
    ):
        typed.using(backend=scripted).run(tp)
    asked = scripted.asked[0].op
    assert isinstance(asked, wire.Generate)
    assert asked.sampling.stop == stop


def test_a_type_that_names_an_unknown_type_is_refused_with_that_name() -> None:
    @dataclass
    class Outer:
        inner: Unknown  # type: ignore[name-defined]  # noqa: F821

    with Scripted() as scripted, pytest.raises(UnsupportedSchema, match=r"Outer at # .*'Unknown'"):
        typed.using(backend=scripted).run(Outer)
