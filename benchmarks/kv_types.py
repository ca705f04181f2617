"""Decode steps over long contexts with keys and values in each type.

    python -m benchmarks.kv_types --model random:S --context 4096

Each side computes the same steps, all in turn within a round; what is printed is the median of the
rounds in processor milliseconds, and the memory of keys and values for each token. Every row stands
on a context of its own. Weights are in bfloat16.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine import PAGE, batch, make, milliseconds
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.native.engine import NativeEngine, page_bytes

KINDS = ("float32", "bfloat16", "int8")
_CHUNK = 512


def filled(model: str, kind: str, rows: int, context: int) -> NativeEngine:
    """An engine whose `rows` contexts are the same, each in pages of its own."""
    each = -(-(context + 1) // PAGE)
    config = RuntimeConfig(
        model=model,
        engine="native",
        dtype="bfloat16",
        kv_dtype=kind,  # type: ignore[arg-type]
        threads=1,
        scheduler=SchedulerConfig(page_size=PAGE, num_pages=rows * each),
    )
    engine = load_engine(config)
    assert isinstance(engine, NativeEngine)
    for start in range(0, context, _CHUNK):
        engine.forward(batch(1, min(_CHUNK, context - start), start))
    slots = np.arange(context, dtype=np.int32)
    for row in range(1, rows):
        copies = np.stack([slots, slots + row * each * PAGE], 1)
        engine.forward(replace(batch(1, 1, context), copies=np.ascontiguousarray(copies)))
    return engine


def measured(
    model: str, rows: int, context: int, kinds: tuple[str, ...], rounds: int
) -> dict[str, tuple[float, float]]:
    """Milliseconds of a step, and bytes of a token's keys and values."""
    engines = {kind: filled(model, kind, rows, context) for kind in kinds}
    step = batch(rows, 1, context)
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, engine in engines.items():
            taken[kind].append(milliseconds(engine, step, 1))

    def token_bytes(engine: Any) -> float:
        return page_bytes(engine._shape, engine.kv_dtype, PAGE) / PAGE

    return {
        kind: (statistics.median(taken[kind]), token_bytes(engine))
        for kind, engine in engines.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="random:S")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--rows", default="1,16")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    kinds = tuple(asked.kinds.split(","))
    with tempfile.TemporaryDirectory() as scratch:
        model = asked.model
        if model.startswith("random:"):
            make(Path(scratch), model.removeprefix("random:"))
            model = scratch
        rows = [int(count) for count in asked.rows.split(",")]
        found = [measured(model, count, asked.context, kinds, asked.rounds) for count in rows]
    print(
        f"| {asked.model}, {asked.context:,} | bytes a token | "
        + " | ".join(f"B={n}" for n in rows)
    )
    print("|-|-:|" + "-:|" * len(rows))
    for kind in kinds:
        each = " | ".join(f"{one[kind][0]:.2f}" for one in found)
        print(f"| {kind} | {found[0][kind][1]:,.0f} | {each} |")


if __name__ == "__main__":
    main()
