"""The result that a call must have, computed from its prompt alone: no pages, no batch, no
scheduler, no cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lmprog import wire
from lmprog.runtime.programs.select_scoring import softmax
from lmprog.runtime.scheduling.randomness import uniform
from lmprog.runtime.scheduling.sampling_requests import SampleRequest
from lmprog.simulation.fake_engine import Reference
from lmprog.simulation.letters import LetterTokenizer
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


def chosen(prompt: str, op: wire.Select, adapter: int = 0) -> set[int]:
    """The options that may win: those with the best score, to rounding."""
    found = scores(prompt, op, adapter)
    if op.temperature == 0.0:
        return {index for index, score in enumerate(found) if score > max(found) - 1e-6}
    left = uniform(op.seed or 0, 0)
    for index, probability in enumerate(softmax([score / op.temperature for score in found])):
        left -= probability
        if left < 0.0:
            return {index}
    return {len(found) - 1}
