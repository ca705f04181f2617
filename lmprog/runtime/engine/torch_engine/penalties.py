"""What stands between a model's logits and the choice: bias, penalties, bans and masks, in this
order, on tensors.

As vLLM and transformers define them. Bias is added. The repetition penalty divides positive logits
and multiplies negative ones of every token in prompt or output; frequency and presence penalties
are subtracted for generated tokens, the first for each time, the second once. What is banned, or
not in a mask, gets no probability at all.

Knows picks and tensors; `logit_edits` says which tokens are meant. Draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from lmprog.runtime.scheduling import logit_edits
from lmprog.runtime.scheduling.sampling_requests import SampleRequest


def edit(values: Tensor, picks: Sequence[SampleRequest]) -> None:
    """Changes `values` [rows, vocabulary] in place, a row for each pick. A row whose mask allows
    nothing that the vocabulary has is left with minus infinity everywhere."""
    _add_bias(values, picks)
    _penalize(values, picks)
    _ban(values, picks)
    _mask(values, picks)


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
        if bias := logit_edits.bias(pick):
            cells.add(row, list(bias), list(bias.values()))
    if (found := cells.within(values)) is not None:
        rows, tokens, amounts = found
        values[rows, tokens] += amounts


def _penalize(values: Tensor, picks: Sequence[SampleRequest]) -> None:
    repeated, counted = _Cells(), _Cells()
    for row, pick in enumerate(picks):
        if (seen := logit_edits.repeated(pick)) is not None:
            repeated.add(row, *seen)
        if (counts := logit_edits.counted(pick)) is not None:
            counted.add(row, *counts)
    if (cells := repeated.within(values)) is not None:
        rows, tokens, amounts = cells
        old = values[rows, tokens]
        values[rows, tokens] = torch.where(old > 0, old / amounts, old * amounts)
    if (cells := counted.within(values)) is not None:
        rows, tokens, amounts = cells
        values[rows, tokens] -= amounts


def _ban(values: Tensor, picks: Sequence[SampleRequest]) -> None:
    size = values.shape[1]
    rows: list[int] = []  # plain lists: almost every row of a forced length has a few bans
    tokens: list[int] = []
    for row, pick in enumerate(picks):
        known = logit_edits.bans(pick, size)
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
