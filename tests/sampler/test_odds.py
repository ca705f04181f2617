"""The odds of a masked token: each sampler tells those of the plain twin."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lmprog.runtime.scheduling.sampling_requests import SampleRequest
from lmprog.simulation.plain_sampler import PlainSampler
from lmprog.wire import SamplingParams
from tests.sampler.conftest import sampler
from tests.sampler.plain import distribution, mask_of
from tests.sampler.test_sampler import SIZE, logits

NUM_ROWS = 60


def asked(seed: int) -> list[SampleRequest]:
    """A masked pick of each row, with some of what goes with odds."""
    rng = np.random.default_rng(seed)
    picks = []
    for row in range(NUM_ROWS):
        allowed = sorted(rng.choice(SIZE, rng.integers(1, 12), False).tolist())
        sampling = SamplingParams(
            temperature=float(rng.uniform(0.3, 2)),
            presence_penalty=float(rng.choice([0.0, 1.5])),
            logit_bias=((int(rng.integers(SIZE)), float(rng.uniform(-30, 5))),),
            faithful=2,
        )
        picks.append(
            SampleRequest(
                row,
                sampling,
                seed=seed,
                step=row,
                generated=(3, 3, 7),
                banned=tuple(rng.integers(0, SIZE, 2).tolist()),
                mask=mask_of(allowed, SIZE, narrow=bool(row % 2)),
            )
        )
    return picks


def test_odds_are_those_of_the_exact_distribution_with_and_without_the_mask(seed: int) -> None:
    rows, picks = logits(seed, NUM_ROWS), asked(seed)
    for pick, one in zip(picks, sampler().sample(rows, picks, []).samples, strict=True):
        assert one is not None
        assert one.odds is not None
        row = rows[pick.logit].numpy()
        masked = distribution(row, pick)
        assert one.odds[0] == pytest.approx(math.log(masked[one.token]), abs=1e-4)
        assert pick.mask is not None
        banned = () if _gave_way(pick) else pick.banned
        free = distribution(row, pick._replace(mask=None, banned=banned))
        allowed = [token for token in range(SIZE) if pick.mask.allows(token)]
        assert one.odds[1] == pytest.approx(math.log(free[allowed].sum()), abs=1e-4)


def _gave_way(pick: SampleRequest) -> bool:
    assert pick.mask is not None
    return all(token in pick.banned for token in range(SIZE) if pick.mask.allows(token))


def test_the_plain_sampler_tells_the_same_odds(seed: int) -> None:
    rows, picks = logits(seed, NUM_ROWS), asked(seed)
    picks = [one._replace(generated=(), sampling=_unpenalized(one.sampling)) for one in picks]
    found = sampler().sample(rows, picks, []).samples
    plain = PlainSampler().sample(rows.numpy(), tuple(picks), ()).samples
    for one, other in zip(found, plain, strict=True):
        assert one is not None
        assert other is not None
        assert one.odds == pytest.approx(other.odds, abs=1e-4)


def _unpenalized(sampling: SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature, logit_bias=sampling.logit_bias, faithful=2
    )


def test_who_does_not_ask_gets_no_odds_and_the_same_token(seed: int) -> None:
    rows, picks = logits(seed, NUM_ROWS), asked(seed)
    silent = [
        one._replace(sampling=SamplingParams(temperature=one.sampling.temperature)) for one in picks
    ]
    asking = [
        one._replace(sampling=SamplingParams(temperature=one.sampling.temperature, faithful=2))
        for one in picks
    ]
    without = sampler().sample(rows, silent, []).samples
    mixed = sampler().sample(rows, [*asking, *silent], []).samples
    assert [one and one.odds for one in without] == [None] * NUM_ROWS
    tokens = [one and one.token for one in without]
    assert [one and one.token for one in mixed] == tokens * 2


def test_what_is_unlikely_beyond_floats_keeps_its_odds() -> None:
    row = logits(3)
    row[0, 5] = -700.0
    pick = SampleRequest(0, SamplingParams(faithful=2), 1, 1, mask=mask_of([5], SIZE))
    (one,) = sampler().sample(row, [pick], []).samples
    assert one is not None
    assert one.odds is not None
    exact = float(row[0, 5]) - float(row[0].double().logsumexp(0))
    assert one.odds == pytest.approx((0.0, exact), rel=1e-5)
