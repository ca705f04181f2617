"""Tree attention on random keys and values, by the kernels and by plain arithmetic in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from lmprog.runtime.engine.attention import LayerAttention
from lmprog.runtime.engine.attention.backend import e4m3
from lmprog.runtime.engine.attention.reference import attend
from lmprog.runtime.engine.device.driver import Driver
from lmprog.runtime.engine.device.items import AttentionItems, Tiling, plan_items
from lmprog.runtime.engine.device.kernels import Count, Kernels, MergeArgs, TreeArgs, address
from lmprog.runtime.scheduling.batch import Batch

TYPES = {"float": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
KEY_SCALE, VALUE_SCALE = 1 / 128, 0.3
"""Of e4m3 floats; with the first some keys are beyond the largest of them."""
TOLERANCE = {"float": 4e-6, "bf16": 1e-2, "f16": 1.5e-3}


@dataclass(frozen=True)
class Heads:
    """`heads` of queries on `kv_heads`."""

    heads: int = 4
    kv_heads: int = 2


def placed(driver: Driver, values: torch.Tensor) -> torch.Tensor:
    """A copy in memory that kernels may touch."""
    memory = (
        driver.memory(max(values.nbytes, 4)).view(values.dtype)[: values.numel()].view(values.shape)
    )
    return memory.copy_(values)


def ints(driver: Driver, values: object) -> torch.Tensor:
    return placed(driver, torch.as_tensor(values, dtype=torch.int32))


def _sinks(driver: Driver, layer: LayerAttention) -> torch.Tensor | None:
    return None if layer.sinks is None else placed(driver, torch.tensor(layer.sinks) / math.log(2))


class TreeStep:
    """One layer's attention of one batch: random queries, keys and values in the memory of a
    driver.
    """

    def __init__(
        self,
        kernels: Kernels,
        batch: Batch,
        heads: Heads,
        *,
        seed: int = 0,
        window: int | None = None,
    ) -> None:
        self.kernels, self.batch, self.heads, self.window = kernels, batch, heads, window
        self.dim = kernels.key.head_dim
        self.dtype = TYPES[kernels.key.type_name]
        rng = torch.Generator().manual_seed(seed)
        num_pages = int(batch.pages.max()) + 1
        size = (num_pages, 2, heads.kv_heads, batch.page_size, self.dim)
        kv = torch.randn(size, generator=rng).to(self.dtype)
        if kernels.key.kept_name:
            kv = torch.stack((e4m3(kv[:, 0], KEY_SCALE), e4m3(kv[:, 1], VALUE_SCALE)), 1)
        self.kv = placed(kernels.driver, kv)
        self.first_page = 0
        """The number of the first page that has memory: those before it are addresses alone."""
        queries = torch.randn(len(batch.positions), heads.heads, self.dim, generator=rng) * 2
        self.q = placed(kernels.driver, queries.to(self.dtype))

    @property
    def scales(self) -> tuple[float, float]:
        """Of keys and of values."""
        return (KEY_SCALE, VALUE_SCALE) if self.kernels.key.kept_name else (1.0, 1.0)

    def tiling(self, fold: int | None = 1) -> Tiling:
        exact = self.kernels.key.is_exact
        return Tiling(
            self.heads.heads // self.heads.kv_heads, large_rows=None if exact else 64, fold=fold
        )

    def run(self, layer: LayerAttention, items: AttentionItems | None = None) -> torch.Tensor:
        """# [tokens, heads, dim]"""
        driver, heads, batch = self.kernels.driver, self.heads, self.batch
        sinks = _sinks(driver, layer)
        if items is None:
            items = plan_items(batch, self.tiling(), layer.window, None, sinks is not None)
        counts = [
            len(batch.positions),
            len(batch.write_tokens),
            len(items.small),
            len(items.large),
            0,
            0,
            0,
            0,
        ]
        held = {
            "counts": ints(driver, counts),
            "pages": ints(driver, batch.pages + np.int32(self.first_page)),
            "positions": ints(driver, batch.positions),
            "queries": ints(driver, items.queries),
            "part_starts": ints(driver, items.part_starts),
            "first_parts": ints(driver, items.first_parts),
        }
        parts = items.num_parts * heads.heads * 4
        out = driver.memory(self.q.nbytes).view(self.dtype).view(self.q.shape)
        partials, sums = driver.memory(parts * self.dim), driver.memory(parts)
        for name, own, count in (
            ("small", items.small, Count.SMALL_ITEMS),
            ("large", items.large, Count.LARGE_ITEMS),
        ):
            if len(own) == 0:
                continue
            held[name] = ints(driver, own)
            args = TreeArgs(
                q=address(self.q),
                kv=address(self.kv) - self.first_page * self.kv[0].nbytes,
                out=address(out),
                partials=address(partials),
                sums=address(sums),
                items=address(held[name]),
                **{key: address(held[key]) for key in ("counts", "pages", "queries", "positions")},
                **{key: address(held[key]) for key in ("part_starts", "first_parts")},
                count_at=count,
                page_shift=batch.page_size.bit_length() - 1,
                heads=heads.heads,
                kv_heads=heads.kv_heads,
                window=layer.window or 0,
                scale=layer.scale * self.scales[0],
                softcap=layer.softcap or 0.0,
                value_scale=self.scales[1],
            )
            self.kernels.launch(f"tree_attention_{name}", args)
        merging = MergeArgs(
            partials=address(partials),
            sums=address(sums),
            out=address(out),
            counts=address(held["counts"]),
            part_starts=address(held["part_starts"]),
            sinks=address(sinks),
            heads=heads.heads,
        )
        self.kernels.launch("tree_merge", merging)
        driver.event().wait()
        return out.cpu()

    def expected(self, layer: LayerAttention) -> torch.Tensor:
        """In float64. # [tokens, heads, dim]"""
        batch, kv, q = self.batch, self.kv.cpu().double(), self.q.cpu().double()
        out = torch.empty(self.q.shape, dtype=torch.float64)
        for row in range(batch.num_rows):
            first, last = int(batch.row_starts[row]), int(batch.row_starts[row + 1])
            pages = torch.tensor(
                batch.pages[batch.page_starts[row] : batch.page_starts[row + 1]]
            ).long()
            length = int(batch.kv_lens[row])
            keys, values = (  # [kv_len, kv_heads, dim]
                kv[pages, side].transpose(1, 2).reshape(-1, self.heads.kv_heads, self.dim)[:length]
                * self.scales[side]
                for side in (0, 1)
            )
            positions = torch.tensor(batch.positions[first:last]).long()
            out[first:last] = attend(q[first:last], keys, values, positions, layer)
        return out


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The worst relative error of a token, nan where anything is."""
    wrong = (got.double() - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
    return float(wrong.max()) if bool(wrong.isfinite().all()) else float("nan")
