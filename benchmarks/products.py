"""How fast the native engine's products are: `python -m benchmarks.products --size S`.

For each type of weights, and 1 to 512 rows: billions of multiplications and additions a second of
processor time, over all products of a layer and the head, and how fast the weights of one row are
read beside a plain copy of memory. Each product meets weights that are not in a cache, as in a
step. Medians of rounds in which all types take turns, one thread. Knows no step.
"""

from __future__ import annotations

import time
from ctypes import byref
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import runner
from benchmarks.models import HEAD, SIZES
from lmprog.runtime.engine.model.weight_table import up32
from lmprog.runtime.engine.native import interface

BITS = {"float32": 32, "bfloat16": 16, "int8": 8, "int4": 5}  # int4 with a scale for 32
ROWS = (1, 2, 4, 8, 16, 32, 64, 96)
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


def shapes(size: str) -> list[tuple[int, int]]:
    """Outputs and inputs of a layer's products, and of the head."""
    s = SIZES[size]
    hidden, heads, inner = s["hidden"], s["heads"] * HEAD, s["inner"]
    layer = [(heads + 2 * s["kv_heads"] * HEAD, hidden), (hidden, heads), (2 * inner, hidden)]
    return [*layer, (hidden, inner), (s["vocab"], hidden)]


def measure(size: str, path: str, rounds: int) -> dict[str, dict[int, float]]:
    """Median seconds of all shapes together, by type and rows."""
    taken = {kind: dict.fromkeys(ROWS, 0.0) for kind in BITS}
    for outputs, inputs in shapes(size):
        products = {kind: Product.of(outputs, inputs, kind) for kind in BITS}
        for rows in ROWS:
            x = np.random.default_rng(1).standard_normal((rows, up32(inputs)), np.float32)
            x[:, inputs:] = 0
            out = np.empty((rows, up32(outputs)), np.float32)
            sides = {kind: partial(one.seconds, path, x, out) for kind, one in products.items()}
            for kind, seconds in runner.medians(sides, rounds).items():
                taken[kind][rows] += seconds
    return taken


@runner.command
def main(
    *,
    size: Annotated[str, {"choices": SIZES}] = "S",
    path: str = interface.best_path(),
    rounds: int = 15,
) -> None:
    taken = measure(size, path, rounds)
    weights = sum(outputs * inputs for outputs, inputs in shapes(size))
    print(f"{size}, {path}; a copy reads and writes {copied_per_second():.1f} GB/s\n")
    runner.head("weights", "one row, GB/s", *(f"{count} rows" for count in ROWS))
    for kind, times in taken.items():
        speeds = [f"{2e-9 * weights * count / seconds:,.0f}" for count, seconds in times.items()]
        runner.say(kind, f"{1e-9 * weights * BITS[kind] / 8 / times[1]:.1f}", *speeds)
