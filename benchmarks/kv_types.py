"""Decode steps over long contexts with keys and values in each type.

    python -m benchmarks.kv_types --model random:S --context 4096

Each side computes the same steps, all in turn within a round; what is printed is the median of the
rounds in processor milliseconds, and the memory of keys and values for each token. Every row stands
on a context of its own. Weights are in bfloat16.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks import runner
from benchmarks.engine import PAGE, batch, milliseconds
from benchmarks.models import prepared
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.native.engine import NativeEngine, page_bytes

_CHUNK = 512


def filled(model: str, kind: Any, rows: int, context: int) -> NativeEngine:
    """An engine whose `rows` contexts are the same, each in pages of its own."""
    each = -(-(context + 1) // PAGE)
    pages = SchedulerConfig(page_size=PAGE, num_pages=rows * each)
    fields: Any = {"engine": "native", "dtype": "bfloat16", "kv_dtype": kind, "scheduler": pages}
    engine = load_engine(RuntimeConfig(model=model, threads=1, **fields))
    assert isinstance(engine, NativeEngine)
    for start in range(0, context, _CHUNK):
        engine.forward(batch(1, min(_CHUNK, context - start), start))
    slots = np.arange(context, dtype=np.int32)
    for row in range(1, rows):
        copies = np.stack([slots, slots + row * each * PAGE], 1)
        engine.forward(replace(batch(1, 1, context), copies=np.ascontiguousarray(copies)))
    return engine


@runner.command
def main(
    *,
    model: str = "random:S",
    context: int = 4096,
    rows: runner.Ints = (1, 16),
    kinds: runner.Names = ("float32", "bfloat16", "int8"),
    rounds: int = 7,
) -> None:
    taken, token_bytes = [], {}
    with prepared(model) as (folder, _):
        for count in rows:
            engines = {kind: filled(folder, kind, count, context) for kind in kinds}
            step = batch(count, 1, context)
            sides = {kind: partial(milliseconds, one, step) for kind, one in engines.items()}
            taken.append(runner.medians(sides, rounds))
            for kind, one in engines.items():
                token_bytes[kind] = page_bytes(one._shape, one.kv_dtype, PAGE) / PAGE
    runner.head(f"{model}, {context:,}", "bytes a token", *(f"B={count}" for count in rows))
    for kind in kinds:
        runner.say(kind, f"{token_bytes[kind]:,.0f}", *(f"{each[kind]:.2f}" for each in taken))
