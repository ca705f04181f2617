"""The sampling kernels against the sampler of the processor, which has its own tests of what is
right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from lmprog.runtime.engine.device.sampling import DeviceLogits, DeviceSampler, pick_arrays
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.runtime.scheduling.sampling_requests import (
    SampleRequest,
    SampleResult,
    ScoreRequest,
    uniform,
)
from lmprog.wire import SamplingParams
from tests.cuda.attending import placed
from tests.cuda.conftest import MakeKernels
from tests.sampler.examples import SIZE, ignored
from tests.sampler.plain import mask_of

BOTH = tuple[DeviceSampler, TorchSampler]


def logits_of(kernels: object, values: torch.Tensor) -> DeviceLogits:
    return DeviceLogits(placed(kernels.driver, values), len(values))


def random_pick(rng: np.random.Generator, row: int, size: int) -> SampleRequest:
    """A pick with some of everything."""

    def some(yes: float, no: float) -> float:
        return yes if rng.random() < 0.4 else no

    sampling = SamplingParams(
        temperature=some(0.0, float(rng.uniform(0.2, 3))),
        top_k=int(some(int(rng.integers(1, size + 5)), -1)),
        top_p=some(float(rng.uniform(0.02, 1)), 1.0),
        min_p=some(float(rng.uniform(0, 0.5)), 0.0),
        frequency_penalty=some(float(rng.uniform(-2, 2)), 0.0),
        presence_penalty=some(float(rng.uniform(-2, 2)), 0.0),
        repetition_penalty=some(float(rng.uniform(0.5, 2)), 1.0),
        logit_bias=((int(rng.integers(size)), 3.5), (int(rng.integers(size)), -2.0))
        if rng.random() < 0.3
        else (),
        logprobs=3 if rng.random() < 0.3 else None,
    )
    allowed = sorted(rng.choice(size, rng.integers(1, size), False).tolist())
    return SampleRequest(
        row,
        sampling,
        seed=int(rng.integers(1 << 40)),
        step=int(rng.integers(99)),
        prompt=tuple(rng.integers(0, size, 9).tolist()),
        generated=tuple(rng.integers(0, size, 12).tolist()),
        banned=tuple(rng.integers(0, size, int(rng.integers(4))).tolist()),
        mask=mask_of(allowed, size, bool(rng.random() < 0.5)) if rng.random() < 0.4 else None,
    )


def test_the_device_tells_the_odds_that_the_processor_tells(kernels_of: MakeKernels) -> None:
    rng = np.random.default_rng(7)
    kernels = kernels_of("bf16", 64, 7)
    values = torch.from_numpy(rng.normal(0, 3, (5, SIZE)).astype(np.float32))
    values[3, 9] = math.nan
    faithful, plain = SamplingParams(faithful=4, temperature=0.7), SamplingParams(faithful=4)
    mask = mask_of([3, 9, 40], SIZE)
    biased = SamplingParams(faithful=4, logit_bias=((3, -5.0),), presence_penalty=1.0)
    picks = [
        SampleRequest(4, faithful, 1, 1, mask=mask),
        SampleRequest(1, plain, 1, 2),
        SampleRequest(4, SamplingParams(), 1, 3, mask=mask),
        SampleRequest(4, biased, 1, 4, (), (9,), (40,), mask),
        SampleRequest(3, faithful, 1, 5, mask=mask),
    ]
    wanted = TorchSampler().sample(values, picks, []).samples
    found = DeviceSampler(kernels, SIZE).sample(logits_of(kernels, values), picks, []).samples
    assert [one and one.odds is None for one in wanted] == [False, True, True, False, None]
    for one, other in zip(found, wanted, strict=True):
        assert (one and one.token) == (other and other.token)
        assert (one and one.odds) == pytest.approx(other and other.odds)


@pytest.mark.parametrize(("seed", "size"), [(0, 61), (1, 262), (2, 2048), (3, 1000), (4, 5003)])
def test_the_device_chooses_what_the_processor_chooses(
    kernels_of: MakeKernels, seed: int, size: int
) -> None:
    rng = np.random.default_rng(seed)
    kernels = kernels_of("bf16", 64, seed)
    sampler = DeviceSampler(kernels, size)
    for _ in range(4):
        values = torch.from_numpy(rng.normal(0, 3, (12, size)).astype(np.float32))
        if rng.random() < 0.5:
            values = values.round()  # many ties
        picks = [random_pick(rng, row, size) for row in rng.permutation(12).tolist()[:9]]
        wanted = TorchSampler().sample(values, picks, []).samples
        logits = logits_of(kernels, values)
        got = sampler.sample(logits, picks, []).samples
        for mine, other, pick in zip(got, wanted, picks, strict=True):
            assert mine is not None
            assert other is not None
            assert mine.token == other.token, pick
            assert [token for token, _ in mine.top] == [
                token for token, _ in other.top
            ] or values.eq(values.round()).all()
            assert mine.logprob == pytest.approx(other.logprob, abs=1e-5, nan_ok=True)
        assert torch.equal(logits.values, values), "the logits are as they were"


@pytest.mark.parametrize(
    "parameters", [{"top_k": 7}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 40, "top_p": 0.5}]
)
def test_every_draw_of_many_is_the_same(
    kernels_of: MakeKernels, parameters: dict[str, float]
) -> None:
    kernels = kernels_of("bf16", 64)
    values = torch.from_numpy(
        np.random.default_rng(7).normal(0, 2, (1, 300)).astype(np.float32)
    ).repeat(100, 1)
    picks = [
        SampleRequest(row, SamplingParams(**parameters), seed=5, step=row) for row in range(100)
    ]
    wanted = [one.token for one in TorchSampler().sample(values, picks, []).samples if one]
    got = DeviceSampler(kernels, 300).sample(logits_of(kernels, values), picks, []).samples
    assert [one.token for one in got if one] == wanted
    assert len(set(wanted)) > 3


def test_a_row_that_is_not_finite_or_has_nothing_allowed_gives_no_token(
    kernels_of: MakeKernels,
) -> None:
    kernels = kernels_of("bf16", 64)
    values = torch.zeros(4, 100)
    values[0, 7], values[1, 99] = math.nan, math.inf
    sampling = SamplingParams(temperature=1.0)
    picks = [SampleRequest(row, sampling, seed=row, step=0) for row in range(4)]
    picks[2] = picks[2]._replace(mask=mask_of([200], 300))  # nothing that the logits have
    got = DeviceSampler(kernels, 100).sample(logits_of(kernels, values), picks, []).samples
    assert [one is None for one in got] == [True, True, True, False]


def test_greedy_takes_the_lowest_of_the_most_likely(kernels_of: MakeKernels) -> None:
    kernels = kernels_of("bf16", 64)
    values = torch.zeros(1, 3000)
    values[0, [2999, 1234, 1235]] = 2.0
    pick = SampleRequest(0, SamplingParams(temperature=0.0), seed=0, step=0)
    got = DeviceSampler(kernels, 3000).sample(logits_of(kernels, values), [pick], []).samples[0]
    assert got is not None
    assert got.token == 1234


def test_scores_are_those_of_the_processor(kernels_of: MakeKernels) -> None:
    rng = np.random.default_rng(2)
    kernels = kernels_of("bf16", 64)
    values = torch.from_numpy(rng.normal(0, 4, (9, 700)).astype(np.float32))
    values[8, 3] = math.nan
    scores = [
        ScoreRequest(0, (5,)),
        ScoreRequest(3, (1, 699, 0), 2),
        ScoreRequest(0, (6,)),
        ScoreRequest(8, (1,)),
        ScoreRequest(2, ()),
        ScoreRequest(6, (0, 1), 3, mask_of([1, 7, 64, 65, 698], 700)),
    ]
    got = DeviceSampler(kernels, 700).sample(logits_of(kernels, values), [], scores).scores
    wanted = TorchSampler().sample(values, [], scores).scores
    assert got[3] is None
    for mine, other in zip(got, wanted, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-5)
            assert [[token for token, _ in top] for top in mine.tops] == [
                [token for token, _ in top] for top in other.tops
            ]


def test_two_picks_of_one_row_do_not_see_each_others_edits(kernels_of: MakeKernels) -> None:
    """As a constraint asks for that has few tokens left: with and without its last mask."""
    size = 1000
    rng = np.random.default_rng(8)
    values = torch.from_numpy(rng.normal(0, 3, (3, size)).astype(np.float32))
    rows = [0, 1, 0, 2, 0, 1]
    picks = [random_pick(rng, row, size)._replace(logit=row) for row in rows]
    kernels = kernels_of("bf16", 64)
    got = DeviceSampler(kernels, size).sample(logits_of(kernels, values), picks, []).samples
    wanted = TorchSampler().sample(values, picks, []).samples
    assert [one and one.token for one in got] == [one and one.token for one in wanted]
    assert len({one.token for one in got if one is not None}) > 3


@pytest.mark.parametrize("num_waits", [0, 1])
def test_results_are_those_of_logits_that_are_overwritten_afterwards(
    kernels_of: MakeKernels, num_waits: int
) -> None:
    """The next step's take their place; what was asked for of the old ones is on its way."""
    size = 500
    kernels = kernels_of("bf16", 64)
    sampler = DeviceSampler(kernels, size)
    values = torch.randn(2, size, generator=torch.Generator().manual_seed(1))
    picks = [
        SampleRequest(row, SamplingParams(temperature=0.0, logprobs=2), 0, 0) for row in (0, 1)
    ]
    scores = [ScoreRequest(0, (3, 4), top=3)]
    wanted = TorchSampler().sample(values, picks, scores)
    logits = logits_of(kernels, values)
    for _ in range(num_waits):  # the device goes on after every other one
        kernels.driver.event().wait()
    begun = sampler.begin(logits, picks, scores)
    kernels.driver.compute(lambda: logits.values.fill_(0.0))
    got = begun.wait()
    for mine, other in zip(got.samples, wanted.samples, strict=True):
        assert mine is not None
        assert other is not None
        assert (mine.token, mine.logprob) == (other.token, pytest.approx(other.logprob, abs=1e-5))
        assert [token for token, _ in mine.top] == [token for token, _ in other.top]
    (mine_score,), (other_score,) = got.scores, wanted.scores
    assert mine_score is not None
    assert other_score is not None
    assert mine_score.logprobs == pytest.approx(other_score.logprobs, abs=1e-5)
    assert [[token for token, _ in one] for one in mine_score.tops] == [
        [token for token, _ in one] for one in other_score.tops
    ]


def test_the_points_of_many_picks_are_those_of_each() -> None:
    seeds, steps = [0, 7, -3, 1 << 70], [0, 1, 99, 5]
    picks = [
        SampleRequest(row, SamplingParams(), seed, step)
        for row, (seed, step) in enumerate(zip(seeds, steps, strict=True))
    ]
    points = pick_arrays(picks, 50)["point"]
    assert points.tolist() == [uniform(seed, step) for seed, step in zip(seeds, steps, strict=True)]


def test_the_device_honours_every_option_that_shapes_sampling(kernels_of: MakeKernels) -> None:
    kernels = kernels_of("bf16", 64)
    sampler = DeviceSampler(kernels, SIZE)

    def choose(
        logits: np.ndarray[Any, np.dtype[np.float32]], picks: Sequence[SampleRequest]
    ) -> Sequence[SampleResult | None]:
        return sampler.sample(logits_of(kernels, torch.from_numpy(logits)), picks, []).samples

    assert ignored(choose, num_draws=40) == []
