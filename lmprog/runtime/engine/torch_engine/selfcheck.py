"""Compares a foreign model on pages with its own attention, once when it is loaded.

This finds whatever the interface of transformers does not tell: states beside keys and values,
biases of scores, positions that are counted instead of given. Knows a few tokens and two ways to
compute them.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lmprog.errors import ModelError
from lmprog.runtime.engine.attention.backend import AttentionBackend, AttentionShape
from lmprog.runtime.engine.attention.reference import ReferenceAttention
from lmprog.runtime.scheduling.batch import Batch

_COUNT = 24
_CUTS = (0, 7, 8, 9, 10, 11, 24)
"""Computed in a chunk, single tokens, another chunk: whatever is kept outside of the pages is lost
between them.
"""
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Mean difference of logits, in standard deviations of the logits."""


class Checked(Protocol):
    vocab_size: int

    def attention_shape(self, kv_dtype: torch.dtype) -> AttentionShape: ...

    def forward(self, batch: Batch, attention: AttentionBackend) -> Tensor: ...

    def own_logits(self, tokens: Tensor) -> Tensor: ...


def check(model: Checked, folder: Path, dtype: torch.dtype) -> None:
    """Raises ModelError where the model on pages does not give what it gives by itself."""
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, _COUNT).astype(np.int32)
    attention = ReferenceAttention(model.attention_shape(dtype), 1, _COUNT)
    steps = [model.forward(_stretch(tokens, *cut), attention) for cut in pairwise(_CUTS)]
    own = model.own_logits(torch.from_numpy(tokens).long())
    difference = float((torch.cat(steps) - own).abs().mean() / own.std().clamp_min(1e-12))
    if not difference <= _TOLERANCE[dtype]:
        raise ModelError(
            f"{folder} computes something else on paged keys and values than by itself: its "
            "logits differ by "
            f"{difference:.2g} standard deviations. It probably keeps a state that is not "
            "keys and values"
        )


def _stretch(tokens: np.ndarray[tuple[int], np.dtype[np.int32]], start: int, end: int) -> Batch:
    """Positions `start .. end` of the only sequence, which lives in page 0; all logits are
    wanted.
    """
    positions = np.arange(start, end, dtype=np.int32)
    each = np.arange(end - start, dtype=np.int32)
    return Batch(
        tokens=tokens[start:end].copy(),
        positions=positions,
        row_starts=np.array([0, end - start], np.int32),
        kv_lens=np.array([end], np.int32),
        page_starts=np.array([0, 1], np.int32),
        pages=np.zeros(1, np.int32),
        write_tokens=each,
        write_slots=positions.copy(),
        copies=np.zeros((0, 2), np.int32),
        logit_tokens=each.copy(),
        page_size=_COUNT,
    )
