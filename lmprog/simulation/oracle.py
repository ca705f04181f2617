"""The result that a call must have, computed from its prompt alone: no pages, no batch, no
scheduler, no cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lmprog import wire
from lmprog.runtime.programs.select_scoring import softmax
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, uniform
from lmprog.simulation.fake_engine import LetterTokenizer, Reference
from lmprog.simulation.plain_sampler import PlainSampler, log_softmax

LETTERS = LetterTokenizer()
_SAMPLER = PlainSampler()


@dataclass(frozen=True, slots=True)
class Expected:
    text: str
    finish: wire.FinishReason
    num_tokens: int
    """With those of the stop string."""


def generated(prompt: str, op: wire.Generate, seed: int, adapter: int = 0) -> Expected:
    """The text that `op` generates after `prompt`."""
    sampling = op.sampling
    reference = _reading(prompt, adapter).copy()
    text = ""
    assert sampling.max_tokens is not None
    for step in range(sampling.max_tokens):
        banned = LETTERS.eos_ids if step < sampling.min_tokens or sampling.ignore_eos else ()
        pick = SampleRequest(0, sampling, seed, step, banned=banned)
        picked = _SAMPLER.sample(reference.logits()[None], (pick,), ()).samples[0]
        assert picked is not None
        if picked.token in LETTERS.eos_ids:
            return Expected(text, "stop", len(text))
        text += LETTERS.token_text(picked.token)
        reference.append(picked.token)
        # One letter is one token, and none of the first `min_tokens` belongs to a stop.
        ends = [
            text.find(stop, sampling.min_tokens)
            for stop in sampling.stop
            if stop in text[sampling.min_tokens :]
        ]
        if ends:
            return Expected(text[: min(ends)], "stop", len(text))
    return Expected(text, "length", len(text))


@dataclass(frozen=True, slots=True)
class ExpectedBeam:
    text: str
    finish: wire.FinishReason
    score: float


@dataclass(frozen=True, slots=True)
class _Text:
    letters: str
    reference: Reference
    total: float
    finish: wire.FinishReason | None = None


class _Follower(NamedTuple):
    """A text that is one token longer."""

    total: float
    token: int
    before: _Text


def beamed(prompt: str, op: wire.Generate, adapter: int = 0) -> list[ExpectedBeam]:
    """The best texts of a beam search, written out over the whole vocabulary."""
    sampling, rules = op.sampling, op.sampling.beams
    assert rules is not None
    assert sampling.max_tokens is not None
    going, complete = [_Text("", _reading(prompt, adapter), 0.0)], list[ExpectedBeam]()
    for length in range(1, sampling.max_tokens + 1):
        kept = max(2, 1 + len(LETTERS.eos_ids)) * rules.width
        every = [one for text in going for one in _followers(text, sampling, length)]
        every.sort(key=lambda one: -one.total)
        found = [_continued(one, sampling, length) for one in every[:kept]]
        complete += [
            ExpectedBeam(_cut(one.letters, sampling), one.finish, _mean(one.total, length, rules))
            for one in found[: rules.width]
            if one.finish is not None
        ]
        complete = sorted(complete, key=lambda one: -one.score)[: rules.width]
        going = [one for one in found if one.finish is None][: rules.width]
        if not going:
            break
        if len(complete) == rules.width:
            is_open = rules.early_stopping == "never" and rules.length_penalty > 0
            best = _mean(going[0].total, sampling.max_tokens if is_open else length, rules)
            if rules.early_stopping is True or best <= complete[-1].score:
                break
    return complete[: sampling.n]


def _mean(total: float, length: int, rules: wire.Beams) -> float:
    return total / float(length**rules.length_penalty)


def _followers(text: _Text, sampling: wire.SamplingParams, length: int) -> list[_Follower]:
    """`text` with every token that may follow."""
    may_end = length > sampling.min_tokens and not sampling.ignore_eos
    return [
        _Follower(text.total + logprob, token, text)
        for token, logprob in enumerate(log_softmax(text.reference.logits()).tolist())
        if may_end or token not in LETTERS.eos_ids
    ]


def _continued(one: _Follower, sampling: wire.SamplingParams, length: int) -> _Text:
    """An end is no letter."""
    before, token = one.before, one.token
    if token in LETTERS.eos_ids:
        return _Text(before.letters, before.reference, one.total, "stop")
    reference, letters = before.reference.copy(), before.letters + LETTERS.token_text(token)
    reference.append(token)
    finish: wire.FinishReason | None = "length" if length == sampling.max_tokens else None
    is_stopped = _cut(letters, sampling) != letters
    return _Text(letters, reference, one.total, "stop" if is_stopped else finish)


def _cut(letters: str, sampling: wire.SamplingParams) -> str:
    """Up to the first stop."""
    places = [letters.find(stop, sampling.min_tokens) for stop in sampling.stop]
    return letters[: min((place for place in places if place >= 0), default=len(letters))]


@lru_cache(64)
def _reading(prompt: str, adapter: int) -> Reference:
    return Reference(LETTERS.encode(prompt), LETTERS.vocab_size, adapter)


def scores(prompt: str, op: wire.Select, adapter: int = 0) -> list[float]:
    """The mean log-probability of each option after `prompt`."""
    found = []
    for option in op.choices:
        reference = _reading(prompt, adapter).copy()
        logprobs = []
        for token in LETTERS.encode(option):
            logprobs.append(float(log_softmax(reference.logits())[token]))
            reference.append(token)
        found.append(float(np.mean(logprobs)))
    return found


def chosen(op: wire.Select, found: list[float]) -> set[int]:
    """The options that may win with these scores: those with the best one, to rounding."""
    if op.temperature == 0.0:
        return {index for index, score in enumerate(found) if score > max(found) - 1e-6}
    left = uniform(op.seed or 0, 0)
    for index, probability in enumerate(softmax([score / op.temperature for score in found])):
        left -= probability
        if left < 0.0:
            return {index}
    return {len(found) - 1}
