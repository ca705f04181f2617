"""What LoRA adapters cost: processor time of a step with 0, 1, 4 and 16 of them among its rows,
beside the base alone.

    python -m benchmarks.adapters [--model dummy:832x12] [--rank 16] [--rounds 9]

The model is random, and so are the adapters, which change all seven products of each layer. A
decode has 16 rows, dealt to the base and the adapters in turn; a prefill has one row of an
adapter. All are measured in turn, in one process; medians of processor milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from array import array
from dataclasses import replace
from typing import Any, cast

import numpy as np

from lmprog.config import RuntimeConfig
from lmprog.runtime.engine.adapters.adapter_folder import PRODUCTS, Adapter, LowRank, Raised
from lmprog.runtime.engine.adapters.packed_adapters import packed_adapters
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.model import weight_table
from lmprog.runtime.engine.model.locate import dummy_shape
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.scheduling.batch import Batch, build_batch
from lmprog.runtime.scheduling.plan import Plan, Row

PAGE = 16
CONTEXT = 256
ROWS = 16


def random_adapter(name: str, shape: ModelShape, rank: int) -> Adapter:
    """Of all products of all layers."""
    draw = np.random.default_rng(len(name))

    def matrix(rows: int, columns: int) -> Any:
        return draw.standard_normal((rows, columns), np.float32) * np.float32(0.01)

    layers = []
    for index in range(shape.num_layers):
        products = weight_table.products(shape, index)
        layer: dict[str, LowRank] = {}
        for product in PRODUCTS:
            found = products[product]
            raised = [
                Raised(
                    part.offset * shape.inner if product == "gate_up" else part.first,
                    place * rank,
                    matrix(part.rows, rank),
                )
                for place, part in enumerate(found.parts)
            ]
            layer[product] = LowRank(matrix(rank * len(raised), found.inputs), tuple(raised))
        layers.append(layer)
    return Adapter(name, name, tuple(layers))


def batch(rows: int, tokens: int, start: int) -> Batch:
    """`rows` sequences of `tokens` tokens from position `start`; the last ones' logits are
    wanted.
    """
    each = -(-(start + tokens) // PAGE)
    made = [
        Row(
            cast(Any, None),
            array("i", [7] * tokens),
            start,
            start + tokens,
            array("i", range(row * each, (row + 1) * each)),
            start + tokens - 1,
        )
        for row in range(rows)
    ]
    return build_batch(Plan(tuple(made)), PAGE)


def dealt(step: Batch, adapters: int) -> Batch:
    """The rows' adapters in turn, all of them where there is one a row; 0: without any."""
    if not adapters:
        return step
    numbers = np.arange(step.num_rows, dtype=np.int32) % adapters + 1
    return replace(step, adapters=numbers)


def steps() -> dict[str, Batch]:
    decode, prefill = batch(ROWS, 1, CONTEXT), batch(1, CONTEXT, 0)
    named = {f"decode, {count} adapters": dealt(decode, count) for count in (0, 1, 4, 16)}
    half = np.array([0, 1] * (ROWS // 2), np.int32)
    named["decode, 8 of 16 rows on 1 adapter"] = replace(decode, adapters=half)
    return {**named, "prefill": prefill, "prefill, 1 adapter": dealt(prefill, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="dummy:832x12")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    config = RuntimeConfig(model=asked.model, threads=1, kv_memory_mb=600, dtype=asked.dtype)
    engine = load_engine(config)
    assert isinstance(engine, NativeEngine)
    shape = dummy_shape(asked.model)
    adapters = [random_adapter("x" * (n + 1), shape, asked.rank) for n in range(16)]
    engine.take_adapters(packed_adapters(adapters, shape.inner))
    megabytes = adapters[0].num_bytes / 1e6
    print(
        f"{asked.model}, {asked.dtype}: {engine.num_weights / 1e6:.0f} million weights; "
        f"rank {asked.rank}: {megabytes:.1f} MB an adapter"
    )
    asked_steps = steps()
    taken: dict[str, list[float]] = {name: [] for name in asked_steps}
    for _ in range(asked.rounds):
        for name, step in asked_steps.items():
            began = time.process_time()
            engine.forward(step)
            taken[name].append((time.process_time() - began) * 1e3)
    found = {name: statistics.median(times) for name, times in taken.items()}
    print("| step | ms | beside the base |\n|-|-:|-:|")
    for name, ms in found.items():
        alone = found["prefill" if name.startswith("prefill") else "decode, 0 adapters"]
        print(f"| {name} | {ms:.1f} | {ms / alone:.2f} |")


if __name__ == "__main__":
    main()
