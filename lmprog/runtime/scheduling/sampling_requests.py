"""Sampling and scoring requests and their results: the values between the scheduler, which knows no
tensors, and a sampler.

A logits row is named by its index among the wanted logits of the batch. Knows no pages, no text, no
torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lmprog.constraints.constraint import MaskRow
from lmprog.wire import SamplingParams

Likely = tuple[tuple[int, float], ...]
"""The most likely tokens of one position with their log-probabilities, best first."""


class SampleRequest(NamedTuple):
    """One token is to be sampled from logits row `logit`.

    (seed, step) determines the random number, whatever else is in the batch. `prompt` and
    `generated` are given only where penalties need them. `banned` tokens may not be sampled, unless
    `mask` allows nothing else.
    """

    logit: int
    sampling: SamplingParams
    seed: int
    step: int
    prompt: Sequence[int] = ()
    generated: Sequence[int] = ()
    banned: tuple[int, ...] = ()
    mask: MaskRow | None = None


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """The log-probability of each of `targets` under logits rows `logit`, `logit + 1`, ...; and the
    `top` most likely tokens of each of these rows, of those that `mask` allows. Log-probabilities
    are the model's own, whatever is allowed."""

    logit: int
    targets: tuple[int, ...]
    top: int = 0
    mask: MaskRow | None = None


class SampleResult(NamedTuple):
    """The sampled token. `logprob` and `top` are the model's own, before temperature, penalties and
    masks; they are nan and empty unless log-probabilities were requested."""

    token: int
    logprob: float
    top: Likely = ()


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Log-probabilities of a score's targets; `tops` is empty where none were requested."""

    logprobs: tuple[float, ...]
    tops: tuple[Likely, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResults:
    """Results of a step's requests, in their order. None: that row's logits were not finite."""

    samples: tuple[SampleResult | None, ...]
    scores: tuple[ScoreResult | None, ...]
