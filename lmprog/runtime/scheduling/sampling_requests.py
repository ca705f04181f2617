"""Sampling and scoring requests and their results: the values between the scheduler, which knows no
tensors, and a sampler. And the random number of each sample.

A logits row is named by its index among the wanted logits of the batch. Knows no pages, no text, no
torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lmprog.constraints.constraint import MaskRow
from lmprog.wire import SamplingParams

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


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


def uniform(seed: int, step: int) -> float:
    """A number in (0, 1), never 0 or 1 itself."""
    return (_mixed(_mixed(seed & _MASK) ^ (step * _GOLDEN & _MASK)) >> 11 | 1) / (1 << 53)


def _mixed(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
