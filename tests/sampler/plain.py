"""What a row may become, in plain numpy and one rule after the other: the twin that the sampler is
compared with.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lmprog.constraints.constraint import NARROW, MaskRow
from lmprog.runtime.scheduling.sampling_requests import SampleRequest
from lmprog.wire import SamplingParams

Floats = NDArray[np.float64]


def mask_of(tokens: list[int], size: int, narrow: bool = True) -> MaskRow:
    """A mask that allows `tokens`."""
    bits = np.zeros(-(-size // 32), np.uint32)
    for token in tokens:
        bits[token >> 5] |= np.uint32(1 << (token & 31))
    ids = np.array(sorted(tokens), np.int32) if narrow and len(tokens) <= NARROW else None
    return MaskRow(bits, ids, len(tokens))


def edited(row: Floats, pick: SampleRequest) -> Floats:
    """Logits after bias, penalties, bans and mask."""
    values = row.astype(np.float64).copy()
    sampling = pick.sampling
    for token, bias in dict(sampling.logit_bias).items():
        values[token] += bias
    for token in set(pick.prompt) | set(pick.generated):
        penalty = sampling.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    for token in set(pick.generated):
        count = list(pick.generated).count(token)
        values[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    allowed = [
        token for token in range(len(values)) if pick.mask is None or pick.mask.allows(token)
    ]
    unbanned = [token for token in allowed if token not in pick.banned]
    kept = np.full(len(values), -np.inf)
    kept[unbanned or allowed] = values[unbanned or allowed]
    return kept


def distribution(row: Floats, pick: SampleRequest) -> Floats:
    """The exact probabilities of a pick."""
    sampling: SamplingParams = pick.sampling
    values = edited(row, pick)
    if sampling.temperature == 0:
        return np.eye(len(values))[int(values.argmax())]
    probabilities = np.exp((values - values.max()) / sampling.temperature)
    probabilities[probabilities < sampling.min_p * probabilities.max()] = 0
    if 0 < sampling.top_k < len(values):
        probabilities[probabilities < np.sort(probabilities)[-sampling.top_k]] = 0
    probabilities /= probabilities.sum()
    if sampling.top_p < 1:
        order = np.argsort(-probabilities, kind="stable")
        before = np.cumsum(probabilities[order]) - probabilities[order]
        last = order[int((before < sampling.top_p).sum()) - 1]
        probabilities[probabilities < probabilities[last]] = 0
    return probabilities / probabilities.sum()
