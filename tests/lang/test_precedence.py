"""Who decides how a generation is sampled: its call, a branch's view, a fork, the run, the program,
the defaults.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import InvalidParameter
from lmprog.lang.ops.sampling import Sampling
from lmprog.testing import Scripted

# Every field of `Sampling`, with three values that differ from its default and from each other.
VALUES: dict[str, tuple[Any, Any, Any]] = {
    "temperature": (0.25, 0.5, 0.75),
    "top_p": (0.25, 0.5, 0.75),
    "top_k": (2, 3, 4),
    "min_p": (0.25, 0.5, 0.75),
    "seed": (1, 2, 3),
    "max_tokens": (5, 6, 7),
    "faithful": (2, 3, 4),
    "min_tokens": (1, 2, 3),
    "stop": (("a",), ("b",), ("c", "d")),
    "stop_token_ids": ((1,), (2,), (3,)),
    "stop_regex": (("x",), ("y",), ("z",)),
    "frequency_penalty": (0.25, 0.5, 0.75),
    "presence_penalty": (0.25, 0.5, 0.75),
    "repetition_penalty": (1.25, 1.5, 1.75),
    "logit_bias": (((1, 1.0),), ((2, 1.0),), ((3, 1.0),)),
    "allowed_token_ids": ((1,), (2,), (3,)),
    "bad_words": (("a",), ("b",), ("c", "d")),
    "ignore_eos": (True, False, True),
    "skip_special_tokens": (False, True, False),
    "jump": ("exact", "canonical", "exact"),
    "logprobs": (1, 2, 3),
    "prompt_logprobs": (1, 2, 3),
    "n": (2, 3, 4),
    "beams": (wire.Beams(2), wire.Beams(3), wire.Beams(3, 0.5)),
}
LEVELS = (
    "call",
    "view",
    "fork",
    "run",
    "sampling of the run",
    "program",
)  # from the strongest to the weakest


def _asked(levels: dict[str, dict[str, Any]]) -> wire.SamplingParams:
    """The sampling that travels when each of the levels says something."""

    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("x")
        with s.fork(1, **levels.get("fork", {})) as [branch]:
            branch.with_(**levels.get("view", {})).gen(**levels.get("call", {}))

    of_run: dict[str, Any] = dict(levels.get("run", {}))
    if "sampling of the run" in levels:
        of_run["sampling"] = Sampling(**levels["sampling of the run"])
    with Scripted(
        lambda prompt: ["y"] * count if (count := _count(levels)) > 1 else "y"
    ) as scripted:
        program.using(**levels.get("program", {})).using(backend=scripted, **of_run).run()
    op = scripted.asked[0].op
    assert isinstance(op, wire.Generate)
    return op.sampling


def _count(levels: dict[str, dict[str, Any]]) -> int:
    said = [levels[level]["n"] for level in LEVELS if "n" in levels.get(level, {})]
    return said[0] if said else 1


def test_the_table_has_every_field() -> None:
    assert set(VALUES) == set(wire.SAMPLING_OPTIONS) - {"prompt_logprobs_start"}


@pytest.mark.parametrize("field", VALUES)
@pytest.mark.parametrize(("stronger", "weaker"), list(itertools.combinations(LEVELS, 2)))
def test_the_stronger_level_counts(field: str, stronger: str, weaker: str) -> None:
    first, second, _ = VALUES[field]
    sent = getattr(_asked({weaker: {field: second}, stronger: {field: first}}), field)
    if field == "seed" and stronger != "call":
        # a seed of more than one call is not used as it is: each call has one of its own, made from
        # it
        assert (
            sent
            == _asked({stronger: {field: first}}).seed
            != _asked({weaker: {field: second}}).seed
        )
    else:
        assert sent == first


@pytest.mark.parametrize("field", VALUES)
def test_levels_that_say_different_things_all_count(field: str) -> None:
    other = "temperature" if field != "temperature" else "top_p"
    value = VALUES[field][0]
    sampling = _asked({"call": {other: 0.125}, "program": {field: value}})
    assert getattr(sampling, other) == 0.125
    assert field == "seed" or getattr(sampling, field) == value


def test_where_nobody_says_anything_the_defaults_count() -> None:
    sampling = _asked({})
    assert sampling == wire.SamplingParams(seed=sampling.seed, max_tokens=1024)
    assert sampling.seed is not None, "every run can be done again"


def test_a_later_using_counts_over_an_earlier_one_and_run_over_both() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("x")
        s.gen()

    with Scripted(["a", "b"]) as scripted:
        settled = program.using(temperature=0.25, top_p=0.5).using(
            temperature=0.5, backend=scripted
        )
        settled.run()
        settled.run(temperature=0.75)  # type: ignore[call-arg]
    sent = [asked.op.sampling for asked in scripted.asked if isinstance(asked.op, wire.Generate)]
    assert [(sampling.temperature, sampling.top_p) for sampling in sent] == [
        (0.5, 0.5),
        (0.75, 0.5),
    ]


def test_a_nested_program_has_its_own_settings_over_the_callers_branch() -> None:
    @lmprog.function
    def inner(s: lmprog.Branch) -> None:
        s.gen()

    @lmprog.function
    def outer(s: lmprog.Branch) -> None:
        s.append("x")
        inner.using(top_k=3)(s.with_(temperature=0.25, top_k=9))

    with Scripted(["a"]) as scripted:
        outer.using(backend=scripted, temperature=0.75, min_p=0.5).run()
    op = scripted.asked[0].op
    assert isinstance(op, wire.Generate)
    assert (op.sampling.top_k, op.sampling.temperature, op.sampling.min_p) == (3, 0.25, 0.5)


def test_stops_of_two_levels_are_not_joined() -> None:
    assert _asked({"call": {"stop": "a"}, "run": {"stop": "b"}}).stop == ("a",)
    assert _asked({"call": {"stop": []}, "run": {"stop": "b"}}).stop == ()


def test_levels_that_contradict_each_other_are_refused_where_they_meet() -> None:
    with pytest.raises(InvalidParameter, match="min_tokens=9 is more than max_tokens=3"):
        _asked({"run": {"min_tokens": 9}, "call": {"max_tokens": 3}})


def test_a_select_takes_seed_and_temperature_of_its_call_only() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("x")
        s.select("a", "b")
        s.select("a", "b", temperature=0.5, seed=7)

    with Scripted(["a", "a"]) as scripted:
        program.using(backend=scripted, temperature=0.9).run()
    sent = [
        (asked.op.temperature, asked.op.seed)
        for asked in scripted.asked
        if isinstance(asked.op, wire.Select)
    ]
    assert sent == [(0.0, None), (0.5, 7)]
