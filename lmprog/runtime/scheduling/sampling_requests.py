"""What a step asks of its logits and what it gets: values between the scheduler, which knows no
tensors, and a sampler.

A logits row is named by its index among the wanted logits of the batch. Knows no pages, no text, no
torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmprog.constraints.constraint import MaskRow
from lmprog.wire import SamplingParams

Likely = tuple[tuple[int, float], ...]
"""The most likely tokens of one position with their log-probabilities, best first."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One token is to be picked from logits row `logit`.

    (seed, step) determine the random number, whatever else is in the batch. `prompt` and
    `generated` are given only where penalties need them. `banned` tokens may not be picked, unless
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
    `top` most likely tokens of each of these rows."""

    logit: int
    targets: tuple[int, ...]
    top: int = 0


@dataclass(frozen=True, slots=True)
class SampleResult:
    """The picked token. `logprob` and `top` are the model's own, before temperature, penalties and
    masks; they are nan and empty unless log-probabilities were asked for."""

    token: int
    logprob: float
    top: Likely = ()


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Log-probabilities of a score's targets; `tops` is empty where none were asked for."""

    logprobs: tuple[float, ...]
    tops: tuple[Likely, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResults:
    """Answers to a step's picks and scores, in their order. None: that row's logits were not
    finite.
    """

    picked: tuple[SampleResult | None, ...]
    scored: tuple[ScoreResult | None, ...]
