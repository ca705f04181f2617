"""Another process has taken the device's memory: whichever of the pool's requests for memory finds
none, answers are right, or one call is told to come again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache, partial

import pytest

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import Overloaded
from lmprog.native import compiler
from lmprog.runtime.engine.device.device_engine import DeviceEngine
from lmprog.runtime.engine.device.device_memory import DeviceMemoryFull
from lmprog.runtime.engine.device.emulated_driver import EmulatedDriver, EmulatedMemory
from lmprog.runtime.engine.device.host_store import HostStore
from lmprog.runtime.engine.engine import select_engine
from lmprog.runtime.scheduling.batch import build_batch
from lmprog.runtime.scheduling.logits_requests import Progress
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence
from lmprog.runtime.steps import PlainSteps
from lmprog.runtime.steps_ahead import StepsAhead
from tests.runtime.rig import Rig

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
PAGES = 24
dice = random.Random(8)
PROMPTS = [[dice.randrange(256) for _ in range(count)] for count in (40, 20, 70)]


@cache
def engine() -> DeviceEngine:
    """Its pages are larger than elsewhere, so that few share a stretch of memory."""
    config = RuntimeConfig(
        "dummy:tiny",
        dtype="float32",
        device="emulated",
        context_len=256,
        kv_pool="virtual",
        scheduler=SchedulerConfig(page_size=32, num_pages=PAGES, token_budget=64),
    )
    made = select_engine(config).engine
    assert isinstance(made, DeviceEngine)
    return made


class Fault:
    """Memory asked for the `at`-th time, and `count` times in all, is not there."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, count: int) -> None:
        self.num_asked = self.num_refused = 0
        self.at, self.count = at, count
        original = EmulatedMemory.create

        def create(memory: EmulatedMemory, num_bytes: int) -> int:
            self.num_asked += 1
            if self.at < self.num_asked <= self.at + self.count:
                self.num_refused += 1
                raise DeviceMemoryFull("somebody else has it")
            return original(memory, num_bytes)

        patch.setattr(EmulatedMemory, "create", create)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = engine()
    made._give_back(range(PAGES))
    config = SchedulerConfig(page_size=32, num_pages=PAGES, token_budget=64, speculation="off")
    yield Rig(config, 256, 0, made, made.sampler)
    made._give_back(range(PAGES))
    assert driver().mapped.num_handles == 0, "nothing stays behind"


def driver() -> EmulatedDriver:
    found = engine().driver
    assert isinstance(found, EmulatedDriver)
    return found


def run(rig: Rig, is_ahead: bool) -> tuple[list[Sequence], list[Progress]]:
    """All prompts at once. Returns their sequences, and what failed."""
    kind = StepsAhead if is_ahead else PlainSteps
    steps = kind(rig.scheduler, rig.engine, rig.sampler, partial(build_batch, page_size=32))
    sequences = [rig.gen(prompt, 3) for prompt in PROMPTS]
    failed: list[Progress] = []
    for _ in range(200):
        if rig.scheduler.idle:
            return sequences, failed
        for one in steps.turn():
            if one.ended:
                failed += [one] if one.error is not None else []
                node = rig.scheduler.end(one.sequence)
                if node is not None:
                    rig.scheduler.unpin(node)
        rig.scheduler.check()
    raise AssertionError("never idle")


@cache
def expected() -> list[list[int]]:
    config = SchedulerConfig(page_size=32, num_pages=PAGES, token_budget=64, speculation="off")
    rig = Rig(config, 256, 0, engine(), engine().sampler)
    found = [list(one.tokens) for one in run(rig, is_ahead=False)[0]]
    engine()._give_back(range(PAGES))
    return found


def check(sequences: list[Sequence], failed: list[Progress]) -> None:
    ended = {one.sequence for one in failed}
    for sequence, right in zip(sequences, expected(), strict=True):
        assert list(sequence.tokens) == right[: len(sequence.tokens)]
        assert sequence in ended or len(sequence.tokens) == len(right)
    assert all(isinstance(one.error, Overloaded) for one in failed)


def num_requests(rig: Rig, patch: pytest.MonkeyPatch) -> int:
    with patch.context() as own:
        fault = Fault(own, 0, 0)
        run(rig, is_ahead=True)
    rig.scheduler.tree.clear()
    engine()._give_back(range(PAGES))
    return fault.num_asked


def test_memory_that_is_missing_once_costs_nobody_an_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever request it is."""
    expected()
    most = num_requests(rig, monkeypatch)
    assert most >= 6
    for at in range(most):
        with monkeypatch.context() as own:
            fault = Fault(own, at, 1)
            sequences, failed = run(rig, is_ahead=at % 2 == 0)
        assert fault.num_refused == 1
        assert not failed
        check(sequences, failed)
        rig.scheduler.tree.clear()
        engine()._give_back(range(PAGES))


def test_memory_that_stays_away_ends_the_newest_calls_and_no_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected()
    num_failed = []
    for at in range(0, num_requests(rig, monkeypatch), 2):
        with monkeypatch.context() as own:
            Fault(own, at, 1 << 30)
            sequences, failed = run(rig, is_ahead=at % 4 == 0)
        check(sequences, failed)
        num_failed.append(len(failed))
        rig.scheduler.tree.clear()
        engine()._give_back(range(PAGES))
        again, failed = run(rig, is_ahead=True)
        assert not failed, "once there is memory again"
        check(again, failed)
        rig.scheduler.tree.clear()
        engine()._give_back(range(PAGES))
    assert num_failed[0] == len(PROMPTS), "not a page has memory"
    assert {1, 2} & set(num_failed), "some are answered with what there is"


def test_cached_pages_give_their_memory_to_a_step_that_needs_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier answer left is evicted, and the pool has no more memory than it had."""
    expected()
    rig.gen([7] * 230, 2)
    rig.run()
    mapped = driver().mapped.num_handles
    with monkeypatch.context() as own:
        own.setattr(driver().count, "limit", driver().count.used)
        sequences, failed = run(rig, is_ahead=True)
    assert not failed
    assert rig.scheduler.stats.evicted_pages > 0
    assert 0 < driver().mapped.num_handles <= mapped
    check(sequences, failed)


def test_a_page_of_the_host_that_finds_no_memory_is_computed_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected()
    attention = engine().attention
    store = HostStore(attention, 40 * attention.bytes_per_page)
    rig.scheduler = Scheduler(rig.config, 256, store=store)
    run(rig, is_ahead=False)
    rig.scheduler.tree.evict(PAGES)
    engine()._give_back(rig.scheduler.pages.free_pages())
    with monkeypatch.context() as own:
        fault = Fault(own, 0, 1)
        sequences, failed = run(rig, is_ahead=False)
    assert fault.num_refused == 1
    assert not failed
    check(sequences, failed)
