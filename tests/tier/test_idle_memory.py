"""Memory of pages goes back to the system when there has been no work for a while."""

from __future__ import annotations

import mmap
import queue
from array import array
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from lmprog.config import RuntimeConfig
from lmprog.radix import PageAllocator
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.machine.resources import Region
from lmprog.runtime.engine.native.engine import (
    TOKENS_AHEAD,
    TOKENS_AT_REST,
    MemoryAhead,
    NativeEngine,
)
from lmprog.runtime.engine.native.page_memory import NativePageMemory, SlotMemory
from lmprog.runtime.scheduling.batch import build_batch
from lmprog.runtime.scheduling.plan import Plan, Row
from lmprog.runtime.scheduling.scheduler import IdleMemory
from lmprog.runtime.scheduling.sequence import Sequence
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


def test_after_a_pause_the_lowest_free_pages_are_taken_first() -> None:
    """Memory that is mapped in stretches is then mapped again for few of them."""
    rig = Rig(SchedulerConfig(page_size=4, num_pages=16))
    idle, pages = IdleMemory(rig.scheduler, lambda _: None, seconds=1.0), rig.scheduler.pages
    held = pages.allocate(16)
    assert held is not None
    pages.free([*held[8:], *held[:8]])
    idle.turn(0.0)
    assert pages.allocate(2) == [8, 9]
    pages.free([8, 9])
    idle.turn(1.0)
    assert pages.allocate(3) == [0, 1, 2]


