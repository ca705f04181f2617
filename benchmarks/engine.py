"""One step of the engine, on every engine and type: a prefill of 512 tokens, decode steps of 1, 16
and 64 rows.

    python -m benchmarks.engine --model random:S --threads 1

Each side computes the same batches, all in turn within a round; what is printed is the median of
the rounds in processor milliseconds. Decode rows stand on 256 tokens of their own. A step comes
after those of other sides, which have filled the caches; "B=1 in a row" is the mean of 16 steps
without others between, as a model that decodes computes them.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, cast

import numpy as np

from benchmarks import runner
from benchmarks.models import prepared
from lmprog.config import RuntimeConfig
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.scheduling.batch import Batch, build_batch
from lmprog.runtime.scheduling.plan import Plan, Row

PAGE = 16
IN_A_ROW = "B=1 in a row"
CONTEXT = 256
SIDES: dict[str, dict[str, Any]] = {
    "torch f32": {"engine": "torch", "dtype": "float32"},
    "native f32": {"engine": "native", "dtype": "float32"},
    "torch bf16": {"engine": "torch", "dtype": "bfloat16"},
    "native bf16": {"engine": "native", "dtype": "bfloat16"},
    "native int8": {"engine": "native", "dtype": "bfloat16", "quantize": "int8"},
    "native int4": {"engine": "native", "dtype": "bfloat16", "quantize": "int4"},
}


def batch(rows: int, tokens: int, start: int, vocab: int = 2000) -> Batch:
    """`rows` sequences of `tokens` tokens from position `start`; the last ones' logits are wanted."""
    each, rng = -(-(start + tokens) // PAGE), np.random.default_rng(rows)
    made = [
        Row(
            cast(Any, None),
            array("i", rng.integers(0, vocab, tokens).tolist()),
            start,
            start + tokens,
            array("i", range(row * each, (row + 1) * each)),
            start + tokens - 1,
        )
        for row in range(rows)
    ]
    return build_batch(Plan(tuple(made)), PAGE)


STEPS = {
    "prefill 512": batch(1, 512, 0),
    "B=1": batch(1, 1, CONTEXT),
    "B=16": batch(16, 1, CONTEXT),
    "B=64": batch(64, 1, CONTEXT),
}


def load(side: str, model: str, threads: int) -> Any:
    """The side's engine, with keys and values in all places that the steps read: one context is
    computed and copied to the other rows."""
    config = RuntimeConfig(model=model, threads=threads, kv_memory_mb=1200, **SIDES[side])
    engine = load_engine(config)
    first, stride = batch(1, CONTEXT, 0), -(-(CONTEXT + 1) // PAGE) * PAGE
    engine.forward(first)
    slots = np.arange(CONTEXT, dtype=np.int32)
    pairs = [np.stack([slots, slots + row * stride], 1) for row in range(1, 64)]
    engine.forward(replace(first, copies=np.ascontiguousarray(np.concatenate(pairs))))
    return engine


def milliseconds(engine: Any, step: Batch, count: int = 1) -> float:
    """The mean of so many steps."""
    return 1e3 * runner.seconds(partial(engine.forward, step), count)


@runner.command
def main(
    *,
    model: str = "random:S",
    sides: runner.Names = tuple(SIDES),
    threads: int = 1,
    rounds: int = 7,
) -> None:
    taken: dict[str, dict[str, list[float]]] = {side: {} for side in sides}
    with prepared(model) as (folder, _):
        engines = {side: load(side, folder, threads) for side in sides}
    for _ in range(rounds):
        for name, step in STEPS.items():
            for side, engine in engines.items():
                taken[side].setdefault(name, []).append(milliseconds(engine, step))
                if name == "B=1":
                    taken[side].setdefault(IN_A_ROW, []).append(milliseconds(engine, step, 16))
    columns = (*STEPS, IN_A_ROW)
    runner.head(model, *columns)
    for side, each in taken.items():
        runner.say(side, *(f"{median(each[name]):.2f}" for name in columns))
