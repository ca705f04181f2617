"""What the engine costs and holds, without a server: steps, adapters, types of keys and values, threads.

    python -m benchmarks.engine --model random:S --threads 1      one step on every engine and type
    python -m benchmarks.engine adapters [--model dummy:832x12] [--rank 16]
    python -m benchmarks.engine kv-types --model random:S --context 4096
    python -m benchmarks.engine threads [--busy]                  tokens a second, over the wire
    python -m benchmarks.engine neighbour --model random:S        beside a process that computes for ever
    python -m benchmarks.engine loading MODEL --quantize int8     how weights come into memory

Sides take turns within a round; what is printed is the median of the rounds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np

from benchmarks import runner
from benchmarks.gateway import CLIENTS, LONG_PROMPT, bare_wire
from benchmarks.models import PAGE, batch, prepared
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.launch import RuntimeProcess
from lmprog.native import cache_folder
from lmprog.runtime.engine.adapters.adapter_folder import (
    PRODUCTS,
    Adapter,
    LowRank,
    Raised,
    packed_adapters,
)
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.machine.resources import default_threads
from lmprog.runtime.engine.model import weight_table
from lmprog.runtime.engine.model.locate import dummy_shape
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.engine.native.page_memory import page_bytes
from lmprog.runtime.scheduling.batch import Batch

# -- one step

_CHUNK = 512
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


STEPS = {
    "prefill 512": batch(1, 512, 0),
    "B=1": batch(1, 1, CONTEXT),
    "B=16": batch(16, 1, CONTEXT),
    "B=64": batch(64, 1, CONTEXT),
}


def load(side: str, model: str, threads: int) -> Any:
    """The side's engine, with keys and values in all places that the steps read."""
    config = RuntimeConfig(model=model, threads=threads, kv_memory_mb=1200, **SIDES[side])
    return filled(load_engine(config), 64, CONTEXT)


