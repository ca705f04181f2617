"""What spreading a model over two processes costs and saves, beside the same model in one.

    python -m benchmarks.tensor_parallel time [MODEL]   processor time of prompts and tokens
    python -m benchmarks.tensor_parallel memory         peak memory of each process, 0.8 GB of weights
    python -m benchmarks.tensor_parallel death          from SIGKILL of a rank to the runtime's end

`time` runs the torch engine in one process, in two ranks, and the native engine, one after the
other, each with one thread a process; figures are processor time of all processes together.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import lmprog
from benchmarks import runner
from benchmarks.models import make_comparable

PROMPT = "abcdefgh" * 48
ROWS, TOKENS = 8, 48
KILLS = 5
ENGINES: dict[str, dict[str, Any]] = {
    "torch, one process": {"engine": "torch", "threads": 1},
    "torch, two ranks": {"tp": 2, "threads": 2},
    "native, one process": {"engine": "native", "threads": 1},
}


@lmprog.function
def written(s: lmprog.Branch, start: str, tokens: int) -> None:
    s += start
    s += lmprog.gen("text", max_tokens=tokens, temperature=0, ignore_eos=True)


def processes(runtime: lmprog.Runtime) -> list[int]:
    """The runtime and its ranks."""
    return [runtime.process.pid, *runner.children_of(runtime.process.pid)]


def spent(runtime: lmprog.Runtime, arguments: list[dict[str, Any]]) -> float:
    """Seconds of processor time."""
    pids = processes(runtime)
    before = runner.processor_time(*pids)
    written.run_batch(arguments, backend=runtime)
    return runner.processor_time(*pids) - before


def measure_time(model: str) -> None:
    print(f"{model}: processor time of all processes; {ROWS} programs at once")
    for name, options in ENGINES.items():
        with lmprog.Runtime(model, dtype="float32", kv_memory_mb=256, **options) as runtime:
            written.using(backend=runtime).run(start="warm", tokens=4)
            prompts = [{"start": f"{n}{PROMPT}", "tokens": 1} for n in range(ROWS)]
            prefill = spent(runtime, prompts)
            decode = spent(runtime, [{"start": f"{n}", "tokens": TOKENS} for n in range(ROWS)])
        print(
            f"  {name:20} {prefill / (ROWS * len(PROMPT)) * 1e6:8.0f} us a prompt token"
            f" {decode / TOKENS * 1e3:8.2f} ms a step of {ROWS} rows"
        )


def measure_memory() -> None:
    fields = {"dtype": "float32", "kv_memory_mb": 64, "context_len": 256}
    with tempfile.TemporaryDirectory() as folder:
        make_comparable(Path(folder), "wide")
        size = (Path(folder) / "model.safetensors").stat().st_size / 1e6
        print(f"a checkpoint of {size:.0f} MB; peak resident memory, and what is not a file's:")
        for name in ("torch, one process", "torch, two ranks"):
            with lmprog.Runtime(folder, **fields, **ENGINES[name]) as runtime:
                written.using(backend=runtime).run(start="abc", tokens=8)
                for rank, pid in enumerate(processes(runtime)):
                    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                    status = dict(line.split(":", 1) for line in lines)
                    peak, own = (int(status[key].split()[0]) / 1e3 for key in ("VmHWM", "RssAnon"))
                    print(f"  {name:20} rank {rank}: peak {peak:6.0f} MB, own {own:6.0f} MB")


def measure_death() -> None:
    taken = []
    for _ in range(KILLS):
        with lmprog.Runtime("dummy:tiny", tp=2, threads=2) as runtime:
            written.using(backend=runtime).run(start="abc", tokens=4)
            began = time.perf_counter()
            os.kill(processes(runtime)[1], signal.SIGKILL)
            runtime.process.wait(60.0)
            taken.append(time.perf_counter() - began)
    seconds = ", ".join(f"{one * 1e3:.0f}" for one in taken)
    print(f"from SIGKILL of rank 1 to the runtime's end: {seconds} ms")


@runner.command
def main(what: Literal["time", "memory", "death"], model: str = "dummy:512x8") -> None:
    if what == "time":
        measure_time(model)
    elif what == "memory":
        measure_memory()
    else:
        measure_death()
