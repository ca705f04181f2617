"""Drafted tokens change how many steps a text takes, and nothing else."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.runtime.scheduling.draft_worth import SHORTEST
from lmprog.runtime.scheduling.drafting import LONGEST, Guess, continuation
from lmprog.simulation import plain_sampler
from lmprog.simulation.fake_engine import FakeEngine
from tests.constrained.small_model import PairTokenizer
from tests.runtime.guesses import knowing
from tests.runtime.rig import VOCAB, Rig, expected
from tests.runtime.talk import Talk, done, text

MAX_TOKENS = 24


def tokens(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


# --- what is looked up


@pytest.mark.parametrize(
    ("known", "most", "found"),
    [
        ([1, 2, 3, 4, 1, 2], 2, [3, 4]),
        ([1, 2, 3, 4, 1, 2], 7, [3, 4, 1, 2, 3, 4, 1]),  # in a circle
        ([5, 5, 5], 3, [5, 5, 5]),
        ([9, 1, 2, 7, 8, 1, 2, 6, 9, 1, 2], 1, [7]),  # three in common go before two
        ([1, 2, 7, 1, 2, 6, 1, 2], 1, [6]),  # of equals the last
        ([1, 2, 3, 2], 2, []),  # one token says too little
        ([1, 2, 3], 2, []),
        ([4], 2, []),
        ([], 2, []),
    ],
)
def test_a_text_goes_on_as_it_did_where_its_end_stood_before(
    known: list[int], most: int, found: list[int]
) -> None:
    assert list(continuation(array("i", known), most).tokens) == found


def test_of_all_places_the_longest_match_counts_and_of_equals_the_last() -> None:
    """Beside a search token by token; some tokens have bytes that are others' shifted."""
    dice = random.Random(5)
    for _ in range(400):
        few = dice.choice([[1, 2, 3], [1, 256, 65_536], list(range(40))])
        known = dice.choices(few, k=dice.randint(0, 60))
        evidence = dice.choice([SHORTEST, 4, 8])
        matches = [
            (min(LONGEST, common_end(known[:place], known)), place) for place in range(len(known))
        ]
        length, place = max(matches, default=(0, 0))
        guess = continuation(array("i", known), 1, evidence)
        if guess.tokens or length < evidence:
            expected = (known[place : place + 1], length) if length >= evidence else ([], SHORTEST)
            assert (list(guess.tokens), guess.evidence) == expected, known
        else:
            assert 65_536 in few, "too many places inside of tokens were in the way"


def common_end(a: list[int], b: list[int]) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[-1 - count] == b[-1 - count]:
        count += 1
    return count


# --- the scheduler


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("changes", [{}, {"share": False}, {"max_chunk": 4}, {"preempt": 3}])
def test_greedy_texts_are_those_without_drafts(
    page_size: int, right: float, changes: dict[str, Any]
) -> None:
    preempt_every = changes.get("preempt", 0)
    others = {name: value for name, value in changes.items() if name != "preempt"}
    config = SchedulerConfig(page_size=page_size, num_pages=512, speculation="always", **others)
    rig = Rig(config, preempt_every=preempt_every)
    prompts = [tokens(seed, length) for seed, length in enumerate([1, 2, 5, 16, 33])]
    texts = [prompt + expected(prompt, MAX_TOKENS) for prompt in prompts]
    if rig.scheduler.drafting is not None:
        rig.scheduler.drafting.source = knowing(texts, right)
    sequences = [rig.gen(prompt, MAX_TOKENS) for prompt in prompts]
    rig.run()
    stats = rig.scheduler.stats
    assert [list(sequence.tokens) for sequence in sequences] == texts
    assert stats.drafted_tokens > 0
    assert (stats.accepted_tokens > 0) == (right > 0)
    if right == 1.0 and not changes:
        assert stats.accepted_tokens == stats.drafted_tokens
        assert stats.steps < MAX_TOKENS / 2
        assert stats.computed_tokens == sum(len(text) - 1 for text in texts)


