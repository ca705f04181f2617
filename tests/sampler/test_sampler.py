"""Every parameter against the plain twin, exact distributions by chi-square, and independence of
the batch.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter

import msgspec
import numpy as np
import pytest
import torch

from lmprog.runtime.engine.model.checkpoint_digests import SAMPLER
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.runtime.scheduling.sampling_requests import (
    SampleRequest,
    SampleResult,
    ScoreRequest,
    uniform,
)
from lmprog.simulation.plain_sampler import PlainSampler
from lmprog.wire import SamplingParams
from tests.sampler.conftest import sampler
from tests.sampler.plain import distribution, edited, mask_of

SIZE = 61
GREEDY = SamplingParams(temperature=0.0)
DRAWS = 4000


def logits(seed: int, rows: int = 1, size: int = SIZE, scale: float = 2.0) -> torch.Tensor:
    return torch.from_numpy(
        np.random.default_rng(seed).normal(0, scale, (rows, size)).astype(np.float32)
    )


def pick_one(row: torch.Tensor, pick: SampleRequest) -> SampleResult | None:
    return sampler().sample(row, [pick], []).samples[0]


def token_of(row: torch.Tensor, pick: SampleRequest) -> int:
    picked = pick_one(row, pick)
    assert picked is not None
    return picked.token


CASES = {
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.3),
    "hot": SamplingParams(temperature=3.0),
    "top_k": SamplingParams(top_k=5),
    "top_k of one": SamplingParams(top_k=1),
    "top_k off": SamplingParams(top_k=0),
    "top_k above the vocabulary": SamplingParams(top_k=1000),
    "top_p": SamplingParams(top_p=0.6),
    "top_p of almost nothing": SamplingParams(top_p=1e-6),
    "min_p": SamplingParams(min_p=0.2),
    "min_p of one": SamplingParams(min_p=1.0),
    "all three": SamplingParams(temperature=1.7, top_k=20, top_p=0.8, min_p=0.05),
    "frequency": SamplingParams(frequency_penalty=0.9),
    "presence": SamplingParams(presence_penalty=-1.5),
    "repetition": SamplingParams(repetition_penalty=1.8),
    "reward of repetition": SamplingParams(repetition_penalty=0.6),
    "bias": SamplingParams(logit_bias=((3, 4.0), (7, -100.0), (9, 100.0), (9, -2.0))),
    "everything": SamplingParams(
        temperature=0.8,
        top_k=30,
        top_p=0.9,
        min_p=0.02,
        frequency_penalty=0.3,
        presence_penalty=0.2,
        repetition_penalty=1.2,
        logit_bias=((1, 2.0),),
    ),
}


def test_a_large_vocabulary_gives_what_the_torch_sampler_gives() -> None:
    rows = logits(3, len(CASES), 5000, 3.0)
    mask = mask_of(list(range(0, 5000, 3)), 5000, narrow=False)
    picks = [
        SampleRequest(
            row,
            msgspec.structs.replace(params, logprobs=3),
            seed,
            2,
            (1, 2, 50),
            (3, 4, 4),
            (9,),
            mask,
        )
        for row, params in enumerate(CASES.values())
        for seed in range(40)
    ]
    found = sampler().sample(rows, picks, []).samples
    for one, other in zip(found, TorchSampler().sample(rows, picks, []).samples, strict=True):
        assert one is not None
        assert other is not None
        assert one.token == other.token
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)


DRAWN = "f01e89ec14a2eb4b"


def test_what_is_drawn_belongs_to_a_version_of_the_sampler() -> None:
    """A fleet with samplers of two versions would splice texts: where this fails, raise SAMPLER."""
    picks = [
        SampleRequest(0, params, seed, step, (1, 2, 50), (3, 4, 4))
        for params in CASES.values()
        for seed in range(20)
        for step in range(4)
    ]
    found = sampler().sample(logits(5), picks, []).samples
    drawn = bytes(one.token for one in found if one is not None)
    assert len(drawn) == 80 * len(CASES)
    assert (SAMPLER, hashlib.sha256(drawn).hexdigest()[:16]) == (1, DRAWN)


@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_exact_distribution(name: str) -> None:
    """Chi-square over the tokens that are expected at least five times, the others together; and
    none that is cut.
    """
    row = logits(1)
    pick = SampleRequest(
        0, CASES[name], seed=11, step=0, prompt=(1, 2, 3, 3, 50), generated=(3, 4, 4, 4, 9)
    )
    exact = distribution(row[0].numpy(), pick)
    picks = [pick._replace(step=step) for step in range(DRAWS)]
    picked = sampler().sample(row, picks, []).samples
    counts = Counter(one.token for one in picked if one is not None)
    assert sum(counts.values()) == DRAWS
    assert all(exact[token] > 0 for token in counts)
    expected = exact * DRAWS
    big = [token for token in range(SIZE) if expected[token] >= 5]
    statistic = sum((counts[token] - expected[token]) ** 2 / expected[token] for token in big)
    rest = DRAWS - expected[big].sum()
    if rest > 1:
        statistic += (DRAWS - sum(counts[token] for token in big) - rest) ** 2 / rest
    # mean + 4.5 standard deviations of chi-square: about one in 10,000 for few cells, and the seed
    # is fixed
    assert statistic < len(big) + 4.5 * math.sqrt(2 * len(big)), (
        f"{name}: {statistic} for {len(big)} cells"
    )


def random_pick(rng: np.random.Generator, at: int) -> SampleRequest:
    """A pick with some of everything."""

    def some(yes: object, no: object) -> object:
        return yes if rng.random() < 0.4 else no

    mask = mask_of(
        sorted(rng.choice(SIZE, rng.integers(1, SIZE), False).tolist()),
        SIZE,
        bool(rng.random() < 0.5),
    )
    sampling = SamplingParams(
        temperature=float(some(rng.uniform(0.2, 3), 0.0)),  # type: ignore[arg-type]
        top_k=int(some(rng.integers(1, SIZE), -1)),  # type: ignore[call-overload]
        top_p=float(some(rng.uniform(0.05, 1), 1.0)),  # type: ignore[arg-type]
        min_p=float(some(rng.uniform(0, 0.5), 0.0)),  # type: ignore[arg-type]
        frequency_penalty=float(some(rng.uniform(-2, 2), 0.0)),  # type: ignore[arg-type]
        presence_penalty=float(some(rng.uniform(-2, 2), 0.0)),  # type: ignore[arg-type]
        repetition_penalty=float(some(rng.uniform(0.5, 2), 1.0)),  # type: ignore[arg-type]
        logit_bias=((int(rng.integers(SIZE)), float(rng.uniform(-5, 5))),)
        if rng.random() < 0.4
        else (),
        logprobs=3 if rng.random() < 0.3 else None,
    )
    return SampleRequest(
        at,
        sampling,
        seed=int(rng.integers(2**62)),
        step=at,
        prompt=tuple(rng.integers(0, SIZE, 9).tolist()),
        generated=tuple(rng.integers(0, SIZE, 7).tolist()),
        banned=tuple(rng.integers(0, SIZE, 3).tolist()) if rng.random() < 0.4 else (),
        mask=mask if rng.random() < 0.4 else None,
    )


def test_every_token_is_where_the_inverse_of_the_distribution_points(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = logits(seed, 400)
    picks = [random_pick(rng, at) for at in range(len(rows))]
    picked = sampler().sample(rows, picks, []).samples
    for pick, one in zip(picks, picked, strict=True):
        assert one is not None
        ends = distribution(rows[pick.logit].numpy(), pick).cumsum()
        number = uniform(pick.seed, pick.step)
        begin = ends[one.token - 1] if one.token else 0.0
        assert begin - 1e-6 <= number <= ends[one.token] + 1e-6


def test_a_row_gets_the_same_alone_and_in_any_batch_bit_for_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = logits(seed, 64)
    picks = [random_pick(rng, at) for at in range(len(rows))]
    together = sampler().sample(rows, picks, []).samples
    order = rng.permutation(len(rows)).tolist()
    mixed = sampler().sample(rows, [picks[at] for at in order], []).samples
    for position, at in enumerate(order):
        alone = pick_one(rows, picks[at])
        assert repr(together[at]) == repr(alone) == repr(mixed[position])


def test_a_batch_larger_than_a_chunk_is_the_same_as_its_rows() -> None:
    rows = logits(3, 40, 20_000)
    picks = [
        SampleRequest(at, SamplingParams(top_p=0.9), seed=5, step=at) for at in range(len(rows))
    ]
    together = sampler().sample(rows, picks, []).samples
    assert [one and one.token for one in together] == [token_of(rows, pick) for pick in picks]


def test_a_nucleus_larger_than_the_first_look_is_exact() -> None:
    """A flat row: 500 of 1,000 equal tokens have half the mass, and all tie with the last of
    them.
    """
    flat = torch.zeros(1, 1000)
    flat[0, :10] = 0.001
    picks = [
        SampleRequest(0, SamplingParams(top_p=0.005), seed=1, step=step) for step in range(200)
    ]
    tokens = {one.token for one in sampler().sample(flat, picks, []).samples if one is not None}
    assert tokens <= set(range(10))
    ramp = torch.linspace(0, -1, 1000)[None]
    exact = distribution(
        ramp[0].double().numpy(), SampleRequest(0, SamplingParams(top_p=0.5), 1, 0)
    )
    picks = [SampleRequest(0, SamplingParams(top_p=0.5), seed=1, step=step) for step in range(5000)]
    tokens = {one.token for one in sampler().sample(ramp, picks, []).samples if one is not None}
    assert max(tokens) <= exact.nonzero()[0].max() + 1
    assert len(tokens) > 350


def test_temperature_zero_takes_the_most_likely_token_and_the_lowest_of_equals() -> None:
    row = torch.tensor([[1.0, 5.0, 5.0, 2.0]])
    assert token_of(row, SampleRequest(0, GREEDY, 1, 1)) == 1
    assert token_of(row, SampleRequest(0, GREEDY, 1, 1, banned=(1,))) == 2


def test_a_nearly_zero_temperature_is_as_good_as_greedy() -> None:
    row = logits(8)
    cold = SampleRequest(0, SamplingParams(temperature=1e-30), 1, 1)
    assert token_of(row, cold) == int(row[0].argmax())


def test_the_seed_and_the_step_choose_the_number() -> None:
    row = logits(4, scale=0.1)
    tokens = [
        token_of(row, SampleRequest(0, SamplingParams(), seed, step))
        for seed in range(3)
        for step in range(8)
    ]
    again = [
        token_of(row, SampleRequest(0, SamplingParams(), seed, step))
        for seed in range(3)
        for step in range(8)
    ]
    assert tokens == again
    assert len(set(tokens)) > 12


@pytest.mark.parametrize("narrow", [True, False])
def test_only_what_the_mask_allows_is_picked(narrow: bool) -> None:
    row = logits(5)
    mask = mask_of([2, 33, 60], SIZE, narrow)
    picks = [
        SampleRequest(0, SamplingParams(temperature=9.0), 1, step, mask=mask) for step in range(300)
    ]
    tokens = {one.token for one in sampler().sample(row, picks, []).samples if one is not None}
    assert tokens == {2, 33, 60}


def test_a_mask_wins_where_bans_would_leave_nothing() -> None:
    row = logits(6)
    only_end = SampleRequest(0, GREEDY, 1, 0, banned=(7, 8), mask=mask_of([7], SIZE))
    assert token_of(row, only_end) == 7
    end_or_more = SampleRequest(0, GREEDY, 1, 0, banned=(7, 8), mask=mask_of([7, 20], SIZE))
    assert token_of(row, end_or_more) == 20


@pytest.mark.parametrize("mask_size", [32, 96])
def test_a_mask_of_another_width_than_the_vocabulary_allows_only_what_both_have(
    mask_size: int,
) -> None:
    row = torch.zeros(1, SIZE)
    row[0, 40:] = 10.0
    mask = mask_of([1, 5], mask_size, narrow=False)
    assert token_of(row, SampleRequest(0, GREEDY, 1, 0, mask=mask)) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_has_no_answer_and_disturbs_no_other(bad: float) -> None:
    rows = logits(9, 3)
    good = [token_of(rows, SampleRequest(at, SamplingParams(), 3, at)) for at in range(3)]
    rows[1, 17] = bad
    for sampling in (SamplingParams(), GREEDY):
        picks = [SampleRequest(at, sampling, 3, at) for at in range(3)]
        sampled = sampler().sample(
            rows, picks, [ScoreRequest(0, (1, 2, 3)), ScoreRequest(2, (4,)), ScoreRequest(1, (4,))]
        )
        assert sampled.samples[1] is None
        assert [one is None for one in sampled.scores] == [True, False, True]
        if sampling.temperature:
            assert [one.token for one in (sampled.samples[0], sampled.samples[2]) if one] == [
                good[0],
                good[2],
            ]


def test_logprobs_are_the_models_own_whatever_the_sampling_does() -> None:
    row = logits(10)
    exact = torch.log_softmax(row[0].double(), 0)
    pick = SampleRequest(
        0,
        SamplingParams(temperature=0.5, top_k=3, logprobs=4, logit_bias=((0, 50.0),)),
        1,
        1,
        mask=mask_of([0], SIZE),
    )
    one = pick_one(row, pick)
    assert one is not None
    assert one.token == 0
    assert one.logprob == pytest.approx(float(exact[0]), abs=1e-5)
    best = exact.argsort(descending=True)[:4].tolist()
    assert [token for token, _ in one.top] == best
    assert [logprob for _, logprob in one.top] == pytest.approx(
        [float(exact[token]) for token in best], abs=1e-5
    )


def test_logprobs_not_asked_for_are_not_computed() -> None:
    one = pick_one(logits(11), SampleRequest(0, SamplingParams(), 1, 1))
    assert one is not None
    assert math.isnan(one.logprob)
    assert one.top == ()
    asked = pick_one(logits(11), SampleRequest(0, SamplingParams(logprobs=0), 1, 1))
    assert asked is not None
    assert asked.logprob < 0
    assert asked.top == ()


def test_scores_are_the_logprobs_of_their_targets_in_order() -> None:
    rows = logits(12, 6)
    exact = torch.log_softmax(rows.double(), 1)
    first, second, none = (
        sampler()
        .sample(
            rows, [], [ScoreRequest(1, (5, 6, 7), 2), ScoreRequest(0, (9,)), ScoreRequest(4, ())]
        )
        .scores
    )
    assert first is not None
    assert second is not None
    assert first.logprobs == pytest.approx(
        [float(exact[1 + at, 5 + at]) for at in range(3)], abs=1e-5
    )
    assert [[token for token, _ in top] for top in first.tops] == exact[1:4].argsort(
        descending=True
    )[:, :2].tolist()
    assert second.logprobs == pytest.approx([float(exact[0, 9])], abs=1e-5)
    assert second.tops == ()
    assert none is not None
    assert none.logprobs == ()


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("count", [1, 3, 40, 500])
def test_the_most_likely_of_a_masked_row_are_those_that_are_allowed(
    count: int, narrow: bool
) -> None:
    rows = logits(13, 4)
    allowed = sorted(np.random.default_rng(5).choice(rows.shape[1], 40, replace=False).tolist())
    mask = mask_of(allowed, rows.shape[1], narrow)
    asked = [ScoreRequest(2, (0,), count, mask), ScoreRequest(1, (0, 1), 2), ScoreRequest(0, (0,))]
    masked, plain, _ = sampler().sample(rows, [], asked).scores
    assert masked is not None
    assert plain is not None
    exact = torch.log_softmax(rows[2].double(), 0)
    wanted = sorted(allowed, key=lambda token: -float(exact[token]))[:count]
    (top,) = masked.tops
    assert [token for token, _ in top] == wanted
    assert [value for _, value in top] == pytest.approx(
        [float(exact[token]) for token in wanted], abs=1e-5
    )
    assert masked.logprobs == pytest.approx([float(exact[0])], abs=1e-5)
    (twin, _, _) = PlainSampler().sample(rows.numpy(), (), tuple(asked)).scores
    assert twin is not None
    assert [token for token, _ in twin.tops[0]] == wanted
    assert [len(one) for one in plain.tops] == [2, 2]


def test_edits_are_those_of_the_plain_twin(seed: int) -> None:
    """Greedy picks of edited rows, where one wrong number shows as another token."""
    rng = np.random.default_rng(seed + 1)
    rows = logits(seed, 300)
    picks = [random_pick(rng, at) for at in range(len(rows))]
    picks = [pick._replace(sampling=_greedy(pick.sampling)) for pick in picks]
    for pick, one in zip(picks, sampler().sample(rows, picks, []).samples, strict=True):
        assert one is not None
        values = edited(rows[pick.logit].numpy(), pick)
        assert values[one.token] == pytest.approx(values.max(), abs=1e-5)


def _greedy(sampling: SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=0.0,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=sampling.logit_bias,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_read_as_they_are(dtype: torch.dtype) -> None:
    rows = logits(13, 5).to(dtype)
    picks = [SampleRequest(at, SamplingParams(top_p=0.9, logprobs=2), 3, at) for at in range(5)]
    assert repr(sampler().sample(rows, picks, [])) == repr(
        sampler().sample(rows.float(), picks, [])
    )


def test_the_logits_are_left_as_they_were() -> None:
    rows = logits(14, 2)
    before = rows.clone()
    picks = [
        SampleRequest(
            at,
            SamplingParams(logit_bias=((1, 5.0),)),
            1,
            1,
            banned=(3,),
            mask=mask_of([1, 2], SIZE),
        )
        for at in (0, 1)
    ]
    sampler().sample(rows, picks, [])
    assert torch.equal(rows, before)
