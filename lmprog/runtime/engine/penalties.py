"""What stands between a model's logits and the choice: bias, penalties, bans and masks, in this
order.

As vLLM and transformers define them. Bias is added. The repetition penalty divides positive logits
and multiplies negative ones of every token in prompt or output; frequency and presence penalties
are subtracted for generated tokens, the first for each time, the second once. What is banned, or
not in a mask, gets no probability at all.

Knows picks and tensors; draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from lmprog.runtime.scheduling.sampling_requests import SampleRequest


def is_edited(pick: SampleRequest) -> bool:
    """Whether anything but temperature and truncation stands between the model's logits and the
    choice.
    """
    sampling = pick.sampling
    return bool(pick.banned or pick.mask is not None or sampling.logit_bias or _is_penalized(pick))


def edit(values: Tensor, picks: Sequence[SampleRequest]) -> None:
    """Changes `values` [rows, vocabulary] in place, a row for each pick. A row whose mask allows
    nothing that the vocabulary has is left with minus infinity everywhere."""
    _add_bias(values, picks)
    _penalize(values, picks)
    _ban(values, picks)
    _mask(values, picks)


def _is_penalized(pick: SampleRequest) -> bool:
    sampling = pick.sampling
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty
        or sampling.presence_penalty
    )


class _Cells:
    """Places in a [rows, vocabulary] tensor, gathered row by row and used at once."""

    def __init__(self) -> None:
        self._rows: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        self._tokens: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        self._amounts: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []

    def add(self, row: int, tokens: Iterable[int], amounts: Iterable[float] | float = 0.0) -> None:
        found = np.asarray(tokens, np.int64)
        self._rows.append(np.full(found.shape, row, np.int64))
        self._tokens.append(found)
        self._amounts.append(np.broadcast_to(np.asarray(amounts, np.float32), found.shape))

    def within(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Rows, tokens and amounts on the device of `values`, tokens that it does not have left
        out; None if none.
        """
        if not self._rows:
            return None
        rows, tokens = np.concatenate(self._rows), np.concatenate(self._tokens)
        amounts = np.concatenate(self._amounts)
        known = tokens < values.shape[1]
        return (
            torch.from_numpy(rows[known]).to(values.device),
            torch.from_numpy(tokens[known]).to(values.device),
            torch.from_numpy(amounts[known]).to(values.device),
        )


def _add_bias(values: Tensor, picks: Sequence[SampleRequest]) -> None:
    cells = _Cells()
    for row, pick in enumerate(picks):
        bias = dict(
            pick.sampling.logit_bias
        )  # of equal tokens the last one counts, as in a JSON object
        if bias:
            cells.add(row, list(bias), list(bias.values()))
    if (found := cells.within(values)) is not None:
        rows, tokens, amounts = found
        values[rows, tokens] += amounts


def _penalize(values: Tensor, picks: Sequence[SampleRequest]) -> None:
    repeated, counted = _Cells(), _Cells()
    for row, pick in enumerate(picks):
        if not _is_penalized(pick):
            continue
        sampling = pick.sampling
        generated = np.asarray(pick.generated, np.int64)
        if sampling.repetition_penalty != 1.0:
            seen = np.unique(np.concatenate([np.asarray(pick.prompt, np.int64), generated]))
            repeated.add(row, seen, sampling.repetition_penalty)
        if sampling.frequency_penalty or sampling.presence_penalty:
            seen, counts = np.unique(generated, return_counts=True)
            counted.add(row, seen, sampling.presence_penalty + sampling.frequency_penalty * counts)
    if (found := repeated.within(values)) is not None:
        rows, tokens, amounts = found
        old = values[rows, tokens]
        values[rows, tokens] = torch.where(old > 0, old / amounts, old * amounts)
    if (found := counted.within(values)) is not None:
        rows, tokens, amounts = found
        values[rows, tokens] -= amounts


def _ban(values: Tensor, picks: Sequence[SampleRequest]) -> None:
    """Bans give way where they would leave nothing of a mask: a constraint that is complete can
    only be ended, and a text that breaks it would be worse than one that is shorter than asked
    for."""
    size = values.shape[1]
    rows: list[
        int
        # plain lists: there are few bans a row, and almost every row of a forced length has some
    ] = []
    tokens: list[int] = []
    for row, pick in enumerate(picks):
        banned = set(pick.banned)
        mask = pick.mask
        left = size - len(banned) if mask is None else mask.count - sum(map(mask.allows, banned))
        if banned and left > 0:
            known = [token for token in banned if token < size]
            rows += [row] * len(known)
            tokens += known
    if rows:
        values[
            torch.tensor(rows, device=values.device), torch.tensor(tokens, device=values.device)
        ] = -math.inf


def _mask(values: Tensor, picks: Sequence[SampleRequest]) -> None:
    """Only what the masks allow stays. Narrow masks bring their ids, wide ones their bits."""
    size = values.shape[1]
    narrow, wide = (
        _Cells(),
        [row for row, pick in enumerate(picks) if pick.mask and pick.mask.ids is None],
    )
    narrow_rows = [row for row, pick in enumerate(picks) if pick.mask and pick.mask.ids is not None]
    for row in narrow_rows:
        mask = picks[row].mask
        assert mask is not None
        assert mask.ids is not None
        narrow.add(row, mask.ids)
    if (found := narrow.within(values)) is not None:
        rows, tokens, _ = found
        kept = values[rows, tokens]
        values[torch.tensor(narrow_rows, device=values.device)] = -math.inf
        values[rows, tokens] = kept
    if wide:
        bits = np.zeros((len(wide), -(-size // 8)), np.uint8)
        for at, row in enumerate(wide):
            mask = picks[row].mask
            assert mask is not None
            own = mask.bits.view(np.uint8)[: bits.shape[1]]
            bits[at, : len(own)] = own
        barred = torch.from_numpy(_BARRED[bits].reshape(len(wide), -1)[:, :size])
        values[torch.tensor(wide, device=values.device)] += barred.to(values.device)


_BARRED = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0.0, -np.inf
)
_BARRED = _BARRED.astype(np.float32)
"""What a byte of a mask adds to the logits of its eight tokens."""
