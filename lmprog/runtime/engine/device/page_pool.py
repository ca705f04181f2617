"""Where the pages of all layers lie: in one allocation, or at reserved addresses that get memory
when a page is first written and lose it when nobody has used it for a while; and attention that
reads them by other means than our kernels.

Layers lie one after the other, pages in a layer likewise, at addresses that never change: so
graphs that were captured before stay valid. Knows bytes of pages and the layout of a layer's;
knows neither weights, nor how pages are written, nor who has them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from lmprog.runtime.engine.attention import AttentionShape
from lmprog.runtime.engine.attention.reference import attend
from lmprog.runtime.engine.device.device_memory import DeviceMemory, VirtualMemory
from lmprog.runtime.scheduling.batch import Batch, Ints


class PagePool(Protocol):
    """Pages of all layers. # [layers][pages_per_layer][page bytes of a layer]"""

    @property
    def memory(self) -> torch.Tensor:
        """All addresses, with memory or without. uint8"""
        ...

    @property
    def pages_per_layer(self) -> int:
        """From a layer's page to the same of the next; at least the number of pages."""
        ...

    @property
    def mapped_bytes(self) -> int:
        """Of the device's memory."""
        ...

    def back(self, pages: NDArray[np.int32]) -> None:
        """These pages have memory from now on. Raises DeviceMemoryFull; then those that had it
        still do.
        """
        ...

    def give_back(self, free: Sequence[int]) -> None:
        """Nobody uses the pages `free`, nor has the device work with them: their memory may go."""
        ...


class FixedPages:
    """See `PagePool`. All memory is taken at once and kept."""

    def __init__(self, driver: DeviceMemory, layers: int, num_pages: int, page_bytes: int) -> None:
        self.memory = driver.memory(layers * num_pages * page_bytes)
        self.pages_per_layer = num_pages
        self.mapped_bytes = len(self.memory)

    def back(self, pages: NDArray[np.int32]) -> None:
        """They have it."""

    def give_back(self, free: Sequence[int]) -> None:
        """It is kept."""


@dataclass(slots=True)
class MappedRows:
    """What is mapped in a reserved range. A row: one stretch of `granularity` bytes at the same
    place in every layer, because a page is written in all of them.
    """

    verbs: VirtualMemory
    base: int
    num_bytes: int
    layer_bytes: int
    handles: dict[int, list[int]] = field(default_factory=dict)
    """Of each row that is mapped, one a layer."""

    def map(self, row: int) -> None:
        """All of it or, where the device is full, nothing."""
        size, made = self.verbs.granularity, self.handles.setdefault(row, [])
        try:
            for address in self._addresses(row):
                handle = self.verbs.create(size)
                self.verbs.map(address, size, handle)
                made.append(handle)
                self.verbs.set_access(address, size)
        except BaseException:
            self.unmap(row)
            raise

    def unmap(self, row: int) -> None:
        for address, handle in zip(self._addresses(row), self.handles.pop(row), strict=False):
            self.verbs.unmap(address, self.verbs.granularity)
            self.verbs.release(handle)

    def close(self) -> None:
        for row in list(self.handles):
            self.unmap(row)
        self.verbs.free(self.base, self.num_bytes)

    def _addresses(self, row: int) -> range:
        first = self.base + row * self.verbs.granularity
        return range(first, self.base + self.num_bytes, self.layer_bytes)


