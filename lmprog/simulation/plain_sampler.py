"""A plain numpy sampler, one row at a time: used by the simulation, and as the reference in tests
of the real sampler.

Slow and obvious. Knows requests and results; knows no torch.
"""

from __future__ import annotations

from math import isfinite

import numpy as np
from numpy.typing import NDArray

from lmprog.constraints.constraint import MaskRow
from lmprog.runtime.scheduling.sampling_requests import (
    Likely,
    SampleRequest,
    SampleResult,
    ScoreRequest,
    ScoreResult,
    StepResults,
    bans,
    is_weighed,
    uniform,
)

Floats = NDArray[np.float32]


class PlainSampler:
    """Greedy at temperature 0, else inverse-CDF sampling over the whole vocabulary. No
    penalties.
    """

    def sample(
        self, logits: Floats, samples: tuple[SampleRequest, ...], scores: tuple[ScoreRequest, ...]
    ) -> StepResults:
        return StepResults(
            tuple(_sample(logits[request.logit], request) for request in samples),
            tuple(_score(logits, score) for score in scores),
        )


def log_softmax(row: Floats) -> NDArray[np.float64]:
    """Log-probabilities of one row."""
    shifted = row.astype(np.float64) - float(row.max())
    return shifted - float(np.log(np.exp(shifted).sum()))


def _sample(row: Floats, request: SampleRequest) -> SampleResult | None:
    if not isfinite(np.add.reduce(row, dtype=np.float64)):
        return None
    kept = _allowed(row, request)
    for biased, bias in request.sampling.logit_bias:
        kept[biased] += bias
    free = kept
    if is_weighed(request):
        free = _allowed(row, request._replace(mask=None, banned=tuple(bans(request, len(row)))))
        for biased, bias in request.sampling.logit_bias:
            free[biased] += bias
    if request.sampling.temperature == 0.0:
        token = int(kept.argmax())
    else:
        weights = np.exp((kept - kept.max()).astype(np.float64) / request.sampling.temperature)
        token = int(
            np.searchsorted(
                weights.cumsum(), uniform(request.seed, request.step) * weights.sum(), side="right"
            )
        )
    found = SampleResult(token, float("nan"))
    if is_weighed(request):
        heat = request.sampling.temperature
        own, mass = _log_sum(kept / heat), _log_sum(free / heat)
        found = found._replace(odds=(float(kept[token]) / heat - own, own - mass))
    if request.sampling.logprobs is None:
        return found
    likely = log_softmax(row)
    return found._replace(logprob=float(likely[token]), top=_top(likely, request.sampling.logprobs))


def _log_sum(values: Floats) -> float:
    best = float(values.max())
    return best + float(np.log(np.exp(values.astype(np.float64) - best).sum()))


def _allowed(row: Floats, request: SampleRequest) -> Floats:
    """A copy of `row` with -inf where the token must not be sampled."""
    kept = row.copy()
    if request.mask is not None:
        kept[~_bits(request.mask, len(row))] = -np.inf
    if not request.banned:
        return kept
    may_ban_all = request.mask is not None or len(request.banned) >= len(row)
    before = kept.copy() if may_ban_all else kept
    for token in request.banned:
        kept[token] = -np.inf
    if may_ban_all and kept.max() == -np.inf:
        return before
    return kept


def _score(logits: Floats, score: ScoreRequest) -> ScoreResult | None:
    rows = logits[score.logit : score.logit + len(score.targets)]
    if not np.isfinite(rows).all():
        return None
    likely = [log_softmax(row) for row in rows]
    logprobs = tuple(float(row[target]) for row, target in zip(likely, score.targets, strict=True))
    if not score.top:
        return ScoreResult(logprobs)
    if score.mask is not None:
        for row in likely:
            row[~_bits(score.mask, len(row))] = -np.inf
    return ScoreResult(logprobs, tuple(_top(row, score.top) for row in likely))


def _bits(mask: MaskRow, size: int) -> NDArray[np.bool_]:
    """Which of `size` tokens are allowed."""
    return np.unpackbits(mask.bits.view(np.uint8), count=size, bitorder="little").astype(bool)


def _top(likely: NDArray[np.float64], count: int) -> Likely:
    best = np.argsort(-likely, kind="stable")[:count]
    return tuple((int(token), float(likely[token])) for token in best if likely[token] > -np.inf)