def test_what_is_drafted_is_bounded_by_budget_and_memory() -> None:
    """Others' pages are not taken, and no more tokens are computed than a step may have."""
    config = SchedulerConfig(page_size=4, num_pages=24, token_budget=9, speculation="always")
    rig = Rig(config, context_len=40)
    prompts = [tokens(seed, 10) for seed in range(4)]
    texts = [prompt + expected(prompt, 12) for prompt in prompts]
    if rig.scheduler.drafting is not None:
        rig.scheduler.drafting.source = knowing(texts, 0.5)
    sequences = [rig.gen(prompt, 12) for prompt in prompts]
    rig.run()
    assert [list(sequence.tokens) for sequence in sequences] == texts
    assert max(plan.num_tokens for plan in rig.plans) <= 9
    assert rig.scheduler.stats.accepted_tokens > 0


def test_every_draw_is_the_one_without_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By enumeration: each pair of random numbers of a grid, for two tokens of a toy vocabulary,
    and each draft. So the two are equal in distribution, too.
    """
    grid, vocab = 10, 4
    monkeypatch.setattr(
        plain_sampler,
        "uniform",
        lambda seed, step: (seed // grid**step % grid + 0.5) / grid,
    )
    drawn: dict[tuple[int, ...], list[list[int]]] = {}
    for draft in [(), *((a, b) for a in range(vocab) for b in range(vocab))]:
        config = SchedulerConfig(
            page_size=4, num_pages=1024, speculation="always" if draft else "off"
        )
        rig = Rig(config, engine=FakeEngine(1024, 4, vocab))
        if draft:
            rig.scheduler.drafting.source = lambda known, most, evidence, draft=draft: Guess(
                draft[:most]
            )
        sequences = [
            rig.gen([1, 2], 4, wire.SamplingParams(temperature=1.0, seed=seed))
            for seed in range(grid**2)
        ]
        rig.run()
        drawn[draft] = [list(one.tokens) for one in sequences]
        assert bool(draft) == (rig.scheduler.stats.accepted_tokens > 0)
    assert all(found == drawn[()] for found in drawn.values())


# --- calls


def told(
    talk: Talk, op: wire.Generate, ended: list[list[int]], prompt: str = "say it: x"
) -> dict[str, Any]:
    """What a call's answer says, apart from how it was computed; the tokens that its sequences
    ended with are noted.
    """
    end = talk.scheduler.end

    def noted(sequence: Any, keep: int | None = None) -> Any:
        ended.append(list(sequence.tokens))
        return end(sequence, keep)

    talk.scheduler.end = noted  # type: ignore[method-assign]
    replies = talk.ask(wire.Open(1), text(1, prompt), op)
    answer = done(replies)[op.call]
    deltas = [one for one in replies if isinstance(one, wire.Delta)]
    return {
        "outputs": answer.outputs,
        "prompt_logprobs": answer.prompt_logprobs,
        "generated": answer.usage.generated,
        "forced": answer.usage.forced,
        "computed": answer.usage.computed,
        "text": "".join(one.text for one in deltas),
        "logprobs": sum((one.logprobs for one in deltas), ()),
        "drafted": answer.usage.drafted,
        "accepted": answer.usage.accepted,
    }


ALL = {"max_tokens": 20, "temperature": 1.0, "seed": 5}
FORM = wire.Regex("name: [a-c]{1,3}; colour: (red or brown|red and blue); end!")
OPS: dict[str, wire.Generate] = {
    "plain": wire.Generate(1, 1, wire.SamplingParams(**ALL)),
    "eos": wire.Generate(1, 1, wire.SamplingParams(**{**ALL, "logit_bias": ((59, 2.0),)})),
    "several": wire.Generate(1, 1, wire.SamplingParams(**ALL, n=3)),
    "stop": wire.Generate(1, 1, wire.SamplingParams(**ALL, stop=("a", "e", "T", "q"), logprobs=1)),
    "regex stop": wire.Generate(1, 1, wire.SamplingParams(**ALL, stop_regex=("[A-Z][a-z]",))),
    "logprobs": wire.Generate(1, 1, wire.SamplingParams(**ALL, logprobs=3), stream=True),
    "prompt": wire.Generate(1, 1, wire.SamplingParams(**ALL, prompt_logprobs=2, logprobs=0)),
    "penalties": wire.Generate(
        1,
        1,
        wire.SamplingParams(
            **ALL, repetition_penalty=1.4, frequency_penalty=0.7, presence_penalty=0.3, top_p=0.9
        ),
    ),
    "too short": wire.Generate(
        1, 1, wire.SamplingParams(**ALL, min_tokens=9, logit_bias=((59, 9.0),))
    ),
    "bad words": wire.Generate(1, 1, wire.SamplingParams(**ALL, bad_words=("ab", "q"))),
    "regex": wire.Generate(
        1, 1, wire.SamplingParams(**ALL), wire.Regex("[ab]+c(def|xyz)[g-k]{3,}")
    ),
    "cut": wire.Generate(
        1, 1, wire.SamplingParams(**{**ALL, "max_tokens": 9}), wire.Regex("[a-k]{4,}(xy|z)")
    ),
    "form": wire.Generate(1, 1, wire.SamplingParams(**{**ALL, "max_tokens": 60}), FORM),
    "every token": wire.Generate(
        1, 1, wire.SamplingParams(**{**ALL, "max_tokens": 60}, jump="exact", logprobs=1), FORM
    ),
    "best": wire.Generate(1, 1, wire.SamplingParams(**ALL, n=3), keep="best"),
}


@pytest.mark.parametrize("forcing", [False, True], ids=["sampled", "forced"])
@pytest.mark.parametrize("name", OPS)
def test_an_answer_is_the_one_without_drafts(name: str, forcing: bool) -> None:
    ended: list[list[int]] = []
    found = []
    for mode in ("off", "always"):
        talk = Talk(sampler=TorchSampler(), is_forcing=forcing, num_pages=256, speculation=mode)
        if talk.scheduler.drafting is not None:
            talk.scheduler.drafting.source = knowing(ended[:], 0.8)
        found.append(told(talk, OPS[name], ended))
    without, drafted = found
    assert without.pop("drafted") == without.pop("accepted") == 0
    assert drafted.pop("drafted") >= drafted.pop("accepted") > 0
    if name == "best":  # which of the others are given up, and when, depends on the steps
        without, drafted = ({"outputs": one["outputs"][0]} for one in found)
    assert drafted == without


def test_a_healed_text_is_the_one_without_drafts() -> None:
    pairs = PairTokenizer([("a", "b"), ("ab", "c"), ("b", "c"), ("c", "a"), ("bc", "ab")])
    op = wire.Generate(1, 1, wire.SamplingParams(**ALL, ignore_eos=True), heal=True)
    ended: list[list[int]] = []
    found = []
    for mode in ("off", "always"):
        talk = Talk(tokenizer=pairs, num_pages=256, speculation=mode)
        if talk.scheduler.drafting is not None:
            talk.scheduler.drafting.source = knowing(ended[:], 0.8)
        found.append(told(talk, op, ended, "cabab"))
    assert found[0]["outputs"][0].seam, "the last token was decided once more"
    assert found[1]["outputs"] == found[0]["outputs"]
    assert found[1]["accepted"] > 0


def test_text_that_a_constraint_asks_for_is_drafted_where_every_token_is_sampled() -> None:
    """With nothing to look up: the constraint is the source."""
    op, steps = OPS["every token"], []
    for mode in ("off", "always"):
        talk = Talk(sampler=TorchSampler(), is_forcing=True, num_pages=256, speculation=mode)
        if mode != "off":
            talk.scheduler.drafting.source = lambda known, most, evidence: Guess(())
        answer = told(talk, op, [])
        steps.append(talk.scheduler.stats.steps)
    assert answer["outputs"][0].text.endswith("; end!")
    assert answer["accepted"] > 0
    assert steps[1] <= steps[0] / 2
