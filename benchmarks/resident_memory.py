"""Memory of a runtime's process: at its start, after floods, and idle. `python -m
benchmarks.resident_memory [--prompts N] [--idle-seconds N]`

On nano with 200 MB for keys and values: prompts of 300 words that share nothing; then 50,000 branches
that are opened, written to and closed; then it rests. The bar: idle, at most 1.1 times its start.
"""

from __future__ import annotations

import random
import time

import lmprog
from benchmarks import runner
from lmprog import launch, wire
from lmprog.backends.runtime_backend import RuntimeBackend, describe

BAR = 1.1


@lmprog.function
def read_a_text(s: lmprog.Branch, seed: int) -> str:
    dice = random.Random(seed)
    s.append(" ".join(f"word{dice.randrange(10_000)}" for _ in range(300)))
    return s.gen(max_tokens=4).value


@runner.command
def main(*, prompts: int = 80, branches: int = 50_000, idle_seconds: int = 2) -> None:
    fields = {"threads": 1, "kv_memory_mb": 200, "kv_idle_seconds": idle_seconds}
    with (
        launch.RuntimeProcess("nano", **fields) as runtime,
        RuntimeBackend(runtime.connect("flood")) as backend,
    ):

        def resident() -> int:
            return runner.Footprint.of(runtime.pid).kilobytes

        reader = read_a_text.using(backend=backend, temperature=0.0, ignore_eos=True)
        reader.run(seed=-1)
        sizes = {"at the start": resident()}
        reader.map(list(range(prompts)), concurrency=16)
        sizes["after prompts"] = resident()
        text = (wire.TextPiece("a text that is never read. " * 20),)
        for first in range(1 << 40, (1 << 40) + branches, 500):
            numbers = range(first, first + 500)
            backend.client.post(*map(wire.Open, numbers))
            backend.client.post(*(wire.Append(number, text) for number in numbers))
            backend.client.post(*map(wire.Close, numbers))
        describe(backend)  # all of it has been handled
        sizes["after branches"] = resident()
        ends = time.monotonic() + idle_seconds + 10.0
        while time.monotonic() < ends and resident() > BAR * sizes["at the start"]:
            time.sleep(0.5)
        sizes["idle"] = resident()
    for when, size in sizes.items():
        print(f"{when}: {size / 1024:.0f} MB")
    ratio = sizes["idle"] / sizes["at the start"]
    print(f"idle / start {ratio:.2f}, at most {BAR}: {runner.verdict(ratio <= BAR)}")