class VirtualPages:
    """See `PagePool`. Addresses for all pages; memory for those that were written since they were
    last given back, in whole rows.
    """

    def __init__(self, verbs: VirtualMemory, layers: int, num_pages: int, page_bytes: int) -> None:
        size = verbs.granularity
        whole = math.lcm(page_bytes, size) // page_bytes  # a layer begins with a row
        self.pages_per_layer = -(-num_pages // whole) * whole
        layer_bytes = self.pages_per_layer * page_bytes
        self.memory = verbs.reserve(layers * layer_bytes)
        base, num_bytes = self.memory.data_ptr(), len(self.memory)
        self._rows = MappedRows(verbs, base, num_bytes, layer_bytes)
        self._row_bytes = layers * size
        starts = np.arange(num_pages, dtype=np.int64) * page_bytes
        self._first, self._last = starts // size, (starts + page_bytes - 1) // size
        self._has_memory = np.zeros(num_pages, np.bool_)
        self._is_mapped = np.zeros(layer_bytes // size, np.bool_)
        self._close = weakref.finalize(self, self._rows.close)
        self._close.atexit = False  # the device goes with the process

    @property
    def mapped_bytes(self) -> int:
        return int(self._is_mapped.sum()) * self._row_bytes

    def back(self, pages: NDArray[np.int32]) -> None:
        if self._has_memory[pages].all():
            return
        wanted = self._rows_of(pages)
        try:
            for row in np.flatnonzero(wanted & ~self._is_mapped).tolist():
                self._rows.map(row)
                self._is_mapped[row] = True
        finally:
            self._note()

    def give_back(self, free: Sequence[int]) -> None:
        """A row goes when all of its pages are free."""
        is_used = np.ones(len(self._has_memory), np.bool_)
        is_used[np.asarray(free, np.int64)] = False
        kept = self._rows_of(np.flatnonzero(is_used))
        for row in np.flatnonzero(self._is_mapped & ~kept).tolist():
            self._rows.unmap(row)
            self._is_mapped[row] = False
        self._note()

    def close(self) -> None:
        """All memory and addresses are given up. Nobody may use `memory` any more."""
        self._close()

    def _rows_of(self, pages: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which rows have a part of these pages."""
        changes = np.zeros(len(self._is_mapped) + 1, np.int64)
        np.add.at(changes, self._first[pages], 1)
        np.add.at(changes, self._last[pages] + 1, -1)
        found: NDArray[np.bool_] = np.cumsum(changes)[:-1] > 0
        return found

    def _note(self) -> None:
        """Which pages have memory."""
        before = np.concatenate(([0], np.cumsum(self._is_mapped)))
        mapped = before[self._last + 1] - before[self._first]
        self._has_memory = mapped == self._last + 1 - self._first


@dataclass(frozen=True, slots=True)
class Parts:
    """Room for partial results of a layer, which `tree_merge` joins."""

    values: torch.Tensor  # [parts, heads, dim] float32, each divided by its sum of weights
    sums: torch.Tensor  # [parts, heads] float32: base-2 logarithm of the sum of weights


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What a reader does in a step."""

    batch: Batch
    part_starts: Ints | None = None
    """The partial results of token t are part_starts[t] .. part_starts[t + 1]; one alone is written
    to `out` directly. None: no token has more.
    """


PlanT = TypeVar("PlanT", bound=ReadPlan)


class PageReader(Protocol[PlanT]):
    """One step: `plan` on the host, then `begin` once, then `read` for every layer in order, these
    two within `Driver.compute`, which may be later.

    The reference reads pages with torch; FlashInfer has a file of its own. Both exist so that a
    device on which our kernels are wrong, or slower, need not use them.
    """

    def plan(self, batch: Batch, most_parts: int) -> PlanT:
        """Of the rows of the step and their pages, with at most so many partial results."""
        ...

    def begin(self, plan: PlanT) -> None:
        """Takes the plan."""
        ...

    def has_parts(self, layer: int) -> bool:
        """Whether this layer's results are in parts where those of the plan are."""
        ...

    def read(
        self, layer: int, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor, parts: Parts
    ) -> None:
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

    def plan(self, batch: Batch, most_parts: int) -> ReadPlan:
        return ReadPlan(batch)

    def begin(self, plan: ReadPlan) -> None:
        self._batch = plan.batch

    def has_parts(self, layer: int) -> bool:
        return False

    def read(
        self, layer: int, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor, parts: Parts
    ) -> None:
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
