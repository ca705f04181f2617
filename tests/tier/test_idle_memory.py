"""Memory of pages goes back to the system when there has been no work for a while."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from lmprog.radix import PageAllocator
from lmprog.runtime.engine.native.page_memory import NativePageMemory
from lmprog.runtime.engine.region import Region
from lmprog.runtime.scheduling.idle_memory import IdleMemory
from tests.runtime.rig import Rig, SchedulerConfig

PAGES, WIDTH = 64, 40_000


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def memory() -> NativePageMemory:
    region = Region(4 * PAGES * (WIDTH + 64))
    parts = [region.take(PAGES * WIDTH) for _ in range(4)]
    return NativePageMemory(region, parts, PAGES)


def read(pages: NativePageMemory, page: int) -> bytes:
    into = bytearray(pages.page_bytes)
    pages.read(page, into)
    return bytes(into)


def test_pages_given_back_leave_memory_and_others_keep_their_contents() -> None:
    pages = memory()
    contents = [np.full(4 * WIDTH, 1 + page, np.uint8).tobytes() for page in range(PAGES)]
    before = resident()
    for page in range(PAGES):
        pages.write(page, contents[page])
    full = resident()
    kept = {0, 7, 8, 31, 63}
    pages.give_back([page for page in range(PAGES) if page not in kept])
    assert all(read(pages, page) == contents[page] for page in kept)
    size = PAGES * 4 * WIDTH
    assert full - before > 0.9 * size
    assert resident() - before < 0.4 * size
    pages.write(5, contents[5])
    assert read(pages, 5) == contents[5]


def test_nothing_is_given_back_twice_or_while_there_is_work() -> None:
    given: list[int] = []
    rig = Rig(SchedulerConfig(page_size=4, num_pages=16))
    idle = IdleMemory(rig.scheduler, lambda pages: given.append(len(pages)), seconds=10.0)
    rig.gen(range(9), 4)
    rig.run()
    idle.turn(0.0)
    idle.turn(9.9)
    assert given == []
    cached = rig.scheduler.tree.num_cached
    assert cached > 0
    idle.turn(10.0)
    idle.turn(99.0)
    assert given == [16]
    assert rig.scheduler.tree.num_cached == 0
    rig.scheduler.check()
    rig.gen(range(9), 4)
    rig.run()
    idle.turn(100.0)
    assert given == [16]
    idle.turn(110.0)
    assert given == [16, 16]


def test_what_a_branch_stands_on_is_kept() -> None:
    rig = Rig(SchedulerConfig(page_size=4, num_pages=16))
    given: list[list[int]] = []
    idle = IdleMemory(rig.scheduler, lambda pages: given.append(list(pages)), seconds=1.0)
    rig.gen(range(9), 4)
    rig.run()
    node = next(node for node in rig.scheduler.tree.walk() if not node.children)
    rig.scheduler.pins.pin(node, 1)
    idle.turn(0.0)
    idle.turn(1.0)
    assert rig.scheduler.tree.num_cached > 0
    assert not set(given[0]) & set(rig.scheduler.tree.pages_held())


def test_free_pages_are_those_that_nobody_holds() -> None:
    pages = PageAllocator(6)
    held = pages.allocate(2)
    assert held is not None
    assert sorted([*held, *pages.free_pages()]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("numbers", [[], [3], [0, 1, 2, 5, 6, 9]])
def test_any_set_of_pages_can_be_given_back(numbers: list[int]) -> None:
    memory().give_back(numbers)
