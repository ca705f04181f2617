"""A typed generation that names no `max_tokens` may use what the longest value of its type needs."""

from __future__ import annotations

import dataclasses
import datetime
import json
import random
import uuid
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.lang.ops.type_schemas import schema_of
from lmprog.lang.ops.typed import constraint_of
from lmprog.testing import Scripted
from lmprog.wire.default_limits import GENERAL, MOST, default_tokens, longest_json

Grade = Annotated[int, pydantic.Field(ge=-5, le=120)]
Name = Annotated[str, pydantic.Field(max_length=6)]


@dataclasses.dataclass
class Row:
    day: datetime.date
    grade: Grade
    kind: Literal["small", "large"] | None = None


class Pair(NamedTuple):
    left: bool
    right: Grade


class Team(pydantic.BaseModel):
    names: Annotated[list[Name], pydantic.Field(max_length=3)]
    best: Row | None


@dataclasses.dataclass
class Chain:
    after: Chain | None


BOUNDED: list[Any] = [bool, Grade, Name, Row, Pair, Team, uuid.UUID, tuple[Grade, bool], None]
UNBOUNDED: list[Any] = [str, list[int], dict[str, bool], Any, Chain, list[Row]]


@pytest.mark.parametrize("tp", BOUNDED, ids=str)
def test_no_value_of_a_bounded_type_is_longer_than_its_bound(tp: Any) -> None:
    """A random walk over letters, which escapes nothing that need not be escaped."""
    letters = [bytes([byte]) for byte in range(32, 127) if byte != ord("\\")]
    constraint = compile_constraint(
        wire.JsonSchema(json.dumps(schema_of(tp))), Vocabulary([*letters, None], [len(letters)])
    )
    most = longest_json(schema_of(tp))
    assert most is not None
    rng = random.Random(5)
    for _ in range(20):
        state, length = constraint.start, 0
        while moves := [t for t in range(len(letters)) if constraint.mask(state).allows(t)]:
            state, length = constraint.advance(state, rng.choice(moves)), length + 1
        assert constraint.is_final(state)
        assert length <= most


@pytest.mark.parametrize("tp", UNBOUNDED, ids=str)
def test_a_type_whose_values_have_no_longest_one_has_the_highest_default(tp: Any) -> None:
    assert longest_json(schema_of(tp)) is None
    assert default_tokens(constraint_of(tp)) == (GENERAL if tp is str else MOST)
    assert default_tokens(constraint_of(tp), 400) == (GENERAL if tp is str else 200)
    assert default_tokens(constraint_of(tp), 100) == GENERAL


def test_the_longest_value_of_a_type_needs_exactly_its_bound() -> None:
    assert longest_json(schema_of(bool)) == len("false")
    assert longest_json(schema_of(Grade)) == len("120")
    assert longest_json(schema_of(Literal["a", "ü"])) == len('"ü"'.encode())
    assert longest_json(schema_of(Name)) == len('""') + 4 * 6


def asked(tp: Any, text: str, **options: Any) -> int | None:
    """The `max_tokens` of the request for a value of `tp`."""

    @lmprog.function
    def program(s: lmprog.Branch) -> Any:
        return s.gen(tp, **options).value

    with Scripted([text]) as scripted:
        program.using(backend=scripted).run()
    op = scripted.asked[0].op
    assert isinstance(op, wire.Generate)
    return op.sampling.max_tokens


def test_a_budget_that_is_given_counts_and_a_default_is_bounded() -> None:
    notes = Annotated[list[Name], pydantic.Field(max_length=10)]
    book = Annotated[list[Name], pydantic.Field(max_length=1000)]
    assert asked(notes, "[]") == longest_json(schema_of(notes)) == 282
    assert asked(notes, "[]", max_tokens=40) == 40
    assert asked(book, "[]") == MOST
    assert asked(bool, "true") == GENERAL


def turn_asked(tp: Any, backend: Any, **options: Any) -> int | None:
    """The `max_tokens` of the request for a turn."""

    @lmprog.function
    def program(s: lmprog.Branch) -> wire.SamplingParams:
        s.user("Go on.")
        gen = s.gen(tp, **options)
        assert isinstance(gen.wanted, wire.Generate)
        gen.was_read = True
        return gen.wanted.sampling

    return program.run(backend=backend).value.max_tokens


def test_a_turn_may_use_what_is_left_of_the_context(backend: RuntimeBackend) -> None:
    service = Scripted(lambda prompt: "7")
    assert turn_asked(str, service) is None
    assert turn_asked(int, service) is None, "reasoning before it counts, too"
    assert turn_asked(str, service, max_tokens=5) == 5
    assert turn_asked(str, service, n=1, keep="majority") == MOST
    assert turn_asked(int, backend) == GENERAL, "a runtime confines it"
    assert asked(str, "7") == MOST, "text on a service"


def test_a_text_that_is_cut_is_told_on_the_run_and_warned_of_once(backend: RuntimeBackend) -> None:
    @lmprog.function
    def program(s: lmprog.Branch, most: int) -> None:
        s.append("abc")
        s.gen("given", max_tokens=most, ignore_eos=True)
        for _ in range(2):
            s.gen("own", ignore_eos=True)

    with pytest.warns(UserWarning, match="<gen 'own'> was cut after 128 tokens") as told:
        run = program.run(3, backend=backend)
    assert len({(one.filename, one.lineno) for one in told}) == 1
    assert run.truncated == ("given", "own", "own")

    @lmprog.function
    def whole(s: lmprog.Branch) -> None:
        s.append("abc")
        s.gen("all")

    with Scripted(["x"]) as scripted:
        assert whole.run(backend=scripted).truncated == ()
