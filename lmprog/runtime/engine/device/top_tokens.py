"""The most likely tokens of single rows of logits, by torch: few calls ask for them.

They are found on the device before anything overwrites the logits, and read when the step is done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from lmprog.runtime.engine.device.driver import Driver
from lmprog.runtime.engine.device.pick_arrays import Array
from lmprog.runtime.engine.device.staging import Staging
from lmprog.runtime.scheduling.logit_edits import allowed
from lmprog.runtime.scheduling.sampling_requests import Likely, SampleRequest, ScoreRequest

_AT_ONCE = 128
"""Rows whose probabilities are in memory together; a step may want those of thousands."""
Requests = tuple[Sequence[SampleRequest], Sequence[ScoreRequest]]


class TopTokens:
    """Lists by row, the best token first."""

    def __init__(self, rows: Sequence[int], tokens: torch.Tensor, logprobs: torch.Tensor) -> None:
        """Host tensors that may still have to be filled. # [rows, most] each"""
        self._place_of = {row: place for place, row in enumerate(rows)}
        self._tokens, self._logprobs = tokens, logprobs

    def of(self, row: int, count: int) -> Likely:
        if not count:
            return ()
        place = self._place_of[row]
        tokens, logprobs = self._tokens[place].tolist(), self._logprobs[place].tolist()
        pairs = zip(tokens, logprobs, strict=True)
        finite = [one for one in pairs if one[1] > -math.inf]  # others a mask forbids
        return tuple(sorted(finite, key=lambda one: (-one[1], one[0]))[:count])


NO_TOPS = TopTokens((), torch.empty(0, 0), torch.empty(0, 0))


def begin_tops(
    driver: Driver, staging: Staging, logits: torch.Tensor, requests: Requests
) -> TopTokens:
    """What `requests` want to see besides the tokens they name, filled by the next event. A row has
    one mask, since it is of one sequence.
    """
    picks, scores = requests
    wanted = {pick.logit: pick.sampling.logprobs for pick in picks if pick.sampling.logprobs}
    for score in scores:
        if score.top:
            wanted |= dict.fromkeys(range(score.logit, score.logit + len(score.targets)), score.top)
    if not wanted:
        return NO_TOPS
    rows, most = sorted(wanted), min(max(wanted.values()), logits.shape[1])
    count = len(rows) * most
    arrays: dict[str, Array] = {"rows": np.array(rows, np.int32)}
    masked = [score for score in scores if score.top and score.mask is not None]
    if masked:
        arrays["hidden"] = _hidden(masked, rows, logits.shape[1])
    at = staging.send(arrays)
    rows_there = staging.read(at["rows"], len(rows), torch.int32)
    hidden_there = None
    if masked:
        num_flags = len(rows) * logits.shape[1]
        hidden_there = staging.read(at["hidden"], num_flags, torch.uint8).view(len(rows), -1)
    there = driver.memory(2 * count * 4)
    tokens = there[: count * 4].view(torch.int32).view(-1, most)
    logprobs = there[count * 4 :].view(torch.float32).view(-1, most)

    def find() -> None:
        for start in range(0, len(rows), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            found = logits.index_select(0, rows_there[part]).log_softmax(1)
            if hidden_there is not None:
                found.masked_fill_(hidden_there[part].bool(), -math.inf)
            likely = found.topk(most, 1)
            tokens[part].copy_(likely.indices)
            logprobs[part].copy_(likely.values)

    driver.compute(find)
    here = driver.pinned(2 * count * 4)
    driver.copy(here, there)
    return TopTokens(
        rows,
        here[: count * 4].view(torch.int32).view(-1, most),
        here[count * 4 :].view(torch.float32).view(-1, most),
    )


def _hidden(masked: Sequence[ScoreRequest], rows: list[int], size: int) -> NDArray[np.uint8]:
    """1 where a row's mask does not allow a token. # [rows, size]"""
    found = np.zeros((len(rows), size), np.uint8)
    place_of = {row: place for place, row in enumerate(rows)}
    for score in masked:
        own = [place_of[score.logit + at] for at in range(len(score.targets))]
        found[own] = 1
        found[np.ix_(np.array(own), allowed(score, size))] = 0
    return found
