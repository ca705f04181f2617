"""Sampling and scoring requests and their results: the values between the scheduler, which knows no
tensors, and a sampler. And the random number of each sample, which tokens a pick changes before
one is chosen, and by how much, and among which tokens a score looks for the likeliest.

A logits row is named by its index among the wanted logits of the batch. Knows numpy; knows no
pages, no text, no torch, and not what the amounts mean, which a sampler knows.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lmprog.constraints.constraint import MaskRow
from lmprog.wire import SamplingParams

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class LikelyArrays:
    """Many likely tokens with their log-probabilities: pairs are made where they are read."""

    __slots__ = ("logprobs", "tokens")

    def __init__(self, tokens: NDArray[Any], logprobs: NDArray[Any]) -> None:
        self.tokens = tokens
        self.logprobs = logprobs

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self.tokens.tolist(), self.logprobs.tolist(), strict=True)

    def __getitem__(self, part: slice) -> tuple[tuple[int, float], ...]:
        return tuple(LikelyArrays(self.tokens[part], self.logprobs[part]))


Likely: TypeAlias = tuple[tuple[int, float], ...] | LikelyArrays
"""The most likely tokens of one position with their log-probabilities, best first."""
MOST_PAIRS = 64
"""More likely tokens than these are `LikelyArrays`."""


def columns(likely: Likely) -> tuple[NDArray[Any], NDArray[Any]]:
    """The tokens, and their log-probabilities."""
    if isinstance(likely, LikelyArrays):
        return likely.tokens, likely.logprobs
    pairs = np.array(likely, np.float64).reshape(-1, 2)
    return pairs[:, 0].astype(np.int64), pairs[:, 1]


def likeliest_of_all(
    likely: Sequence[Likely], totals: Sequence[float], most: int
) -> Iterator[tuple[int, int, float]]:
    """The `most` best by the sums of `totals` and log-probabilities: the position that each is of,
    its token and log-probability. Of equals the first position's go first, as likely as they are.
    """
    each = [columns(one) for one in likely]
    counts = [len(tokens) for tokens, _ in each]
    tokens = np.concatenate([tokens for tokens, _ in each])
    logprobs = np.concatenate([logprobs for _, logprobs in each]).astype(np.float64)
    sums = np.repeat(totals, counts) + logprobs
    best = np.arange(len(sums))
    if len(sums) > most:
        best = np.flatnonzero(sums >= np.partition(sums, -most)[-most])
    best = best[np.argsort(-sums[best], kind="stable")][:most]
    whose = np.repeat(np.arange(len(each)), counts)[best]
    return zip(whose.tolist(), tokens[best].tolist(), logprobs[best].tolist(), strict=True)


def without(likely: Likely, banned: Container[int]) -> Likely:
    """Those that are left."""
    if not isinstance(likely, LikelyArrays):
        return tuple([one for one in likely if one[0] not in banned])
    kept = np.array([token not in banned for token in likely.tokens.tolist()], bool)
    return LikelyArrays(likely.tokens[kept], likely.logprobs[kept])


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
    masks; they are nan and empty unless log-probabilities were requested.

    `odds` are known of texts that are drawn faithfully: logarithms of how likely the token was, and
    how likely one that the mask allows would have been without it."""

    token: int
    logprob: float
    top: Likely = ()
    odds: tuple[float, float] | None = None


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


Tokens = NDArray[np.int64]


def is_edited(pick: SampleRequest) -> bool:
    """Whether anything but temperature and truncation stands between the model's logits and the
    choice.
    """
    sampling = pick.sampling
    return bool(
        pick.banned
        or pick.mask is not None
        or sampling.logit_bias
        or sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty
        or sampling.presence_penalty
    )


def is_weighed(pick: SampleRequest) -> bool:
    """Whether the odds of its token are wanted."""
    return pick.mask is not None and pick.sampling.faithful > 1


def bias(pick: SampleRequest) -> dict[int, float]:
    """What is added, by token; of equal tokens the last one counts, as in a JSON object."""
    return dict(pick.sampling.logit_bias)


def repeated(pick: SampleRequest) -> tuple[Tokens, float] | None:
    """Tokens of prompt and output with the repetition penalty; None where there is none."""
    penalty = pick.sampling.repetition_penalty
    if penalty == 1.0:
        return None
    seen = np.asarray([*pick.prompt, *pick.generated], np.int64)
    return np.unique(seen), penalty


def counted(pick: SampleRequest) -> tuple[Tokens, NDArray[Any]] | None:
    """Generated tokens with what frequency and presence penalties subtract; None for none."""
    sampling = pick.sampling
    if not (sampling.frequency_penalty or sampling.presence_penalty):
        return None
    seen, counts = np.unique(np.asarray(pick.generated, np.int64), return_counts=True)
    return seen, sampling.presence_penalty + sampling.frequency_penalty * counts


def bans(pick: SampleRequest, size: int) -> list[int]:
    """Banned tokens of a vocabulary of `size`. Bans give way where they would leave nothing of a
    mask: a constraint that is complete can only be ended, and a text that breaks it would be worse
    than one that is shorter than asked for.
    """
    if not pick.banned:
        return []
    banned, mask = set(pick.banned), pick.mask
    left = size - len(banned) if mask is None else mask.count - sum(map(mask.allows, banned))
    return [token for token in banned if token < size] if left > 0 else []


def allowed(score: ScoreRequest, size: int) -> Tokens:
    """The tokens of a vocabulary of `size` that its mask allows, in ascending order."""
    assert score.mask is not None, "without a mask all are allowed"
    tokens = score.mask.tokens
    return tokens[tokens < size].astype(np.int64)
