"""How fast the native kernels are: attention over pages, and the products of weights.

python -m benchmarks.kernels attention [--threads N] [--path NAME] [--only TEXT]
python -m benchmarks.kernels attention --cold [--path NAME]
python -m benchmarks.kernels products --size S
"""

from __future__ import annotations

import time
from collections.abc import Callable
from ctypes import byref
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import models, runner
from benchmarks.models import HEAD, PAGE, SIZES
from lmprog.runtime.engine.attention import (
    AttentionBackend,
    AttentionShape,
    LayerAttention,
    NativeAttention,
    ReferenceAttention,
)
from lmprog.runtime.engine.model.weight_table import up32
from lmprog.runtime.engine.native import interface
from lmprog.runtime.scheduling.batch import Batch

# -- attention

HEADS = {"S": (12, 4, 64), "M": (14, 2, 64), "8B": (32, 8, 128)}
"""Query heads, kv heads, head_dim: small and middle test models, and the layer of a checkpoint of 8
billion weights.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """`rows` branches that each compute `count` tokens and end at `length`, the first `prefix`
    positions common.
    """

    heads: str
    dtype: torch.dtype
    rows: int
    length: int
    prefix: int
    count: int = 1

    @property
    def name(self) -> str:
        kind = "decode" if self.count == 1 else f"prefill {self.count}"
        kept = "bf16" if self.dtype == torch.bfloat16 else "f32"
        return f"{self.heads} {kept} {kind}, {self.rows} rows of {self.length:,}, {self.prefix:,} shared"

    @property
    def shape(self) -> AttentionShape:
        heads, kv_heads, dim = HEADS[self.heads]
        return AttentionShape((LayerAttention(dim**-0.5),), heads, kv_heads, dim, dim, self.dtype)


FORKS = (("M", 1024, 1000), ("M", 8192, 1000), ("M", 8192, 8160), ("S", 8192, 8160))
ALONE = (("M", 8192, 1), ("8B", 4096, 1), ("M", 512, 512), ("M", 2560, 512), ("8B", 512, 512))
DTYPES = (torch.float32, torch.bfloat16)
CASES = [
    *(
        Case(heads, dtype, 16, length, prefix)
        for dtype in DTYPES
        for heads, length, prefix in FORKS
    ),
    *(
        Case(heads, dtype, 1, length, 0, count)
        for dtype in DTYPES
        for heads, length, count in ALONE
    ),
]


def batch_of(case: Case) -> tuple[Batch, int]:
    """The batch and the number of pages its rows stand on, which lie anywhere."""
    made = models.batch(case.rows, case.count, case.length - case.count, case.prefix)
    order = np.random.default_rng(0).permutation(models.num_pages(made)).astype(np.int32)
    slots = order[made.write_slots // PAGE] * PAGE + made.write_slots % PAGE
    return replace(made, pages=order[made.pages], write_slots=slots), len(order)


class TorchAttention:
    """What one would write without kernels: gather every row's pages, then torch's own attention
    for all rows.
    """

    def __init__(self, shape: AttentionShape, num_pages: int, case: Case) -> None:
        slots = num_pages * PAGE
        self.keys = torch.zeros(slots, shape.num_kv_heads, shape.head_dim, dtype=shape.dtype)
        self.values = torch.zeros(slots, shape.num_kv_heads, shape.v_head_dim, dtype=shape.dtype)
        self.case = case
        self.dtype = shape.dtype

    def plan(self, batch: Batch) -> None:
        case = self.case
        pages = torch.from_numpy(batch.pages.astype(np.int64)).view(case.rows, -1)
        position = torch.arange(case.length)
        self.gathered = pages[:, position // PAGE] * PAGE + position % PAGE  # [rows, length]
        self.written = torch.from_numpy(batch.write_slots.astype(np.int64))
        seen = torch.arange(case.length - case.count, case.length)[:, None] >= position
        self.mask = None if case.count == 1 else seen

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.keys[self.written], self.values[self.written] = k.to(self.dtype), v.to(self.dtype)
        keys, values = (x[self.gathered].transpose(1, 2) for x in (self.keys, self.values))
        queries = q.to(self.dtype).view(self.case.rows, self.case.count, *q.shape[1:])
        out = torch.nn.functional.scaled_dot_product_attention(
            queries.transpose(1, 2), keys, values, attn_mask=self.mask, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(0, 1)

    @property
    def bytes_per_page(self) -> int:
        return PAGE * 2 * self.keys[0].numel() * self.keys.element_size()


def zeroed(backend: NativeAttention) -> NativeAttention:
    for keys, values in backend.memory:
        keys.zero_()
        values.zero_()
    return backend


def layer_ms(
    backend: AttentionBackend, batch: Batch, case: Case, clock: Callable[[], float]
) -> float:
    """Milliseconds of one step of one layer: the best of at least three, over at least 0.3 seconds."""
    shape, rng = case.shape, torch.Generator().manual_seed(1)
    q = torch.randn(batch.num_tokens, shape.num_heads, shape.head_dim, generator=rng)
    k = torch.randn(batch.num_tokens, shape.num_kv_heads, shape.head_dim, generator=rng)
    backend.plan(batch)
    backend.run(0, q, k, k)
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < 0.3:
        taken.append(runner.seconds(partial(backend.run, 0, q, k, k), 1, clock))
    return 1e3 * min(taken)


def run_case(case: Case, threads: int, path: str | None) -> dict[str, float]:
    clock = time.process_time if threads == 1 else time.perf_counter
    shape, (batch, num_pages) = case.shape, batch_of(case)

    def native(share: bool) -> NativeAttention:
        return zeroed(
            NativeAttention(shape, num_pages, PAGE, threads, path=path, share_prefixes=share)
        )

    backends: dict[str, Callable[[], AttentionBackend]] = {
        "native": lambda: native(True),
        "no sharing": lambda: native(False),
        "torch": lambda: TorchAttention(shape, num_pages, case),
        "reference": lambda: ReferenceAttention(shape, num_pages, PAGE),
    }
    return {name: layer_ms(make(), batch, case, clock) for name, make in backends.items()}


COLD_LENGTH, COLD_BYTES = 16_384, 96 << 20
"""Of one row's positions, and of keys and values before the first are read again: more than caches
hold."""


def cold_rows(heads: str, path: str | None, rounds: int = 9) -> dict[str, float]:
    """Gigabytes a second of processor time that one row reads, by the type of keys and values; the
    median of rounds in which all types and plain reading and copying take turns, one thread."""
    plain = np.ones(COLD_BYTES // 8, np.uint64)
    sides: dict[str, Callable[[], float]] = {}

    def speed(work: Callable[[], object], num_bytes: int) -> Callable[[], float]:
        return lambda: 1e-9 * num_bytes / runner.seconds(work, 1, time.thread_time)

    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16), ("int8", torch.int8)):
        case = Case(heads, dtype, 1, COLD_LENGTH, 0)
        one, (batch, num_pages) = case.shape, batch_of(case)
        layers = 2 + COLD_BYTES // (NativeAttention.page_bytes(one, PAGE) * num_pages)
        shape = replace(one, layers=one.layers * layers)
        backend = zeroed(NativeAttention(shape, num_pages, PAGE, path=path))
        backend.plan(batch)
        num_bytes = len(backend.memory) * sum(part.numel() for part in backend.memory[0])
        sides[name] = speed(partial(all_layers, backend, batch), num_bytes)
    sides["plain reading"] = speed(plain.max, plain.nbytes)
    sides["copying"] = speed(partial(np.copyto, np.ones_like(plain), plain), 2 * plain.nbytes)
    return runner.medians(sides, rounds)


def all_layers(backend: NativeAttention, batch: Batch) -> None:
    """Of a step, one after the other."""
    shape = backend.shape
    q = torch.ones(batch.num_tokens, shape.num_heads, shape.head_dim)
    k = torch.ones(batch.num_tokens, shape.num_kv_heads, shape.head_dim)
    for layer in range(len(shape.layers)):
        backend.run(layer, q, k, k)


def attention(
    *,
    threads: int = 1,
    path: Annotated[str | None, "instruction set of the kernels (default: the best)"] = None,
    only: Annotated[str, "cases whose name contains this"] = "",
    cold: Annotated[bool, "one row that no cache holds, GB/s"] = False,
) -> None:
    """One layer of attention over pages: our kernels, torch after gathering the pages, and the
    reference. Figures are milliseconds of processor time of the whole process (the best of some
    repetitions), so with one thread other load on the machine matters little; with more threads the
    wall clock is shown instead. `no sharing` reads a common prefix once for each row. Writing the
    step's own keys and values is part of every figure.

    `--cold` says how fast one row reads keys and values that no cache holds, as a decode step finds
    them, in each type they are kept in, beside plain reading and copying of memory in the same run.
    """
    torch.set_num_threads(threads)
    if cold:
        for heads in HEADS:
            found = cold_rows(heads, path)
            print(heads, ", ".join(f"{name} {speed:.1f}" for name, speed in found.items()))
        return
    runner.head("ms, one layer", "native", "no sharing", "torch", "reference")
    for case in CASES:
        if only in case.name:
            figures = run_case(case, threads, path).values()
            runner.say(case.name, *(f"{figure:.2f}" for figure in figures))


# -- products

BITS = {"float32": 32, "bfloat16": 16, "int8": 8, "int4": 5}  # int4 with a scale for 32
PRODUCT_ROWS = (1, 2, 4, 8, 16, 32, 64, 96)
FAR = 96 << 20
"""Bytes of weights before the first come again: more than caches hold."""


@dataclass
class Product:
    """The same weights at several places, of which each call takes the next one."""

    described: Any
    places: list[NDArray[np.uint8]]
    calls: int = 0

    @classmethod
    def of(cls, outputs: int, inputs: int, kind: str) -> Product:
        library, count = interface.opened(), up32(outputs)
        described = interface.CProduct(interface.TYPES[kind], outputs, inputs)
        size = int(library.lmprog_engine_packed_bytes(byref(described)))
        weight = np.random.default_rng(0).standard_normal((count, inputs), np.float32)
        rows = interface.CSourceRows(weight.ctypes.data, interface.F32, outputs, inputs, 0, 1, 0)
        memory = np.zeros(size * max(2, FAR // size + 1) + 64, np.uint8)
        first = -memory.ctypes.data % 64
        places = [memory[at : at + size] for at in range(first, len(memory) - size + 1, size)]
        library.lmprog_engine_pack(byref(described), places[0].ctypes.data, byref(rows), 0, outputs)
        for place in places[1:]:
            place[:] = places[0]
        return cls(described, places)

    def seconds(self, path: str, x: NDArray[np.float32], out: NDArray[np.float32]) -> float:
        place = self.places[self.calls % len(self.places)]
        self.calls += 1
        began = time.thread_time()
        interface.opened().lmprog_engine_multiply(
            *(path.encode(), byref(self.described), place.ctypes.data, x.ctypes.data),
            *(len(x), out.ctypes.data, out.shape[1]),
        )
        return time.thread_time() - began


def copied_per_second() -> float:
    """Gigabytes read and written by a plain copy; the median of some."""
    source = np.ones(64 << 20, np.uint8)
    copy = partial(np.copyto, np.empty_like(source), source)
    return 2e-9 * len(source) / median(runner.seconds(copy, 1, time.thread_time) for _ in range(9))


def product_shapes(size: str) -> list[tuple[int, int]]:
    """Outputs and inputs of a layer's products, and of the head."""
    s = SIZES[size]
    hidden, heads, inner = s["hidden"], s["heads"] * HEAD, s["inner"]
    layer = [(heads + 2 * s["kv_heads"] * HEAD, hidden), (hidden, heads), (2 * inner, hidden)]
    return [*layer, (hidden, inner), (s["vocab"], hidden)]


