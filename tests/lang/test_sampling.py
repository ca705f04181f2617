"""Sampling settings: layers, checks at the user's line, SGLang's spellings."""

from __future__ import annotations

import contextlib
import sys
from types import FrameType
from typing import Any

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import InvalidParameter
from lmprog.lang.ops.sampling import Sampling, sampling_of
from lmprog.testing import Scripted


def _asked(scripted: Scripted) -> list[wire.SamplingParams]:
    return [asked.op.sampling for asked in scripted.asked if isinstance(asked.op, wire.Generate)]


def test_a_call_goes_over_its_branch_over_the_run_over_the_defaults() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("x")
        s.gen()
        s.with_(temperature=0.5).gen()
        s.with_(temperature=0.5).gen(temperature=0.25, top_p=0.5)

    with Scripted(["a", "b", "c"]) as scripted:
        program.using(backend=scripted, temperature=0.75, max_tokens=9).run()
    assert [(s.temperature, s.top_p, s.max_tokens) for s in _asked(scripted)] == [
        (0.75, 1.0, 9),
        (0.5, 1.0, 9),
        (0.25, 0.5, 9),
    ]


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -1, "0.0 <= x <= 100.0"),
        ("top_p", 0.0, "0.0 < x <= 1.0"),
        ("max_tokens", -1, "0 <= x"),
        ("temperature", "hot", "0.0 <= x"),
        ("n", 1000, "1 <= x <= 128"),
        ("stop", [""], "a sequence"),
        ("stop", ["x"] * 17, "at most 16"),
    ],
)
def test_a_value_out_of_range_is_refused_with_name_value_and_range(
    name: str, value: object, allowed: str
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        sampling_of({name: value})
    assert caught.value.name == name
    assert allowed in (caught.value.allowed or "")
    assert repr(value) in str(caught.value)


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidParameter, match=r"temprature.*temperature"):
        lmprog.gen("x", temprature=1)  # type: ignore[call-overload]


def test_contradicting_settings_are_refused_when_they_meet() -> None:
    with pytest.raises(InvalidParameter, match="min_tokens=5"):
        Sampling(min_tokens=5).over(Sampling(max_tokens=3)).resolve()


@pytest.mark.parametrize(
    ("name", "value"), [("timeout", 0), ("timeout", 1e6), ("priority", 101), ("priority", "high")]
)
def test_urgency_out_of_range_is_refused_where_it_is_written(name: str, value: object) -> None:
    options: dict[str, Any] = {name: value}
    for make in (lambda: lmprog.gen("x", **options), lambda: lmprog.select("x", ["a"], **options)):
        with pytest.raises(InvalidParameter, match=name):
            make()


def test_a_value_of_one_stop_string_is_a_list_of_one() -> None:
    assert Sampling(stop="\n").resolve().stop == ("\n",)


def test_sglangs_spellings_mean_the_same() -> None:
    merged = sampling_of(
        {"max_new_tokens": 5, "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
    )
    assert merged.given() == {"max_tokens": 5, "logprobs": 2, "prompt_logprobs": 2}


def test_a_bias_may_be_a_mapping() -> None:
    assert sampling_of({"logit_bias": {7: -100}}).resolve().logit_bias == ((7, -100.0),)


def test_one_seed_gives_every_call_of_every_branch_its_own_the_same_in_each_run() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.append("x")
        await s.gen()
        async with s.fork(2) as branches:
            await branches.map(lambda b: b.gen())
        await s.gen(seed=7)

    seeds = []
    for _ in range(2):
        with Scripted(["a", "b", "c", "d"]) as scripted:
            program.using(backend=scripted, seed=1).run()
        seeds.append([s.seed for s in _asked(scripted)])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 4
    assert seeds[0][-1] == 7


def test_the_program_keeps_a_parameter_that_is_named_like_a_setting() -> None:
    @lmprog.function
    def program(s: lmprog.Branch, temperature: str) -> str:
        s.append(temperature)
        return s.gen().value

    with Scripted(["a"]) as scripted:
        program.using(backend=scripted).run(temperature="warm")
    assert scripted.prompts == ["warm"]
    assert _asked(scripted)[0].temperature == 1.0


def test_a_mistyped_option_of_gen_is_told_the_nearest_and_carries_every_valid_one() -> None:
    with pytest.raises(InvalidParameter) as caught:
        lmprog.gen("x", shema={})  # type: ignore[call-overload]
    message = str(caught.value)
    assert message == "unknown option 'shema'; did you mean 'schema'?"
    for name in (
        "schema",
        "regex",
        "choices",
        "heal",
        "keep",
        "timeout",
        "reasoning",
        "max_tokens",
    ):
        assert name in str(caught.value.allowed).split(", ")


def test_a_mistyped_option_of_select_is_told_the_nearest_one() -> None:
    with pytest.raises(InvalidParameter, match="unknown option 'methd'; did you mean 'method'"):
        lmprog.select("x", ["a", "b"], methd="y")  # type: ignore[call-arg]


def test_an_option_like_no_other_is_told_the_valid_ones() -> None:
    with pytest.raises(InvalidParameter, match="unknown option 'zzzz'; valid: "):
        lmprog.gen("x", zzzz=1)  # type: ignore[call-overload]


def test_equal_settings_are_equal_and_say_what_was_given() -> None:
    one, same = Sampling(temperature=0.5, stop="\n"), Sampling(stop=["\n"], temperature=0.5)
    assert one == same
    assert hash(one) == hash(same)
    assert one != Sampling(temperature=0.5)
    assert repr(one) == "Sampling(temperature=0.5, stop=('\\n',))"


def test_the_wires_own_names_are_no_keywords() -> None:
    with pytest.raises(InvalidParameter, match="unknown option 'prompt_logprobs_start'"):
        Sampling(prompt_logprobs_start=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("name", "value"), [("max_tokens", 4), ("temperature", 0.5), ("jump", 1)])
def test_no_code_of_python_runs_while_a_value_is_checked(name: str, value: object) -> None:
    """An interrupt is raised in it, and lost: msgspec takes what hashing a type raises for no."""
    seen: list[str] = []

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("typing.py"):
            seen.append(frame.f_code.co_name)

    sys.setprofile(see)
    try:
        with contextlib.suppress(InvalidParameter):
            sampling_of({name: value})
    finally:
        sys.setprofile(None)
    assert "__hash__" not in seen
