"""Each sampler honours every option that shapes sampling."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from lmprog import wire
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, SampleResult
from tests.sampler.conftest import sampler
from tests.sampler.examples import CHANGES, ignored
from tests.sampler.plain import distribution


def test_every_sampler_honours_every_option_that_shapes_sampling() -> None:
    """This runs for each of them; that of the device has its own test."""

    def choose(
        logits: NDArray[np.float32], picks: Sequence[SampleRequest]
    ) -> Sequence[SampleResult | None]:
        return sampler().sample(torch.from_numpy(logits), picks, []).samples

    assert ignored(choose) == []


def test_the_plain_twin_honours_every_option_that_shapes_sampling() -> None:
    row = np.random.default_rng(5).normal(0, 1.5, 61)
    plain, seen = distribution(row, pick(wire.SamplingParams())), []
    for name, sampling in CHANGES.items():
        if np.allclose(distribution(row, pick(sampling)), plain):
            seen.append(name)
    assert seen == []


def pick(sampling: wire.SamplingParams) -> SampleRequest:
    return SampleRequest(0, sampling, 1, 1, (1, 2, 3), (3, 4, 4))


def test_a_sampler_that_ignores_an_option_is_found() -> None:
    """As a new option would be of which no sampler knows."""

    def choose(
        logits: NDArray[np.float32], picks: Sequence[SampleRequest]
    ) -> Sequence[SampleResult | None]:
        deaf = [
            one._replace(sampling=msgspec.structs.replace(one.sampling, min_p=0.0)) for one in picks
        ]
        return sampler().sample(torch.from_numpy(logits), deaf, []).samples

    assert ignored(choose) == ["min_p"]
