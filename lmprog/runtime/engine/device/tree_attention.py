"""Attention of a step on the device: pages, what is written to them, and the kernels that read
them.

Knows layers, heads and addresses of arrays; knows neither weights nor requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from lmprog.errors import NotSupported
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.engine.device.driver import (
    HEAD_DIMS,
    TYPE_NAMES,
    DeviceMark,
    Driver,
    ModuleKey,
)
from lmprog.runtime.engine.device.items import Tiling
from lmprog.runtime.engine.device.kernels import (
    NUM_COUNTS,
    CopyArgs,
    Count,
    Kernels,
    MergeArgs,
    RopeArgs,
    TreeArgs,
    address,
)
from lmprog.runtime.engine.device.page_pool import (
    FixedPages,
    PagePool,
    PageReader,
    Parts,
    VirtualPages,
)
from lmprog.runtime.engine.device.staging import Staging
from lmprog.runtime.engine.device.step_arrays import StepRules
from lmprog.runtime.scheduling.batch import Batch

_PARTIAL_BYTES = {"cpu": 8 << 20, "cuda": 128 << 20}
_FLOAT_BYTES = 4


def module_key(shape: AttentionShape) -> ModuleKey:
    """The kernels that a model of this shape needs. Raises NotSupported where there are none."""
    name = TYPE_NAMES.get(shape.dtype)
    dims = HEAD_DIMS.get(name or "", ())
    group = shape.num_heads // shape.num_kv_heads
    if name is None or shape.head_dim not in dims or shape.v_head_dim != shape.head_dim:
        raise NotSupported(
            f"no kernels for heads of {shape.head_dim} (values {shape.v_head_dim}) in {shape.dtype}"
        )
    most = 16 if name == "float" else 64
    if group > most:
        raise NotSupported(f"{group} query heads a key/value head are more than a tile of {most}")
    return ModuleKey(name, shape.head_dim, _kept_name(shape))


def _kept_name(shape: AttentionShape) -> str:
    return "" if shape.float8 is None else "e4m3"


@dataclass(frozen=True, slots=True)
class RopeGiven:
    """What a layer's heads are normalized and turned with. `norm` None: they are not normalized."""

    rotations: torch.Tensor  # [positions, dim / 2, 2] float32: cosine and sine
    norm: torch.Tensor | None  # [heads + kv_heads, dim]
    eps: float


@dataclass(frozen=True, slots=True)
class CopiedSlots:
    """What `kv_copy` copies; addresses of arrays."""

    staging: torch.Tensor
    slots: int
    counts: int
    rows: int = 0
    """Rows of staging, one a slot; 0: one after the other."""


