"""LoRA adapters as the native engine reads them: every low-rank part in float32, in panels of 32
outputs (`lmprog_engine.h`), in one block of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.engine.adapters.adapter_folder import PRODUCTS, Adapter, LowRank
from lmprog.runtime.engine.machine.region import Region, aligned
from lmprog.runtime.engine.model.weight_table import up32
from lmprog.runtime.engine.native import interface
from lmprog.runtime.engine.native.engine import PackedAdapters

_PANEL = 32
Floats = NDArray[np.float32]


def packed_adapters(adapters: Sequence[Adapter], inner: int) -> PackedAdapters:
    """`inner` is the size of the feed-forward's gates, which are filled up to whole panels."""
    parts = [
        layer.get(product)
        for adapter in adapters
        for layer in adapter.layers
        for product in PRODUCTS
    ]
    sizes = [aligned(_bytes(matrix)) for part in parts if part for matrix in _matrices(part)]
    region = Region(sum(sizes))
    low_ranks = (interface.CLowRank * len(parts))()
    held: list[object] = [region]
    shift = up32(inner) - inner
    for place, part in enumerate(parts):
        if part is None:
            continue
        is_gated = PRODUCTS[place % len(PRODUCTS)] == "gate_up"
        raised = (interface.CRaised * len(part.raised))(
            *(
                interface.CRaised(
                    up=_packed(one.up, region),
                    outputs=one.up.shape[0],
                    rank=one.up.shape[1],
                    first=one.first + (shift if is_gated and one.first >= inner else 0),
                    rank_first=one.rank_first,
                )
                for one in part.raised
            )
        )
        held.append(raised)
        ranks, inputs = part.down.shape
        low_ranks[place] = interface.CLowRank(
            _packed(part.down, region), ranks, inputs, len(raised), raised
        )
    digests = {one.name: one.digest for one in adapters}
    return PackedAdapters(low_ranks, digests, tuple(held))


def _matrices(part: LowRank) -> Iterator[Floats]:
    yield part.down
    yield from (one.up for one in part.raised)


def _bytes(matrix: Floats) -> int:
    outputs, inputs = matrix.shape
    return int(up32(outputs) * inputs * 4)


def _packed(matrix: Floats, region: Region) -> int:
    """The address of [outputs / 32][inputs][32]."""
    outputs, inputs = matrix.shape
    panels = up32(outputs) // _PANEL
    place = region.take(_bytes(matrix)).view(np.float32).reshape(panels, inputs, _PANEL)
    whole = np.zeros((panels * _PANEL, inputs), np.float32)
    whole[:outputs] = matrix
    place[:] = whole.reshape(panels, _PANEL, inputs).transpose(0, 2, 1)
    address: int = place.ctypes.data
    return address
