"""Objects that are still being written: they only grow, cost no more than their text, and end as
the value.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import itertools
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmprog
from lmprog.lang.ops.type_schemas import value_of
from lmprog.lang.ops.type_values import convert
from lmprog.lang.streaming.partial import GrowingJson, Partial, PartialText, plain
from lmprog.testing import Scripted
from lmprog.wire.constraints import exact_json


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Row(TypedDict):
    name: str
    tags: list[str]


class Pair(NamedTuple):
    left: int
    right: str


@dataclass
class Point:
    x: int
    y: int


@dataclass
class Shape:
    name: str
    color: Color
    corners: list[Point]
    at: Point | None = None
    notes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a shape has a name")


def _all(tp: Any, pieces: Sequence[str]) -> list[Any]:
    text = PartialText("v", tp)
    return [partial.value for piece in pieces if (partial := text.feed(piece)) is not None]


def _by_character(tp: Any, text: str) -> list[Any]:
    return _all(tp, list(text))


def _grew(before: Any, after: Any) -> bool:
    """Whether `after` is `before` with more in it."""
    if before is None:
        return True
    if isinstance(before, str) and isinstance(after, str):
        return after.startswith(before)
    if dataclasses.is_dataclass(before):
        return type(before) is type(after) and _grew(vars(before), vars(after))
    if isinstance(before, dict) and isinstance(after, dict):
        return all(key in after and _grew(value, after[key]) for key, value in before.items())
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        return len(before) <= len(after) and all(map(_grew, before, after))
    return bool(before == after)


# --- single cases


def test_members_come_one_by_one_and_are_none_before() -> None:
    seen = _by_character(Point, '{"x": 12, "y": 3}')
    assert seen[0] == Point(None, None)  # type: ignore[arg-type]
    assert Point(12, None) in seen  # type: ignore[arg-type]
    assert Point(1, None) not in seen, "a number is there once it is complete"  # type: ignore[arg-type]
    assert seen[-1] == Point(12, 3)


def test_strings_are_there_as_far_as_they_have_come_and_enums_once_they_are_complete() -> None:
    seen = _by_character(Shape, '{"name": "abc", "color": "blue", "corners": []}')
    names = [shape.name for shape in seen]
    assert list(dict.fromkeys(names)) == [None, "", "a", "ab", "abc"]
    assert list(dict.fromkeys(shape.color for shape in seen)) == [None, Color.BLUE]


def test_a_complete_part_of_an_open_object_is_a_full_checked_value() -> None:
    [before, after] = _all(list[Point], ['[{"x": 1', ', "y": 2}'])
    assert before == [Point(None, None)]  # type: ignore[arg-type]
    assert after == [Point(1, 2)]


def test_a_class_that_checks_itself_is_not_asked_before_it_is_complete() -> None:
    text = '{"name": "n", "color": "red", "corners": []}'
    assert _by_character(Shape, text)[-1] == Shape("n", Color.RED, [])


def test_typed_dicts_leave_out_what_is_missing_and_named_tuples_have_none() -> None:
    assert _by_character(Row, '{"name": "n", "tags": ["a"')[0] == {}
    assert _by_character(Row, '{"name": "n", "tags": ["a"')[-1] == {"name": "n", "tags": ["a"]}
    assert _by_character(Pair, '[1, "a')[-1] == Pair(1, "a")
    assert _by_character(Pair, "[1,")[-1] == Pair(1, None)  # type: ignore[arg-type]


def test_what_a_union_is_shows_only_when_it_is_certain() -> None:
    both = _by_character(list[Point | Row], '[{"x": 1, "y": 2}')
    assert both[:-1] == [[]] * (len(both) - 1)
    assert both[-1] == [Point(1, 2)]
    assert _by_character(list[Point | None], '[{"x": 1,')[-1] == [Point(1, None)]  # type: ignore[arg-type]
    assert _by_character(list[Literal["yes", "no"]], '["ye')[-1] == []


def test_a_pydantic_model_is_not_validated_before_it_is_complete() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model(
        "Invoice", vendor=(str, ...), total=(float, pydantic.Field(gt=0, alias="sum"))
    )
    seen = _by_character(model, '{"vendor": "AC", "sum": 1.5}')
    assert (seen[0].vendor, seen[0].total) == (None, None)
    assert [invoice.vendor for invoice in seen][1:4] == ["", "A", "AC"]
    assert seen[-1] == model(vendor="AC", sum=1.5)


def test_text_around_the_object_is_skipped_and_nonsense_stops_it() -> None:
    assert _all(list[int], ["Here: ```json\n[1, ", "2]", "``` done [3"])[-1] == [1, 2]
    assert _all(list[int], ["[1, ", "] ! 2, 3]"]) == [[1]]
    assert _all(list[int], ["[1, nonsense, 2]"]) == [[1]]


def test_escapes_that_are_cut_wait_for_their_rest() -> None:
    text = json.dumps(['a\n"\\/é😀b'])
    seen = [value[0] for value in _by_character(list[str], text) if value]
    assert seen[-1] == 'a\n"\\/é😀b'
    assert all(seen[-1].startswith(part) for part in seen)


def test_an_event_shows_what_had_come_when_it_was_made_however_late_it_is_read() -> None:
    text = PartialText("v", Row)
    events = [
        event
        for piece in ('{"name": "a', 'bc", "tags": ["x"', ', "y"]}')
        if (event := text.feed(piece))
    ]
    assert [event.value for event in reversed(events)] == [
        {"name": "abc", "tags": ["x", "y"]},
        {"name": "abc", "tags": ["x"]},
        {"name": "a"},
    ]


# --- properties

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(
    st.lists(_JSON, max_size=5) | st.dictionaries(st.text(max_size=3), _JSON, max_size=5),
    st.booleans(),
    st.data(),
)
def test_any_json_cut_anywhere_grows_to_what_it_is(
    value: Any, is_ascii: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=data.draw(st.sampled_from([None, 1])))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)) | {0, len(text)})
    growing = GrowingJson()
    seen = []
    for begin, end in itertools.pairwise(cuts):
        if growing.feed(text[begin:end]):
            seen.append(growing.seen())
    values = [plain(shot.root, shot) for shot in seen if shot is not None]
    assert values[-1] == exact_json(text)
    assert [convert(Any, values[-1])] == [value], "fractions of untyped values are floats"
    assert all(map(_grew, values, values[1:]))
    assert growing.num_read == len(text), "every character is looked at once"


@given(st.lists(st.text(alphabet='[]{},:"\\u0dtrueNaN1.e- \n', max_size=6), max_size=30))
def test_nonsense_never_raises_and_never_takes_anything_back(pieces: list[str]) -> None:
    values = _all(Any, pieces)
    assert all(map(_grew, values, values[1:]))


def test_what_is_nested_too_deeply_for_python_has_no_value_and_does_no_harm() -> None:
    text = PartialText("v", list[Any])
    event = text.feed("[" * 100_000)
    assert event is not None
    assert event.value is None
    last = text.feed("]" * 100_000)
    assert last is not None
    assert last.value is None


def _of(kind: Any, *args: Any) -> Any:
    return kind[args if len(args) > 1 else args[0]]


def _random_type(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.choice(
        [
            "int",
            "str",
            "bool",
            "float",
            "enum",
            "list",
            "dict",
            "optional",
            "record",
            "typed",
            "tuple",
        ]
    )
    if depth > 2 and kind in ("list", "dict", "optional", "record", "typed", "tuple"):
        kind = "str"
    plain_types = {"int": int, "str": str, "bool": bool, "float": float, "enum": Color}
    if kind in plain_types:
        return plain_types[kind]
    if kind == "list":
        return _of(list, _random_type(rng, depth + 1))
    if kind == "dict":
        return _of(dict, str, _random_type(rng, depth + 1))
    if kind == "tuple":
        return _of(tuple, _random_type(rng, depth + 1), _random_type(rng, depth + 1))
    if kind == "optional":
        return _random_type(rng, depth + 1) | None
    members = {f"m{index}": _random_type(rng, depth + 1) for index in range(rng.randint(1, 4))}
    if kind == "typed":
        return TypedDict(f"T{rng.randrange(10**9)}", members)  # type: ignore[operator]
    return dataclasses.make_dataclass(f"D{rng.randrange(10**9)}", members.items())


def _random_value(rng: random.Random, tp: Any) -> Any:
    """JSON data of the type."""
    origin: Any = getattr(tp, "__origin__", None)
    args: tuple[Any, ...] = getattr(tp, "__args__", ())
    if tp in (int, float):
        return rng.randint(-1000, 1000) if tp is int else rng.uniform(-5, 5)
    if tp in (str, bool):
        return (
            "".join(rng.choices('ab "\\é\n😀', k=rng.randint(0, 12)))
            if tp is str
            else rng.random() < 0.5
        )
    if tp is Color:
        return rng.choice(["red", "blue"])
    if origin is list:
        return [_random_value(rng, args[0]) for _ in range(rng.randint(0, 3))]
    if origin is dict:
        return {f"k{index}": _random_value(rng, args[1]) for index in range(rng.randint(0, 3))}
    if origin is tuple:
        return [_random_value(rng, arg) for arg in args]
    if type(None) in args:
        return None if rng.random() < 0.3 else _random_value(rng, args[0])
    hints = (
        {f.name: f.type for f in dataclasses.fields(tp)}
        if dataclasses.is_dataclass(tp)
        else tp.__annotations__
    )
    return {name: _random_value(rng, hint) for name, hint in hints.items()}


@pytest.mark.parametrize("seed", range(150))
def test_a_partial_object_of_a_random_type_only_grows_and_ends_as_the_value(seed: int) -> None:
    rng = random.Random(seed)
    tp = _of(list, _random_type(rng))
    text = json.dumps(_random_value(rng, tp), ensure_ascii=rng.random() < 0.5)
    pieces, rest = [], text
    while rest:
        size = rng.randint(1, 5)
        pieces.append(rest[:size])
        rest = rest[size:]
    values = _all(tp, pieces)
    assert all(map(_grew, values, values[1:])), (tp, text)
    assert values[-1] == value_of(tp, text)


def test_a_long_string_costs_as_much_as_it_is_long() -> None:
    """Reading is linear (each character once), and an event that nobody reads is a few lengths."""

    def events(num_pieces: int) -> tuple[float, int]:
        text = PartialText("v", Row)
        text.feed('{"name": "')
        begin = time.process_time()
        last = None
        for _ in range(num_pieces):
            last = text.feed("some words ")
        assert last is not None
        assert len(last.value["name"]) == 11 * num_pieces
        return time.process_time() - begin, text._growing.num_read

    small, large = events(2_000), events(64_000)
    assert large[1] == 10 + 11 * 64_000
    assert large[0] < 32 * max(small[0], 0.002) * 8, (
        "32 times the text may not take 1,024 times as long"
    )


# --- in a stream


@lmprog.function
async def made(s: lmprog.Branch) -> Shape:
    s.append("A shape: ")
    return await s.gen(Shape, name="shape")


SHAPE = '{"name": "a long name", "color": "red", "corners": [{"x": 1, "y": 2}]}'


def test_a_stream_of_a_typed_generation_has_partial_objects_between_text_and_value() -> None:
    async def main() -> list[object]:
        return [event async for event in made.using(backend=scripted).stream()]

    with Scripted([SHAPE]) as scripted:
        events = asyncio.run(main())
    partials = [event for event in events if isinstance(event, Partial)]
    assert {event.var for event in partials} == {"shape"}
    assert all(_grew(a.value, b.value) for a, b in itertools.pairwise(partials))
    assert "a long" in [partial.value.name for partial in partials]
    final = value_of(Shape, SHAPE)
    assert partials[-1].value == final
    assert events[-2:-1] == [lmprog.Value("shape", final)]
    assert isinstance(events[0], lmprog.Text), "the text that told it comes first"


def test_a_stream_of_plain_text_has_no_partial_objects() -> None:
    @lmprog.function
    async def plain_text(s: lmprog.Branch) -> str:
        return await s.gen(name="v", schema={"type": "array"})

    with Scripted(["[1, 2]"]) as scripted:
        events = list(plain_text.using(backend=scripted).stream())
    assert not [event for event in events if isinstance(event, Partial)]


def test_matching_takes_a_partial_apart() -> None:
    event = PartialText("v", list[int]).feed("[1,")
    match event:
        case Partial(var, [first]):
            assert (var, first) == ("v", 1)
        case _:
            pytest.fail(f"{event!r}")
    assert repr(event) == "Partial(var='v', value=[1])"