def filled(engine: Any, rows: int, context: int) -> Any:
    """One context is computed and copied to the other rows, each in pages of its own."""
    slots, stride = np.arange(context, dtype=np.int32), -(-(context + 1) // PAGE) * PAGE
    for start in range(0, context, _CHUNK):
        engine.forward(batch(1, min(_CHUNK, context - start), start))
    for row in range(1, rows):
        copies = np.ascontiguousarray(np.stack([slots, slots + row * stride], 1))
        engine.forward(replace(batch(1, 1, context), copies=copies))
    return engine


def milliseconds(engine: Any, step: Batch, count: int = 1) -> float:
    """The mean of so many steps."""
    return 1e3 * runner.seconds(partial(engine.forward, step), count)


def steps(
    *,
    model: str = "random:S",
    sides: runner.Names = tuple(SIDES),
    threads: int = 1,
    rounds: int = 7,
) -> None:
    """A prefill of 512 tokens, decode steps of 1, 16 and 64 rows, in processor milliseconds. Decode
    rows stand on 256 tokens of their own. A step comes after those of other sides, which have filled
    the caches; "B=1 in a row" is the mean of 16 steps without others between, as a model that decodes
    computes them.
    """
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


# -- adapters

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

    found = [weight_table.products(shape, at).keys() & PRODUCTS for at in range(shape.num_layers)]
    layers = [{p: low_rank(at, p) for p in names} for at, names in enumerate(found)]
    return Adapter(name, name, tuple(layers))


def dealt(step: Batch, adapters: int) -> Batch:
    """The rows' adapters in turn, all of them where there is one a row; 0: without any."""
    if not adapters:
        return step
    return replace(step, adapters=np.arange(step.num_rows, dtype=np.int32) % adapters + 1)


def adapter_steps() -> dict[str, Batch]:
    decode, prefill = batch(ROWS, 1, CONTEXT, vocab=256), batch(1, CONTEXT, 0, vocab=256)
    named = {f"decode, {count} adapters": dealt(decode, count) for count in (0, 1, 4, 16)}
    half = np.array([0, 1] * (ROWS // 2), np.int32)
    named["decode, 8 of 16 rows on 1 adapter"] = replace(decode, adapters=half)
    return {**named, "prefill": prefill, "prefill, 1 adapter": dealt(prefill, 1)}


def adapters(
    *, model: str = "dummy:832x12", dtype: str = "float32", rank: int = 16, rounds: int = 9
) -> None:
    """LoRA adapters: a step with 0, 1, 4 and 16 of them among its rows, beside the base alone. Model and
    adapters are random, which change all seven products of each layer. A decode has 16 rows, dealt to
    the base and the adapters in turn; a prefill has one row of an adapter.
    """
    config: Any = {"model": model, "threads": 1, "kv_memory_mb": 600, "dtype": dtype}
    engine = load_engine(RuntimeConfig(**config))
    assert isinstance(engine, NativeEngine)
    shape = dummy_shape(model)
    adapters = [random_adapter("x" * (n + 1), shape, rank) for n in range(16)]
    engine.take_adapters(packed_adapters(adapters, shape))
    print(
        f"{model}, {dtype}: {engine.num_weights / 1e6:.0f} million weights; "
        f"rank {rank}: {adapters[0].num_bytes / 1e6:.1f} MB an adapter"
    )
    sides = {name: partial(milliseconds, engine, step) for name, step in adapter_steps().items()}
    found = runner.medians(sides, rounds)
    runner.head("step", "ms", "beside the base")
    for name, ms in found.items():
        alone = found["prefill" if name.startswith("prefill") else "decode, 0 adapters"]
        runner.say(name, f"{ms:.1f}", f"{ms / alone:.2f}")


# -- types of keys and values


def kept_as(model: str, kind: Any, rows: int, context: int) -> NativeEngine:
    """An engine with keys and values of that type, and weights in bfloat16."""
    each = -(-(context + 1) // PAGE)
    pages = SchedulerConfig(page_size=PAGE, num_pages=rows * each)
    fields: Any = {"engine": "native", "dtype": "bfloat16", "kv_dtype": kind, "scheduler": pages}
    engine = load_engine(RuntimeConfig(model=model, threads=1, **fields))
    assert isinstance(engine, NativeEngine)
    filled(engine, rows, context)
    return engine


def kv_types(
    *,
    model: str = "random:S",
    context: int = 4096,
    rows: runner.Ints = (1, 16),
    kinds: runner.Names = ("float32", "bfloat16", "int8"),
    rounds: int = 7,
) -> None:
    """Decode steps over long contexts with keys and values in each type: processor milliseconds, and
    the memory of keys and values for each token. Every row stands on a context of its own.
    """
    taken, token_bytes = [], {}
    with prepared(model) as (folder, _):
        for count in rows:
            engines = {kind: kept_as(folder, kind, count, context) for kind in kinds}
            step = batch(count, 1, context)
            sides = {kind: partial(milliseconds, one, step) for kind, one in engines.items()}
            taken.append(runner.medians(sides, rounds))
            for kind, one in engines.items():
                token_bytes[kind] = page_bytes(one._shape, one.kv_dtype, PAGE) / PAGE
    runner.head(f"{model}, {context:,}", "bytes a token", *(f"B={count}" for count in rows))
    for kind in kinds:
        runner.say(kind, f"{token_bytes[kind]:,.0f}", *(f"{each[kind]:.2f}" for each in taken))


# -- threads, and a process beside them

BODY: dict[str, Any] = {
    "prompt": LONG_PROMPT,
    "max_tokens": 32,
    "ignore_eos": True,
    "temperature": 0,
}


def tokens_per_second(model: str, threads: int | None, rounds: int) -> list[float]:
    """Tokens per second for each number of clients, the median of the rounds."""
    with RuntimeProcess(model, threads=threads) as runtime:
        bare_wire(runtime.address, 1, 1, BODY)
        return [
            median(bare_wire(runtime.address, clients, 2, BODY) for _ in range(rounds))
            for clients in CLIENTS
        ]


def threads(
    models: Sequence[str] = ("nano", "random:512x10"), *, busy: bool = False, rounds: int = 3
) -> None:
    """Tokens a second of 1, 16 and 64 generations at once over the wire, with one thread, with all, and
    with the runtime's own choice; `--busy` beside a process that takes one core.
    """
    runner.head("model", "threads", *(f"{clients} at once" for clients in CLIENTS), texts=2)
    with runner.busy_neighbour() if busy else nullcontext():
        for name in models:
            with prepared(name) as (model, _):
                for threads in (1, default_threads(), None):
                    speeds = tokens_per_second(model, threads, rounds)
                    runner.say(name, threads or "chosen", *(f"{s:,.0f}" for s in speeds))


def steps_per_second(engine: Any, step: Any, seconds: float) -> float:
    """Of the wall clock, for about so long and at least two steps."""
    began, count = time.perf_counter(), 0
    while count < 2 or time.perf_counter() - began < seconds:
        engine.forward(step)
        count += 1
    return count / (time.perf_counter() - began)


def neighbour(
    *,
    model: str = "random:S",
    side: Annotated[str, "as in steps"] = "native f32",
    threads: Sequence[int] = (2, 1),
    rounds: int = 7,
    seconds: Annotated[float, "of one measurement"] = 0.3,
) -> None:
    """What a step on several threads loses beside another process that computes for ever, which is
    stopped and continued within one run. What counts is steps a second of wall clock, since a thread
    that waits for another one uses no processor time.
    """
    runner.head("threads", *(f"{name}: alone, beside, kept" for name in STEPS))
    with prepared(model) as (folder, _), runner.busy_neighbour() as other:
        os.kill(other, signal.SIGSTOP)
        for count in threads:
            engine, cells = load(side, folder, count), []
            for step in STEPS.values():

                def speed(is_busy: bool, engine: Any = engine, step: Any = step) -> float:
                    os.kill(other, signal.SIGCONT if is_busy else signal.SIGSTOP)
                    time.sleep(0.02)  # so that the system has seen it
                    return steps_per_second(engine, step, seconds)

                found = runner.medians(
                    {"a": lambda: speed(False), "b": lambda: speed(True)}, rounds
                )
                alone, beside = found.values()
                cells.append(f"{alone:.1f}, {beside:.1f}, {beside / alone:.0%}")
            runner.say(count, *cells)


# -- how weights come into memory

_CHILD = """
import json, resource, sys, time
from lmprog.config import RuntimeConfig
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.native import interface
from lmprog.weight_cache import user_cache
from benchmarks.models import batch
interface.opened()
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, wall, cpu = peak(), time.perf_counter(), time.process_time()
engine = load_engine(RuntimeConfig(kv_memory_mb=64, **json.loads(sys.argv[1])))
loaded = dict(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)
loaded |= dict(peak_mb=peak() - before, packed_mb=engine.packed.num_bytes / 2**20)
cpu = time.process_time()
engine.forward(batch(1, 1, 0))
print(json.dumps(loaded | dict(first_step_ms=(time.process_time() - cpu) * 1e3)))
"""


def start(cache: Path, config: dict[str, Any], limit_gb: float = 20) -> dict[str, float]:
    """What one start took. `cache` is the folder of packed weights, kept only below a limit."""
    variables = {"LMPROG_CACHE": str(cache), "LMPROG_WEIGHT_CACHE_GB": str(limit_gb)}
    command, env = [sys.executable, "-c", _CHILD, json.dumps(config)], os.environ | variables
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def loading(
    model: str,
    *,
    dtype: str | None = None,
    quantize: str | None = None,
    threads: int | None = None,
) -> None:
    """The first start packs weights, the next one maps them, another keeps nothing on disk. Each start is
    a fresh process on a cache of its own, with the files of both warm in the system's memory. `peak`
    is the most memory that the process ever held, over what it held before it loaded; key/value
    memory is not touched.
    """
    given = {"model": model, "dtype": dtype, "quantize": quantize, "threads": threads}
    config = {name: value for name, value in given.items() if value is not None}
    columns = ("processor s", "wall s", "peak MB", "packed MB", "peak / packed", "first step, ms")
    runner.head("start", *columns)
    with tempfile.TemporaryDirectory() as scratch:
        compiled = cache_folder() / "native"
        compiled.mkdir(parents=True, exist_ok=True)
        (Path(scratch) / "native").symlink_to(compiled)
        for name, limit_gb in (("first", 20), ("next", 20), ("without the cache", 0)):
            took = start(Path(scratch), config, limit_gb)
            peak, packed = took["peak_mb"], took["packed_mb"]
            runner.say(
                *(name, f"{took['cpu_s']:.2f}", f"{took['wall_s']:.2f}", f"{peak:,.0f}"),
                *(f"{packed:,.0f}", f"{peak / packed:.2f}", f"{took['first_step_ms']:.0f}"),
            )


COMMANDS = runner.commands(steps, adapters, kv_types, threads, neighbour, loading)
