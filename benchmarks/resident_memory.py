"""Memory of a runtime's process: at its start, after floods, and idle. `python -m
benchmarks.resident_memory [--prompts N] [--idle-seconds N]`

On nano with 200 MB for keys and values: prompts of 300 words that share nothing; then 50,000 branches
that are opened, written to and closed; then it rests. The bar: idle, at most 1.1 times its start.
"""

from __future__ import annotations

import argparse
import mmap
import random
import time
from pathlib import Path

from lmprog import launch, wire
from lmprog.backends.runtime_backend import RuntimeBackend, describe
from lmprog.lang.branches.branch import Branch
from lmprog.lang.decorator import function

MB, BAR = 1 << 20, 1.1


@function
def read_a_text(s: Branch, seed: int) -> str:
    dice = random.Random(seed)
    s.append(" ".join(f"word{dice.randrange(10_000)}" for _ in range(300)))
    return s.gen(max_tokens=4).value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=80)
    parser.add_argument("--branches", type=int, default=50_000)
    parser.add_argument("--idle-seconds", type=int, default=2)
    asked = parser.parse_args()
    with (
        launch.RuntimeProcess(
            "nano", threads=1, kv_memory_mb=200, kv_idle_seconds=asked.idle_seconds
        ) as runtime,
        RuntimeBackend(runtime.connect("flood")) as backend,
    ):
        reader = read_a_text.using(backend=backend, temperature=0.0, ignore_eos=True)
        reader.run(seed=-1)
        sizes = {"at the start": resident(runtime.pid)}
        reader.map(list(range(asked.prompts)), concurrency=16)
        sizes["after prompts"] = resident(runtime.pid)
        text = (wire.TextPiece("a text that is never read. " * 20),)
        for first in range(1 << 40, (1 << 40) + asked.branches, 500):
            numbers = range(first, first + 500)
            backend.client.post(*map(wire.Open, numbers))
            backend.client.post(*(wire.Append(number, text) for number in numbers))
            backend.client.post(*map(wire.Close, numbers))
        describe(backend)  # all of it has been handled
        sizes["after branches"] = resident(runtime.pid)
        ends = time.monotonic() + asked.idle_seconds + 10.0
        while time.monotonic() < ends and resident(runtime.pid) > BAR * sizes["at the start"]:
            time.sleep(0.5)
        sizes["idle"] = resident(runtime.pid)
    for when, size in sizes.items():
        print(f"{when}: {size / MB:.0f} MB")
    ratio = sizes["idle"] / sizes["at the start"]
    print(f"idle / start {ratio:.2f}, at most {BAR}: {'met' if ratio <= BAR else 'missed'}")


def resident(pid: int) -> int:
    """Bytes of the process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE


if __name__ == "__main__":
    main()
