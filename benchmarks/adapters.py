"""What LoRA adapters cost: processor time of a step with 0, 1, 4 and 16 of them among its rows,
beside the base alone.

    python -m benchmarks.adapters [--model dummy:832x12] [--rank 16] [--rounds 9]

The model is random, and so are the adapters, which change all seven products of each layer. A
decode has 16 rows, dealt to the base and the adapters in turn; a prefill has one row of an
adapter. All are measured in turn, in one process; medians of processor milliseconds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks import runner
from benchmarks.engine import CONTEXT, batch, milliseconds
from lmprog.config import RuntimeConfig
from lmprog.runtime.engine.adapters.adapter_folder import (
    PRODUCTS,
    Adapter,
    LowRank,
    Raised,
    packed_adapters,
)
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.model import weight_table
from lmprog.runtime.engine.model.locate import dummy_shape
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.scheduling.batch import Batch

ROWS = 16


def random_adapter(name: str, shape: ModelShape, rank: int) -> Adapter:
    """Of all products of all layers."""
    draw = np.random.default_rng(len(name))

    def matrix(rows: int, columns: int) -> Any:
        return draw.standard_normal((rows, columns), np.float32) * np.float32(0.01)

    def low_rank(layer: int, product: str) -> LowRank:
        found = weight_table.products(shape, layer)[product]
        raised = []
        for place, part in enumerate(found.parts):
            first = part.offset * shape.inner if product == "gate_up" else part.first
            raised.append(Raised(first, place * rank, matrix(part.rows, rank)))
        return LowRank(matrix(rank * len(raised), found.inputs), tuple(raised))

    layers = range(shape.num_layers)
    return Adapter(name, name, tuple({p: low_rank(at, p) for p in PRODUCTS} for at in layers))


def dealt(step: Batch, adapters: int) -> Batch:
    """The rows' adapters in turn, all of them where there is one a row; 0: without any."""
    if not adapters:
        return step
    return replace(step, adapters=np.arange(step.num_rows, dtype=np.int32) % adapters + 1)


def steps() -> dict[str, Batch]:
    decode, prefill = batch(ROWS, 1, CONTEXT, 256), batch(1, CONTEXT, 0, 256)
    named = {f"decode, {count} adapters": dealt(decode, count) for count in (0, 1, 4, 16)}
    half = np.array([0, 1] * (ROWS // 2), np.int32)
    named["decode, 8 of 16 rows on 1 adapter"] = replace(decode, adapters=half)
    return {**named, "prefill": prefill, "prefill, 1 adapter": dealt(prefill, 1)}


@runner.command
def main(
    *, model: str = "dummy:832x12", dtype: str = "float32", rank: int = 16, rounds: int = 9
) -> None:
    config: Any = {"model": model, "threads": 1, "kv_memory_mb": 600, "dtype": dtype}
    engine = load_engine(RuntimeConfig(**config))
    assert isinstance(engine, NativeEngine)
    shape = dummy_shape(model)
    adapters = [random_adapter("x" * (n + 1), shape, rank) for n in range(16)]
    engine.take_adapters(packed_adapters(adapters, shape.inner))
    print(
        f"{model}, {dtype}: {engine.num_weights / 1e6:.0f} million weights; "
        f"rank {rank}: {adapters[0].num_bytes / 1e6:.1f} MB an adapter"
    )
    sides = {name: partial(milliseconds, engine, step) for name, step in steps().items()}
    found = runner.medians(sides, rounds)
    runner.head("step", "ms", "beside the base")
    for name, ms in found.items():
        alone = found["prefill" if name.startswith("prefill") else "decode, 0 adapters"]
        runner.say(name, f"{ms:.1f}", f"{ms / alone:.2f}")
