"""Times one layer of attention over pages: our kernels, torch after gathering the pages, and the
reference.

    python -m benchmarks.attention [--threads N] [--path NAME] [--only TEXT]
    python -m benchmarks.attention --cold [--path NAME]

Figures are milliseconds of processor time of the whole process (the best of some repetitions), so
with one thread other load on the machine matters little; with more threads the wall clock is shown
instead. `no sharing` reads a common prefix once for each row. Writing the step's own keys and
values is part of every figure.

`--cold` says how fast one row reads keys and values that no cache holds, as a decode step finds
them, in each type they are kept in, beside plain reading and copying of memory in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
import torch

from benchmarks import batches, runner
from benchmarks.batches import PAGE
from lmprog.runtime.engine.attention import (
    AttentionBackend,
    AttentionShape,
    LayerAttention,
    NativeAttention,
    ReferenceAttention,
)
from lmprog.runtime.scheduling.batch import Batch

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
    made = batches.batch(case.rows, case.count, case.length - case.count, case.prefix)
    order = np.random.default_rng(0).permutation(batches.num_pages(made)).astype(np.int32)
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


def measure(
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
    return {name: measure(make(), batch, case, clock) for name, make in backends.items()}


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


@runner.command
def main(
    *,
    threads: int = 1,
    path: Annotated[str | None, "instruction set of the kernels (default: the best)"] = None,
    only: Annotated[str, "cases whose name contains this"] = "",
    cold: Annotated[bool, "one row that no cache holds, GB/s"] = False,
) -> None:
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
