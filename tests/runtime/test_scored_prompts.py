"""Prompts whose log-probabilities are asked for: what two of them begin with is computed once, and
the log-probabilities are those of a runtime that keeps nothing.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from lmprog import wire
from lmprog.runtime.scheduling.page_tables import BLOCK, ScoredPrompts
from tests.runtime.talk import Talk, done, text

SHARED = "the old dog and the young cat sat by the door all day "


def scored(start: int = 0, top: int = 1) -> wire.SamplingParams:
    return wire.SamplingParams(
        temperature=0.0, max_tokens=1, ignore_eos=True,
        prompt_logprobs=top, prompt_logprobs_start=start,
    )  # fmt: skip


def ask(talk: Talk, number: int, prompt: str, sampling: wire.SamplingParams, salt: str = "") -> Any:
    replies = talk.ask(
        wire.Open(number, salt), text(number, prompt), wire.Generate(number, number, sampling)
    )
    return done(replies)[number]


def in_blocks(count: int) -> int:
    return count // BLOCK * BLOCK


def test_the_second_prompt_is_computed_from_where_it_differs() -> None:
    talk = Talk()
    first = ask(talk, 1, SHARED + "alone", scored())
    second = ask(talk, 2, SHARED + "apart", scored())
    assert first.usage.cached == 0
    assert second.usage.cached == in_blocks(len(SHARED) + 1) - 1  # the logits of one token before
    assert [one.text for one in second.prompt_logprobs] == list(SHARED + "apart")[1:]
    for other in (first, second):
        assert len(other.prompt_logprobs) == len(SHARED) + 4
    assert second.prompt_logprobs[: len(SHARED)] == first.prompt_logprobs[: len(SHARED)]


@pytest.mark.parametrize("seed", range(4))
def test_log_probabilities_are_those_of_a_runtime_that_keeps_nothing(seed: int) -> None:
    """Random prompts, starts and numbers of alternatives, several at once, in little memory."""
    dice = random.Random(seed)
    keeping, plain = Talk(num_pages=48), Talk(share=False)
    found = 0
    for number in range(1, 40, 2):
        asked = []
        for branch in (number, number + 1):
            prompt = SHARED[: dice.choice([9, 30, 48])] + dice.choice(["", "a", "but then"]) * 2
            asked.append(
                (branch, prompt, scored(dice.choice([0, 0, 0, 5, 20]), dice.choice([1, 1, 3])))
            )
        together = keeping.ask(
            *(op for branch, prompt, how in asked for op in (
                wire.Open(branch), text(branch, prompt), wire.Generate(branch, branch, how)))
        )  # fmt: skip
        for branch, prompt, how in asked:
            one, alone = done(together)[branch], ask(plain, branch, prompt, how)
            assert one.prompt_logprobs == alone.prompt_logprobs
            assert one.outputs == alone.outputs
            found += one.usage.cached
    assert found > 200
    assert plain.scheduler.tables.scored.num_scores == 0


def test_no_salt_finds_what_another_one_was_told() -> None:
    talk = Talk()
    ask(talk, 1, SHARED, scored(), salt="a")
    assert ask(talk, 2, SHARED, scored(), salt="b").usage.cached == 0
    assert ask(talk, 3, SHARED, scored(), salt="a").usage.cached > 0


def test_only_what_is_known_from_the_first_token_on_is_kept() -> None:
    talk = Talk()
    ask(talk, 1, SHARED, scored(start=20))
    assert talk.scheduler.tables.scored.num_scores == 0
    ask(talk, 2, SHARED, scored())
    assert talk.scheduler.tables.scored.num_scores == 2 * (in_blocks(len(SHARED)) - 1)


def test_flushing_the_cache_forgets_them() -> None:
    talk = Talk()
    ask(talk, 1, SHARED, scored())
    talk.ask(wire.Flush(9))
    assert talk.scheduler.tables.scored.num_scores == 0
    assert ask(talk, 2, SHARED, scored()).usage.cached == 0


def test_a_prompt_without_log_probabilities_keeps_nothing() -> None:
    talk = Talk()
    ask(talk, 1, SHARED, wire.SamplingParams(temperature=0.0, max_tokens=1))
    assert talk.scheduler.tables.scored.num_scores == 0


def test_the_oldest_ends_of_texts_go_first_when_there_are_too_many() -> None:
    talk = Talk()
    kept = talk.scheduler.tables.scored = ScoredPrompts(most=2 * 64)
    for number in range(1, 5):  # the shared block is used by each of them
        ask(talk, number, SHARED[:BLOCK] + "abcd"[number - 1] * 2 * BLOCK, scored())
        assert kept.num_scores <= 2 * 64
    assert ask(talk, 5, SHARED[:BLOCK] + "d" * 2 * BLOCK, scored()).usage.cached > 2 * BLOCK
    assert ask(talk, 6, SHARED[:BLOCK] + "a" * 2 * BLOCK, scored()).usage.cached == BLOCK - 1
