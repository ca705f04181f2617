"""A thought that has had its tokens is closed for the model, and what follows is as it would be."""

from __future__ import annotations

import re
from array import array
from typing import Any

import pytest

from lmprog import wire
from lmprog.runtime.scheduling.generation import (
    Generation,
    GenerationSettings,
    ThoughtBudget,
)
from lmprog.tool_calls.thoughts import after_thought
from tests.runtime.guesses import knowing
from tests.runtime.talk import Talk, done, text

THINKS = wire.ThoughtForm("qq", "zz", "open")
ANSWER = wire.Regex("(abc|cba){2}")
HELD = after_thought(THINKS, "open", ANSWER, may_be_cut=False)
DRAFTED: dict[str, Any] = {"speculation": "always"}


def asked(
    limit: wire.ThoughtLimit | None, constraint: wire.Constraint | None, most: int, seed: int
) -> wire.Generate:
    sampling = wire.SamplingParams(
        temperature=1.0, seed=seed, max_tokens=most, ignore_eos=constraint is None
    )
    return wire.Generate(1, 7, sampling, constraint, stream=True, thought=limit)


def said(ask: wire.Generate, is_forcing: bool = False, **changes: Any) -> wire.Output:
    talk = Talk(is_forcing=is_forcing, **changes)
    replies = talk.ask(wire.Open(1), text(1, "hello "), ask)
    (output,) = done(replies)[7].outputs
    assert "".join(one.text for one in replies if isinstance(one, wire.Delta)) == output.text
    return output


@pytest.mark.parametrize("changes", [{}, DRAFTED])
@pytest.mark.parametrize("begin", ["", "qq"])
def test_a_free_text_goes_on_behind_the_end_that_is_written_for_it(
    begin: str, changes: dict[str, Any]
) -> None:
    for seed in range(6):
        free = said(asked(None, None, 24, seed)).text
        limit = wire.ThoughtLimit(begin, "zz", "zz.", 5)
        held = said(asked(limit, None, 24, seed), **changes).text
        if begin and not free.startswith(begin):
            assert held == free, "it did not begin to think"
        else:
            assert held[:8] == free[:5] + "zz."
        assert len(held) == 24


@pytest.mark.parametrize("is_forcing", [False, True])
def test_a_confined_answer_follows_in_time(is_forcing: bool) -> None:
    """Also where `max_tokens` leaves less than the budget."""
    for most, budget in ((40, 5), (40, 0), (12, 30), (11, 5), (40, 36)):
        for seed in range(4):
            limit = wire.ThoughtLimit("", "zz", "zz", budget)
            output = said(asked(limit, HELD, most, seed), is_forcing)
            thought, _, answer = output.text.partition("zz")
            assert re.fullmatch("(abc|cba){2}", answer.strip()), output.text
            assert len(thought) <= max(budget, 1)
            assert len(output.text) <= most


def test_a_thought_that_a_constraint_begins_is_counted_too() -> None:
    """Forced tokens are part of what is known of a thought."""
    thinking = (wire.Choices(("qq",)), wire.FreeText((), "zz"), ANSWER)
    for seed in range(4):
        limit = wire.ThoughtLimit("qq", "zz", "zz", 6)
        output = said(asked(limit, wire.InOrder(thinking), 40, seed), is_forcing=True)
        assert output.forced[0] == (0, 2)
        assert output.text.index("zz") <= 6


@pytest.mark.parametrize(("letter", "count"), [("é", 2), ("｜", 3), ("𐐷", 4)])
def test_a_thought_is_not_closed_within_a_character(letter: str, count: int) -> None:
    spelled = letter.encode()
    budget = ThoughtBudget(3, b"", b"zz", tuple(b"zz"), lambda token: bytes([token]))
    settings = GenerationSettings(wire.SamplingParams(), 40, (), 0, thought=budget)
    for lead in range(1, 4):
        task, tokens = Generation(settings, 0), array("i")
        for byte in b"ab"[: 3 - lead] + spelled * 2:
            if task.thought is not None:
                task.accept(byte, tokens)
        text = bytes(tokens.tolist())
        assert text.decode().endswith("zz")
        assert len(text) < 3 + count + 2


def test_drafts_change_nothing() -> None:
    for seed in range(4):
        ask = asked(wire.ThoughtLimit("", "zz", "zz", 7), HELD, 40, seed)
        plain = said(ask, is_forcing=True)
        talk = Talk(is_forcing=True, **DRAFTED)
        whole = [*talk.tokenizer.encode("hello "), *plain.tokens]
        assert talk.scheduler.drafting is not None
        talk.scheduler.drafting.source = knowing([whole], 1.0)  # type: ignore[assignment]
        (output,) = done(talk.ask(wire.Open(1), text(1, "hello "), ask))[7].outputs
        assert output.text == plain.text
        assert talk.scheduler.stats.accepted_tokens > 0


def test_a_thought_that_ends_by_itself_is_left_alone() -> None:
    limit = wire.ThoughtLimit("", "z", "z!", 200)
    for seed in range(4):
        assert said(asked(limit, None, 24, seed)) == said(asked(None, None, 24, seed))


def test_a_beam_search_refuses_a_budget() -> None:
    sampling = wire.SamplingParams(beams=wire.Beams(2), max_tokens=4)
    ask = wire.Generate(1, 7, sampling, thought=wire.ThoughtLimit("", "z", "z", 1))
    (failed,) = [
        one
        for one in Talk().ask(wire.Open(1), text(1, "hello "), ask)
        if isinstance(one, wire.Failed)
    ]
    assert "no budget for thoughts" in failed.message
