"""Which tokens of a row a pick changes before one is chosen, and by how much; among which tokens a
score looks for the likeliest.

Knows picks, scores and numpy; changes nothing itself. What the amounts mean, a sampler knows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest

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
    mask = score.mask
    assert mask is not None, "without a mask all are allowed"
    if mask.ids is not None:
        return mask.ids[mask.ids < size].astype(np.int64)
    return np.flatnonzero(np.unpackbits(mask.bits.view(np.uint8), bitorder="little", count=size))
