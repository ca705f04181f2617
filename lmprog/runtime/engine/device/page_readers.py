"""Attention that reads our pages by other means than our kernels, and what it must promise.

The reference reads them with torch; FlashInfer has a file of its own. Both exist so that a device
on which our kernels are wrong, or slower, need not use them. Knows the layout of a layer's pages;
knows neither weights nor how pages are written.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from lmprog.runtime.engine.attention import AttentionShape
from lmprog.runtime.engine.attention.reference import attend
from lmprog.runtime.scheduling.batch import Batch


class PageReader(Protocol):
    """One step: `begin` once, then `read` for every layer in order, all within `Driver.compute`."""

    def begin(self, batch: Batch) -> None:
        """Takes the rows of the step and their pages."""
        ...

    def read(self, layer: int, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor) -> None:
        """Causal attention of every row over its own pages, the step's tokens included.

        pages [pages, 2, kv_heads, page_size, dim], keys before values, as they are kept; q and out
        [tokens, heads, dim], perhaps longer than the step.
        """
        ...


class ReferencePageReader:
    """Gathers the keys and values of one row after the other: slow, and right wherever torch is."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._batch: Batch | None = None

    def begin(self, batch: Batch) -> None:
        self._batch = batch

    def read(self, layer: int, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor) -> None:
        batch = self._batch
        assert batch is not None, "begin() comes before read()"
        for row in range(batch.num_rows):
            first, last = int(batch.row_starts[row]), int(batch.row_starts[row + 1])
            table = batch.pages[batch.page_starts[row] : batch.page_starts[row + 1]]
            used = -(-int(batch.kv_lens[row]) // batch.page_size)
            at = torch.from_numpy(table[:used].astype(np.int64)).to(pages.device)
            own = pages[at].permute(1, 0, 3, 2, 4).flatten(1, 2)  # [2, slots, kv_heads, dim]
            keys, values = own[:, : int(batch.kv_lens[row])]
            if (scales := self._shape.float8) is not None:
                keys = keys.float() * scales.keys[layer]
                values = values.float() * scales.values[layer]
            positions = torch.from_numpy(batch.positions[first:last].astype(np.int64))
            out[first:last] = attend(
                q[first:last], keys, values, positions.to(pages.device), self._shape.layers[layer]
            )