def test_free_pages_are_those_that_nobody_holds() -> None:
    pages = PageAllocator(6)
    held = pages.allocate(2)
    assert held is not None
    assert sorted([*held, *pages.free_pages()]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("numbers", [[], [3], [0, 1, 2, 5, 6, 9]])
def test_any_set_of_pages_can_be_given_back(numbers: list[int]) -> None:
    memory().give_back(numbers)


def test_pages_populated_ahead_are_in_memory_and_keep_their_contents() -> None:
    pages = memory()
    contents = np.full(4 * WIDTH, 9, np.uint8).tobytes()
    before = resident()
    pages.write(3, contents)
    if not pages.populate(0, PAGES):
        pytest.skip("this system gives memory only when it is written")
    assert resident() - before > 0.9 * PAGES * 4 * WIDTH
    assert read(pages, 3) == contents


def test_memory_is_asked_for_ahead_of_the_highest_page_and_again_after_it_went_back() -> None:
    asked: list[tuple[int, int]] = []
    ahead = MemoryAhead(lambda *pages: asked.append(pages) is None, 100, 64, pause_seconds=9999)
    for page in [0, 3, 7]:  # half of the 16 pages that 1,024 tokens take
        ahead.reach(page)
    ahead.restart()
    assert asked == [(0, 17)]
    ahead.reach(2)
    ahead.restart()
    assert asked == [(0, 17), (0, 19)]
    ahead.reach(95)
    ahead.restart()
    ahead.close()
    assert asked[2:] == [(0, 100)]


def test_in_a_pause_more_memory_is_asked_for_in_small_stretches() -> None:
    asked: queue.Queue[tuple[int, int]] = queue.Queue()
    ahead = MemoryAhead(lambda *pages: asked.put(pages) is None, 800, 64, pause_seconds=0.0)
    ahead.reach(1)
    assert asked.get(timeout=60) == (0, 18)  # 1,024 tokens beyond the page, while the step goes on
    with pytest.raises(queue.Empty):
        asked.get(timeout=0.05)
    ahead.step_ended()
    goal = 2 + TOKENS_AT_REST // 64
    stretches = [(first, min(first + 4, goal)) for first in range(18, goal, 4)]
    assert [asked.get(timeout=60) for _ in stretches] == stretches
    ahead.restart()
    with pytest.raises(queue.Empty):  # what was given back stays so until there is a step
        asked.get(timeout=0.05)
    ahead.close()


def test_in_a_pause_no_more_than_an_eighth_of_all_is_asked_for() -> None:
    asked: queue.Queue[tuple[int, int]] = queue.Queue()
    ahead = MemoryAhead(lambda *pages: asked.put(pages) is None, 160, 64, pause_seconds=0.0)
    ahead.reach(9)
    ahead.step_ended()
    found = [asked.get(timeout=60) for _ in range(2)]
    ahead.close()
    assert found == [(0, 26), (26, 30)]
    assert asked.empty()


def test_a_system_that_cannot_is_asked_once() -> None:
    asked: list[int] = []
    ahead = MemoryAhead(lambda first, _: bool(asked.append(first)), num_pages=100, page_size=64)
    for page in range(0, 100, 20):
        ahead.reach(page)
        ahead.restart()  # waits
    ahead.close()
    assert len(asked) == 1


def test_the_lowest_pages_are_allocated_first_once_memory_went_back() -> None:
    pages = PageAllocator(8)
    held = pages.allocate(5)
    assert held == [0, 1, 2, 3, 4]
    pages.free([3, 0, 1, 4])
    assert pages.allocate(1) == [3]
    pages.prefer_low()
    assert pages.allocate(4) == [0, 1, 4, 5]


def test_a_step_asks_for_the_memory_of_the_pages_after_its_own() -> None:
    engine = load_engine(RuntimeConfig("dummy:512x4", kv_memory_mb=64, threads=1))
    if not isinstance(engine, NativeEngine):
        pytest.skip("the native engine cannot run here")
    page_size, pages = engine.memory.page_size, engine.page_memory()
    row = Row(cast(Sequence, None), array("i", [1]), 0, 1, array("i", [0]), 0)
    before = resident()
    engine.forward(build_batch(Plan((row,)), page_size))
    engine.give_back([])  # waits for what was asked for
    if not pages.populate(0, 1):
        pytest.skip("this system gives memory only when it is written")
    wanted = pages.page_bytes * min(TOKENS_AHEAD // page_size, engine.num_pages)
    assert wanted > 1 << 20
    assert resident() - before > 0.9 * wanted


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_memory_whose_thread_has_failed() -> None:
    def failing(first: int, last: int) -> bool:
        raise OSError("told to fail")

    ahead = MemoryAhead(failing, num_pages=100, page_size=64)
    ahead.reach(0)
    ahead.restart()
    ahead.close()


def test_a_state_is_read_and_written_in_parts_and_given_back_as_a_whole() -> None:
    """Two layers of 100,000 and 70,000 bytes, in parts of 40,000; behind the pages by number."""
    slots, widths, size = 3, (100_000, 70_000), 40_000
    region = Region(sum(4 * width + 64 for width in widths) + 4 * PAGES * (WIDTH + 64))
    layers = [region.take((slots + 1) * width) for width in widths]
    pages = NativePageMemory(region, [region.take(PAGES * size)], PAGES)
    pages.slots = SlotMemory(region, layers, slots + 1, pages.page_bytes)
    assert pages.slots.num_parts == 5
    dice = np.random.default_rng(1)
    kept = [dice.integers(1, 256, sum(widths), np.uint8).tobytes() for _ in range(slots)]
    for slot, state in enumerate(kept):
        for part in range(5):
            piece = state[part * size : (part + 1) * size].ljust(size, b"\0")
            pages.write(PAGES + 5 * slot + part, piece)
    assert layers[0].reshape(slots + 1, -1)[1].tobytes() == kept[1][: widths[0]]
    assert layers[1].reshape(slots + 1, -1)[1].tobytes() == kept[1][widths[0] :]
    pages.give_back([3, *range(PAGES + 5, PAGES + 10)])
    for slot in (0, 2):
        parts = b"".join(read(pages, PAGES + 5 * slot + part) for part in range(5))
        assert parts[: sum(widths)] == kept[slot]
    inside = layers[0].reshape(slots + 1, -1)[1]
    assert not inside[mmap.PAGESIZE : -mmap.PAGESIZE].any(), "its pages of the system are zeros"
