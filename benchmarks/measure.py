"""Runs one workload on a fresh lmprog runtime and writes down the work and the time.

Knows how to start a runtime, read its counters and its processor time. Knows no workload and no
table.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.ledger import Account, Tap, account
from benchmarks.runner import processor_time
from benchmarks.workloads.shape import Workload
from lmprog import launch
from lmprog.backends.runtime_backend import RuntimeBackend, describe, flush
from lmprog.lang.branches.branch import Branch
from lmprog.lang.decorator import function
from lmprog.runtime.text.tokenizer import ByteTokenizer, HfTokenizer

_PROBE_MB = 16


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one workload. `cpu` is processor time of all processes taking part, in seconds."""

    wall: float
    cpu: float
    outputs: list[str]
    work: dict[str, float] = field(default_factory=dict)
    """The runtime's counters, as differences; peaks as they are."""
    account: Account | None = None

    def or_faster(self, other: Measured) -> Measured:
        """Of two runs of the same work, the figures of the first with the better times of both."""
        return replace(self, wall=min(self.wall, other.wall), cpu=min(self.cpu, other.cpu))


@dataclass(frozen=True, slots=True)
class Bench:
    """On what workloads run."""

    model: str
    threads: int
    tokenizer: HfTokenizer | ByteTokenizer
    options: dict[str, Any] = field(default_factory=dict)
    """More fields of the runtime's configuration."""

    def on_lmprog(self, workload: Workload, *, share: bool) -> Measured:
        """Runs `workload` on a runtime of its own, with the tree (`share`) or without."""
        memory = None if workload.memory is None else self._megabytes(workload.memory)
        fields = {
            "dtype": "float32",
            "threads": self.threads,
            "share": share,
            "kv_memory_mb": memory,
            **self.options,
        }
        with launch.RuntimeProcess(self.model, **fields) as runtime:
            connection = runtime.connect("benchmark")
            tap = Tap(connection)
            with RuntimeBackend(tap) as backend:
                _warm_up.using(backend=backend, temperature=0.0, ignore_eos=True).run()
                flush(backend)
                before = describe(backend)
                num_ops = len(tap.ops)
                cpu, wall = _cpu_seconds(runtime.pid), time.perf_counter()
                outputs = workload.run(backend)
                wall = time.perf_counter() - wall
                cpu = _cpu_seconds(runtime.pid) - cpu
                after = describe(backend)
                booked = account(tap.ops[num_ops:], tap.replies, self.tokenizer)
        kept = {name for name in after if name.startswith("peak_") or name == "pages"}
        work = {
            name: value - (0.0 if name in kept else before.get(name, 0.0))
            for name, value in after.items()
        }
        return Measured(wall, cpu, outputs, work, booked)

    def _megabytes(self, tokens: int) -> int:
        """Key/value memory for so many tokens, rounded up."""
        with launch.RuntimeProcess(
            self.model, threads=self.threads, dtype="float32", kv_memory_mb=_PROBE_MB
        ) as runtime:
            info = runtime.connect("probe")
            per_mb = info.info.num_pages * info.info.page_size / _PROBE_MB
            info.close()
        return math.ceil(tokens / per_mb)


@function
def _warm_up(s: Branch) -> str:
    """So that nothing is done for the first time when the clock runs."""
    s.append(" warm up" * 8)
    return s.gen(max_tokens=4).value


def _cpu_seconds(pid: int) -> float:
    """Processor time of this process and of `pid`."""
    return processor_time(os.getpid(), pid)
