"""A text that the token budget ended says so, though it is an instance like any other."""

from __future__ import annotations

import pytest

from lmprog import wire
from tests.constrained.writer import Writer, byte_tokenizer


def written(
    constraint: wire.Constraint, wish: str, max_tokens: int, **sampling: object
) -> wire.Output:
    """What a model that always wants the letter `wish` writes within so many letters."""
    wishes = ((ord(wish), 100.0),)
    params = wire.SamplingParams(max_tokens=max_tokens, logit_bias=wishes, **sampling)  # type: ignore[arg-type]
    (reply,) = Writer(byte_tokenizer()).ask((constraint, params))
    assert isinstance(reply, wire.CallDone), reply
    return reply.outputs[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_that_the_budget_closes_ends_by_length(temperature: float) -> None:
    output = written(wire.Regex("a{1,50}b"), "a", 8, temperature=temperature)
    assert (output.text, output.finish) == ("aaaaaaab", "length")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_that_the_model_closes_ends_by_the_constraint(temperature: float) -> None:
    output = written(wire.Regex("a{1,50}b"), "b", 8, temperature=temperature)
    assert (output.text, output.finish) == ("ab", "constraint")


def test_the_budget_counts_only_where_the_model_wanted_what_it_forbids() -> None:
    narrowed = wire.Regex("a(b{20}|)c")
    kept, cut = written(narrowed, "c", 5), written(narrowed, "b", 5)
    assert (kept.text, kept.finish) == ("ac", "constraint")
    assert (cut.text, cut.finish) == ("ac", "length")


def test_a_budget_that_runs_out_where_the_text_may_go_on_ends_by_length() -> None:
    output = written(wire.Regex("a*"), "a", 7)
    assert (output.text, output.finish) == ("a" * 7, "length")


def test_a_budget_that_is_just_enough_for_the_whole_text_cuts_nothing() -> None:
    output = written(wire.Regex("a{7}"), "a", 7)
    assert (output.text, output.finish) == ("a" * 7, "constraint")


def test_a_budget_that_only_costs_longer_tokens_of_the_same_text_cuts_nothing() -> None:
    output = written(wire.Choices(("the quick brown fox",)), "z", 19)
    assert (output.text, output.finish) == ("the quick brown fox", "constraint")


def test_what_is_cut_stays_cut_when_it_ends_on_a_stop_string() -> None:
    output = written(wire.Regex("a{1,9}(b{30}|)"), "b", 6, stop=("x",), ignore_eos=True)
    assert output.text.strip("a") == ""
    assert output.finish == "length"


def test_the_first_token_after_healed_text_may_be_what_the_budget_forbids() -> None:
    """The branch's text ends in a token that is decided once more."""
    output = written(wire.Choices(("b" * 30, "cc")), "b", 4)
    assert (output.text, output.finish) == ("cc", "length")
