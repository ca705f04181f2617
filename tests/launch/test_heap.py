"""A process of ours is not as large as all that it has ever read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise

import pytest

from lmprog.heap import GROWN, MOST_LOOKS, GrowthWatch, _glibc
from lmprog.linux import is_linux

MIB = 1 << 20
needs_glibc = pytest.mark.skipif(
    not is_linux() or _glibc() is None, reason="another allocator, or none that tells"
)


class Process:
    """Of a size that the test says; what can be given back is free."""

    def __init__(self) -> None:
        self.held = self.free = 0
        self.times = 0

    def resident(self) -> int:
        return self.held + self.free

    def give_back(self) -> None:
        self.free = 0
        self.times += 1


def watched(process: Process, sizes: Sequence[tuple[int, int]]) -> list[int]:
    """How often memory was given back after each look."""
    watch, found = GrowthWatch(process.resident, process.give_back), []
    for process.held, process.free in sizes:
        watch.look()
        found.append(process.times)
    return found


def test_memory_is_given_back_when_the_process_has_grown() -> None:
    assert watched(Process(), [(10, GROWN - 11), (10, GROWN - 10)]) == [0, 1]
    assert watched(Process(), [(10, GROWN), (20, GROWN)]) == [1, 2]


def test_growth_counts_from_the_smallest_size_since() -> None:
    process = Process()
    process.held = 50
    sizes = (GROWN + 49, 0), (9, 0), (GROWN + 8, 0), (GROWN + 9, 0)
    assert watched(process, sizes) == [0, 0, 0, 1]


def test_what_was_held_when_it_had_grown_is_given_back_later_and_asked_for_ever_more_seldom() -> (
    None
):
    looks = watched(Process(), [(GROWN, 0)] * 400)
    times = [number for number, (a, b) in enumerate(pairwise([0, *looks])) if b > a]
    assert times[:8] == [0, 1, 3, 7, 15, 31, 63, 127]
    assert {b - a for a, b in pairwise(times[7:])} == {MOST_LOOKS}
    process = Process()
    watched(process, [(GROWN, 0), (0, GROWN)])
    assert process.free == 0


PROGRAM = """
import threading, time
from lmprog.heap import GROWN, kept_small
from lmprog.linux import resident_bytes

def work():
    for size in (50_000, 500_000, 5_000_000):
        blocks = [bytes(size) for _ in range(200_000_000 // size)]
        between.append(blocks[-1][:1000])  # keeps the end of the heap where it is

with kept_small():
    between = []
    before = resident_bytes()
    for _ in range(3):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
            thread.join()
    deadline = time.monotonic() + 60
    while resident_bytes() - before > 2 * GROWN and time.monotonic() < deadline:
        time.sleep(0.1)
    print(resident_bytes() - before)
"""


@needs_glibc
def test_threads_that_read_much_leave_the_process_small() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    assert int(ran.stdout) < 3 * GROWN
