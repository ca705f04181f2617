"""What a call reports of its work: cached and computed tokens add up to what it needed."""

from __future__ import annotations

import random

import pytest

from lmprog import wire
from tests.runtime.talk import Talk, done, text

WORDS = ("alpha", "beta", "gamma delta", "xyz", "q")


def chosen(replies: list[wire.Reply]) -> wire.Chosen:
    (found,) = [reply for reply in replies if isinstance(reply, wire.Chosen)]
    return found


@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_results_of_a_cold_prompt_find_nothing_in_the_cache(n: int) -> None:
    talk = Talk()
    sampling = wire.SamplingParams(max_tokens=3, ignore_eos=True, n=n)
    replies = talk.ask(wire.Open(1), text(1, "abcdefgh"), wire.Generate(1, 2, sampling))
    usage = done(replies)[2].usage
    assert (usage.prompt, usage.cached) == (8, 0)
    assert usage.computed == 8 - 1 + usage.generated == 7 + 3 * n


@pytest.mark.parametrize("seed", range(12))
def test_cached_and_computed_of_a_gen_are_what_it_needed(seed: int) -> None:
    dice = random.Random(seed)
    max_chunk = dice.choice([0, 5])
    talk = Talk(num_pages=4000, page_size=dice.choice([1, 4, 16]), max_chunk=max_chunk)
    for number in range(0, 60, 2):
        prompt = "".join(dice.choices(WORDS, k=dice.randrange(1, 6)))
        sampling = wire.SamplingParams(
            max_tokens=dice.randrange(1, 9),
            ignore_eos=True,
            n=1 if max_chunk else dice.randrange(1, 6),
        )
        gen = wire.Generate(number, number + 1, sampling)
        usage = done(talk.ask(wire.Open(number), text(number, prompt), gen))[number + 1].usage
        assert usage.preemptions == 0
        assert 0 <= usage.cached < usage.prompt == len(prompt)
        assert usage.cached + usage.computed == usage.prompt - 1 + usage.generated


@pytest.mark.parametrize("seed", range(12))
def test_cached_and_computed_of_a_select_are_what_it_needed(seed: int) -> None:
    dice = random.Random(seed)
    talk = Talk(num_pages=4000, page_size=dice.choice([1, 4, 16]))
    for number in range(0, 40, 2):
        prompt = "".join(dice.choices(WORDS, k=dice.randrange(1, 6)))
        options = tuple(
            dict.fromkeys("".join(dice.choices("abc", k=dice.randrange(1, 5))) for _ in range(4))
        )
        op = wire.Select(number, number + 1, options)
        usage = chosen(talk.ask(wire.Open(number), text(number, prompt), op)).usage
        first = len(prompt) - 1  # the first token whose logits are used
        scored = {(prompt + option)[:-1] for option in options}
        needed = first + sum(len(tokens) - first for tokens in scored)
        assert usage.cached <= usage.prompt
        assert usage.cached + usage.computed == needed


def test_options_scored_without_the_prompt_are_not_of_the_prompt() -> None:
    talk = Talk()
    method: wire.SelectMethod = "unconditional_likelihood_normalized"
    talk.ask(wire.Open(1), text(1, "abcdefgh"), wire.Generate(1, 2))
    op = wire.Select(3, 4, ("xyz", "qr"), method=method)
    usage = chosen(talk.ask(wire.Open(3), text(3, "abcdefgh"), op)).usage
    assert usage.cached == 7