def seconds_of(size: str, path: str, rounds: int) -> dict[str, dict[int, float]]:
    """Median seconds of all product_shapes together, by type and rows."""
    taken = {kind: dict.fromkeys(PRODUCT_ROWS, 0.0) for kind in BITS}
    for outputs, inputs in product_shapes(size):
        of_kinds = {kind: Product.of(outputs, inputs, kind) for kind in BITS}
        for rows in PRODUCT_ROWS:
            x = np.random.default_rng(1).standard_normal((rows, up32(inputs)), np.float32)
            x[:, inputs:] = 0
            out = np.empty((rows, up32(outputs)), np.float32)
            sides = {kind: partial(one.seconds, path, x, out) for kind, one in of_kinds.items()}
            for kind, seconds in runner.medians(sides, rounds).items():
                taken[kind][rows] += seconds
    return taken


def products(
    *,
    size: Annotated[str, {"choices": SIZES}] = "S",
    path: str = interface.best_path(),
    rounds: int = 15,
) -> None:
    """For each type of weights, and 1 to 96 rows: billions of multiplications and additions a second of
    processor time, over all products of a layer and the head, and how fast the weights of one row are
    read beside a plain copy of memory. Each product meets weights that are not in a cache, as in a
    step. Medians of rounds in which all types take turns, one thread.
    """
    taken = seconds_of(size, path, rounds)
    weights = sum(outputs * inputs for outputs, inputs in product_shapes(size))
    print(f"{size}, {path}; a copy reads and writes {copied_per_second():.1f} GB/s\n")
    runner.head("weights", "one row, GB/s", *(f"{count} rows" for count in PRODUCT_ROWS))
    for kind, times in taken.items():
        speeds = [f"{2e-9 * weights * count / seconds:,.0f}" for count, seconds in times.items()]
        runner.say(kind, f"{1e-9 * weights * BITS[kind] / 8 / times[1]:.1f}", *speeds)


COMMANDS = runner.commands(attention, products)