def placed(driver: Driver, tensor: torch.Tensor) -> torch.Tensor:
    """A copy that kernels may read."""
    memory = driver.memory(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
    return memory.copy_(tensor)


def _sinks(driver: Driver, layer: LayerAttention) -> torch.Tensor | None:
    """In base 2, as sums of partials are."""
    if layer.sinks is None:
        return None
    return placed(driver, torch.tensor(layer.sinks, dtype=torch.float32) * math.log2(math.e))


class TreeAttention:
    """The pages of all layers and their kernels. # [layers][pages][2][kv_heads][page_size][dim]"""

    def __init__(
        self,
        kernels: Kernels,
        shape: AttentionShape,
        num_pages: int,
        page_size: int,
        budget: int,
        reader: PageReader[Any] | None = None,
        is_virtual: bool = False,
    ) -> None:
        """`budget`: the most tokens of a step. `reader` reads the pages in place of our kernels,
        which write them in any case. `is_virtual`: pages get memory when they are written.
        """
        if page_size & (page_size - 1):
            raise NotSupported(f"pages of {page_size} slots: on a device it is a power of two")
        assert kernels.key.kept_name == _kept_name(shape), "kernels of another kind of pages"
        self.shape = shape
        self._reader = reader
        self._kernels = kernels
        self.driver = kernels.driver
        self._page_shift = page_size.bit_length() - 1
        self._num_pages = num_pages
        self.bytes_per_page = self.page_bytes(shape, page_size)
        page_of_layer = self.bytes_per_page // len(shape.layers)
        sizes = (len(shape.layers), num_pages, page_of_layer)
        self.pages: PagePool = (
            VirtualPages(self.driver.virtual_memory(), *sizes)
            if is_virtual
            else FixedPages(self.driver, *sizes)
        )
        self.is_virtual = is_virtual
        self._pool = self.pages.memory
        self._layer_bytes = page_of_layer * self.pages.pages_per_layer
        wanted = _PARTIAL_BYTES[self.driver.device.type]
        per_part = shape.num_heads * (shape.head_dim + 1) * _FLOAT_BYTES
        self._sinks = [_sinks(self.driver, layer) for layer in shape.layers]
        has_sinks = any(layer.sinks is not None for layer in shape.layers)
        most_parts = max((3 if has_sinks else 2) * budget, wanted // per_part)
        self._partials = self.driver.memory(most_parts * shape.num_heads * shape.head_dim * 4)
        self._sums = self.driver.memory(most_parts * shape.num_heads * 4)
        is_exact = kernels.key.is_exact
        group = shape.num_heads // shape.num_kv_heads
        tiling = Tiling(group, large_rows=None, fold=None) if is_exact else Tiling(group)
        windows = () if reader else tuple(dict.fromkeys(layer.window for layer in shape.layers))
        of_items = most_parts - budget if has_sinks else most_parts
        self.rules = StepRules(tiling, windows, of_items, has_sinks)
        self._copying = Staging(self.driver, 1 << 12)
        self._joining = Staging(self.driver, 1 << 12)
        self._joined: Mapping[str, int] = {}
        """Arrays of the merge of what the reader leaves in parts."""
        self._copied = torch.empty(0)
        self._coming: dict[int, DeviceMark] = {}
        """By layer: the end of what brings pages to it, not waited for yet."""
        self._slots: torch.Tensor | None = None
        """All slots, page by page, where pages are copied as a whole."""
        self._page_count = torch.empty(0)

    @staticmethod
    def page_bytes(shape: AttentionShape, page_size: int) -> int:
        """Memory of one page over all layers."""
        numbers = 2 * shape.num_kv_heads * page_size * shape.head_dim
        return len(shape.layers) * numbers * shape.kept.itemsize

    def fill(self, value: float) -> None:
        """Every key and value: a pool whose content does not matter, for measuring."""
        self.pages.back(np.arange(self._num_pages, dtype=np.int32))
        filling = torch.tensor([value]).to(self.shape.kept).view(torch.uint8)
        self._pool.view(-1, len(filling)).copy_(filling)

    def copy(self, copies: torch.Tensor) -> None:
        """Slots to slots in all layers, all sources before any target. # [copies, 2]"""
        self.join_pages()
        count, shape = len(copies), self.shape
        run = shape.head_dim * shape.kept.itemsize
        size = count * len(shape.layers) * 2 * shape.num_kv_heads * run
        if self._copied.numel() < size:
            self.driver.event().wait()  # the old one may be in use
            self._copied = self.driver.memory(2 * size)
        counts = torch.zeros(NUM_COUNTS, dtype=torch.int32)
        counts[Count.COPIES] = count
        at = self._copying.send(
            {
                "counts": counts.numpy(),
                "sources": copies[:, 0].contiguous().numpy(),
                "targets": copies[:, 1].contiguous().numpy(),
            }
        )
        for is_gather, slots in ((True, "sources"), (False, "targets")):
            self._copy_slots(CopiedSlots(self._copied, at[slots], at["counts"]), is_gather)

    def send_page(self, page: int, to: torch.Tensor) -> None:
        """All of a page to `to`, which may be pinned memory. # [bytes_per_page] uint8"""
        self.join_pages()
        self.pages.back(np.array([page], np.int32))
        size = 1 << self._page_shift
        if self._slots is None:
            slots = torch.arange(self._num_pages * size, dtype=torch.int32)
            self._slots = placed(self.driver, slots)
            counts = torch.zeros(NUM_COUNTS, dtype=torch.int32)
            counts[Count.COPIES] = size
            self._page_count = placed(self.driver, counts)
        slots_at = address(self._slots) + page * size * self._slots.itemsize
        self._copy_slots(CopiedSlots(to, slots_at, address(self._page_count)), is_gather=True)

    def bring_pages(
        self, pages: Sequence[int], contents: torch.Tensor, rows: Sequence[int]
    ) -> None:
        """Rows of `contents` become pages, layer by layer beside what follows: a layer of the next
        step waits for its own part. # contents [rows, bytes_per_page] uint8, what `send_page` gave
        """
        self.join_pages()
        targets = np.array(pages, np.int32)
        self.pages.back(targets)
        within = np.arange(1 << self._page_shift, dtype=np.int32)
        slots, places = (
            ((np.array(own, np.int32) << self._page_shift)[:, None] + within).reshape(-1)
            for own in (targets, rows)
        )
        counts = np.zeros(NUM_COUNTS, np.int32)
        counts[Count.COPIES] = len(slots)
        at = self._copying.send({"counts": counts, "slots": slots, "rows": places})
        copied = CopiedSlots(contents, at["slots"], at["counts"], at["rows"])
        for layer in range(len(self.shape.layers)):
            work = partial(self._copy_slots, copied, is_gather=False, layer=layer)
            self._coming[layer] = self.driver.aside(work)

    def join_pages(self) -> None:
        """What follows comes after all that was brought."""
        for layer in list(self._coming):
            self._join_layer(layer)

    def _join_layer(self, layer: int) -> None:
        mark = self._coming.pop(layer, None)
        if mark is not None:
            self.driver.join(mark)

    def _copy_slots(self, copied: CopiedSlots, is_gather: bool, layer: int | None = None) -> None:
        """Of one layer; None: of all."""
        shape = self.shape
        args = CopyArgs(
            pool=address(self._pool),
            staging=address(copied.staging),
            slots=copied.slots,
            rows=copied.rows,
            counts=copied.counts,
            layers=len(shape.layers) if layer is None else 1,
            first_layer=layer or 0,
            all_layers=len(shape.layers),
            pages=self.pages.pages_per_layer,
            kv_heads=shape.num_kv_heads,
            page_shift=self._page_shift,
            bytes=shape.head_dim * shape.kept.itemsize,
            is_gather=is_gather,
        )
        self._kernels.launch("kv_copy", args)

    def append(
        self,
        layer: int,
        at: Mapping[str, int],
        qkv: torch.Tensor,
        q: torch.Tensor,
        given: RopeGiven,
    ) -> None:
        """Queries to `q`, keys and values to their slots, turned by their positions. What follows
        in this layer finds the pages that were brought.
        """
        self._join_layer(layer)
        shape = self.shape
        key_scale, value_scale = self._scales(layer)
        args = RopeArgs(
            qkv=address(qkv),
            q=address(q),
            kv=self._layer(layer),
            norm=address(given.norm),
            rotations=address(given.rotations),
            positions=at["positions"],
            write_tokens=at["write_tokens"],
            write_slots=at["write_slots"],
            counts=at["counts0"],
            heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            page_shift=self._page_shift,
            eps=given.eps,
            key_factor=1.0 / key_scale,
            value_factor=1.0 / value_scale,
        )
        self._kernels.launch("rope_append", args)

    @property
    def can_be_captured(self) -> bool:
        """Whether all of a step's work is in launches that read their arrays from the device."""
        return self._reader is None

    def back(self, batch: Batch) -> None:
        """Memory for all pages that the step writes. Raises DeviceMemoryFull."""
        self.pages.back(batch.write_slots >> self._page_shift)
        if len(batch.copies):
            self.pages.back(batch.copies[:, 1] >> self._page_shift)

    def begin(self, batch: Batch) -> None:
        """Before the first layer of a step."""
        reader = self._reader
        if reader is None:
            return
        plan = reader.plan(batch, self.rules.most_parts)
        self.driver.compute(lambda: reader.begin(plan))
        self._joined = {}
        if plan.part_starts is not None:
            counts = np.zeros(NUM_COUNTS, np.int32)
            counts[Count.TOKENS] = batch.num_tokens
            arrays = {"counts": counts, "part_starts": plan.part_starts}
            self._joined = self._joining.send(arrays)

    def attend(self, layer: int, at: Mapping[str, int], q: torch.Tensor, out: torch.Tensor) -> None:
        """q and out hold at least the step's tokens. # [tokens, heads, dim]"""
        reader = self._reader
        if reader is None:
            self._attend_by_tree(layer, at, q, out)
            return
        dim = self.shape.head_dim
        pages, queries, attended = (
            self._pages_of(layer),
            q.view(-1, self.shape.num_heads, dim),
            out.view(-1, self.shape.num_heads, dim),
        )
        parts = Parts(
            self._partials.view(torch.float32).view(-1, self.shape.num_heads, dim),
            self._sums.view(torch.float32).view(-1, self.shape.num_heads),
        )
        self.driver.compute(lambda: reader.read(layer, pages, queries, attended, parts))
        if self._joined and reader.has_parts(layer):
            self._merge(layer, self._joined["counts"], self._joined["part_starts"], out)

    def _pages_of(self, layer: int) -> torch.Tensor:
        """# [pages, 2, kv_heads, page_size, dim]"""
        own = self._pool[layer * self._layer_bytes : (layer + 1) * self._layer_bytes]
        sizes = (self.pages.pages_per_layer, 2, self.shape.num_kv_heads, 1 << self._page_shift)
        return own.view(self.shape.kept).view(*sizes, self.shape.head_dim)

    def _scales(self, layer: int) -> tuple[float, float]:
        """Of keys and of values."""
        scales = self.shape.float8
        return (1.0, 1.0) if scales is None else (scales.keys[layer], scales.values[layer])

    def _attend_by_tree(
        self, layer: int, at: Mapping[str, int], q: torch.Tensor, out: torch.Tensor
    ) -> None:
        shape, own = self.shape, self.shape.layers[layer]
        key_scale, value_scale = self._scales(layer)
        plan = self.rules.windows.index(own.window)
        kinds = {"small": Count.SMALL_ITEMS, "large": Count.LARGE_ITEMS}
        for kind, count in kinds.items():
            if f"tree_attention_{kind}" not in self._kernels.shapes:
                continue
            args = TreeArgs(
                q=address(q),
                kv=self._layer(layer),
                out=address(out),
                partials=address(self._partials),
                sums=address(self._sums),
                items=at[f"{kind}{plan}"],
                counts=at[f"counts{plan}"],
                pages=at["pages"],
                queries=at[f"queries{plan}"],
                positions=at["positions"],
                part_starts=at[f"part_starts{plan}"],
                first_parts=at[f"first_parts{plan}"],
                count_at=count,
                page_shift=self._page_shift,
                heads=shape.num_heads,
                kv_heads=shape.num_kv_heads,
                window=own.window or 0,
                scale=own.scale * key_scale,
                softcap=own.softcap or 0.0,
                value_scale=value_scale,
            )
            self._kernels.launch(f"tree_attention_{kind}", args)
        self._merge(layer, at[f"counts{plan}"], at[f"part_starts{plan}"], out)

    def _merge(self, layer: int, counts: int, part_starts: int, out: torch.Tensor) -> None:
        """Of what is in parts; the arrays by their addresses."""
        args = MergeArgs(
            partials=address(self._partials),
            sums=address(self._sums),
            out=address(out),
            counts=counts,
            part_starts=part_starts,
            sinks=address(self._sinks[layer]),
            heads=self.shape.num_heads,
        )
        self._kernels.launch("tree_merge", args)

    def _layer(self, layer: int) -> int:
        return address(self._pool) + layer * self._layer_bytes
