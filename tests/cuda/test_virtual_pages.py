"""Pages whose memory comes when they are written and goes when they have been idle: answers are the
same, addresses stay, and the device's memory returns.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter
from lmprog.native import compiler
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.engine.device import loading
from lmprog.runtime.engine.device.device_engine import DeviceEngine
from lmprog.runtime.engine.device.device_memory import DeviceMemoryFull
from lmprog.runtime.engine.device.driver import ModuleKey
from lmprog.runtime.engine.device.emulated_driver import (
    EmulatedDriver,
    EmulatedMemory,
    KernelFault,
    MemoryCount,
    MemoryFault,
    emulated_kernels,
)
from lmprog.runtime.engine.device.host_store import HostStore
from lmprog.runtime.engine.device.page_pool import VirtualPages
from lmprog.runtime.engine.device.tree_attention import TreeAttention
from lmprog.runtime.engine.engine import select_engine
from lmprog.runtime.engine.kept_pages import page_release
from lmprog.runtime.scheduling.batch import PagesFull
from lmprog.runtime.scheduling.scheduler import IdleMemory, Scheduler
from tests.cuda.conftest import MakeKernels
from tests.cuda.test_emulated_engine import alone, answers, rig_for
from tests.runtime.rig import Rig

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
SIZE = 1 << 12
PAGES = 64


class Verbs(EmulatedMemory):
    """Memory without kernels: what they may touch is written down."""

    def __init__(self, limit: int | None = None) -> None:
        self.touchable: dict[int, int] = {}
        self.counted = MemoryCount(limit)
        super().__init__(
            self.counted, self.touchable.__setitem__, self.touchable.__delitem__, granularity=SIZE
        )


# --- the verbs


def test_a_driver_refuses_what_it_must() -> None:
    verbs = Verbs(limit=2 * SIZE)
    base = verbs.reserve(4 * SIZE).data_ptr()
    first, second = verbs.create(SIZE), verbs.create(SIZE)
    with pytest.raises(DeviceMemoryFull, match=f"0 of the device's {2 * SIZE} are free"):
        verbs.create(SIZE)
    verbs.map(base, SIZE, first)
    wrong = [
        lambda: verbs.map(base, SIZE, second),  # has memory
        lambda: verbs.map(base + SIZE, SIZE, first),  # mapped twice
        lambda: verbs.map(base + 4 * SIZE, SIZE, second),  # not reserved
        lambda: verbs.map(base + 8, SIZE, second),
        lambda: verbs.set_access(base, 2 * SIZE),  # not all mapped
        lambda: verbs.unmap(base + SIZE, SIZE),
        lambda: verbs.free(base, 4 * SIZE),  # memory behind it
        lambda: verbs.release(99),
    ]
    for verb in wrong:
        with pytest.raises(MemoryFault):
            verb()
    assert verbs.touchable == {}, "mapped, but nobody has access"
    verbs.set_access(base, SIZE)
    assert verbs.touchable == {base: SIZE}
    verbs.release(first)
    assert verbs.counted.used == 2 * SIZE, "it is still mapped"
    verbs.unmap(base, SIZE)
    verbs.release(second)
    assert (verbs.counted.used, verbs.num_handles, verbs.touchable) == (0, 0, {})
    verbs.free(base, 4 * SIZE)


# --- the pool


@pytest.mark.parametrize("page_bytes", [SIZE // 8, SIZE, 3 * SIZE, SIZE // 4 * 3, SIZE // 16 * 5])
@pytest.mark.parametrize("seed", range(3))
def test_exactly_what_pages_in_use_need_is_mapped(page_bytes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers, verbs = 3, Verbs()
    pool = VirtualPages(verbs, layers, PAGES, page_bytes)
    layer_bytes = pool.pages_per_layer * page_bytes
    assert layer_bytes % SIZE == 0
    assert len(pool.memory) == layers * layer_bytes
    base, used = pool.memory.data_ptr(), set()
    for _ in range(8):
        new = rng.choice(PAGES, 5, replace=False)
        pool.back(new.astype(np.int32))
        used |= set(new.tolist())
        if rng.random() < 0.6:
            used -= set(rng.choice(PAGES, 40, replace=False).tolist())
            pool.give_back([page for page in range(PAGES) if page not in used])
            touched = {
                (layer * layer_bytes + page * page_bytes + byte) // SIZE * SIZE
                for layer in range(layers)
                for page in used
                for byte in range(0, page_bytes, SIZE // 16)
            }
            assert {at - base for at in verbs.touchable} == touched
        else:
            assert all(
                base + (layer * layer_bytes + page * page_bytes) // SIZE * SIZE in verbs.touchable
                for layer in range(layers)
                for page in used
            )
        assert pool.mapped_bytes == verbs.mapped_bytes == verbs.counted.used
        assert verbs.num_handles == len(verbs.touchable)
    pool.close()
    assert (verbs.num_handles, verbs.counted.used, verbs.touchable) == (0, 0, {})


def test_a_full_device_leaves_what_was_mapped_as_it_was() -> None:
    layers, verbs = 3, Verbs(limit=3 * SIZE * 2 + SIZE)
    pool = VirtualPages(verbs, layers, PAGES, SIZE)
    pool.back(np.array([4], np.int32))
    pool.memory[4 * SIZE : 5 * SIZE] = 7
    with pytest.raises(DeviceMemoryFull):
        pool.back(np.array([0, 1], np.int32))
    assert verbs.mapped_bytes == 2 * layers * SIZE, "whole rows only"
    assert bool((pool.memory[4 * SIZE : 5 * SIZE] == 7).all())
    pool.give_back([page for page in range(PAGES) if page != 1])
    pool.back(np.array([1, 2], np.int32))
    assert verbs.mapped_bytes == 2 * layers * SIZE


def test_a_pool_that_is_gone_leaves_no_memory_behind() -> None:
    verbs = Verbs()
    pool = VirtualPages(verbs, 2, PAGES, SIZE)
    pool.back(np.arange(3, dtype=np.int32))
    assert verbs.counted.used == 6 * SIZE
    del pool
    assert (verbs.counted.used, verbs.num_handles) == (0, 0)


# --- kernels


def test_kernels_are_stopped_at_addresses_without_memory(kernels_of: MakeKernels) -> None:
    shape = AttentionShape((LayerAttention(1.0), LayerAttention(1.0)), 4, 2, 64, 64, torch.bfloat16)
    attention = TreeAttention(kernels_of("bf16", 64), shape, 64, 16, 16, is_virtual=True)
    driver, staging = attention.driver, attention.driver.memory(attention.bytes_per_page)
    attention.send_page(0, staging)
    driver.event().wait()
    assert bool(staging.view(torch.bfloat16).isnan().all()), "fresh memory is undefined"
    # Unmapped while work with it is under way: an engine waits first.
    attention.send_page(0, staging)
    attention.pages.give_back(range(64))
    with pytest.raises(KernelFault, match="belong to no allocation"):
        driver.event().wait()


# --- the engine


@cache
def virtual_engine() -> DeviceEngine:
    scheduler = SchedulerConfig(page_size=16, num_pages=64, token_budget=128)
    config = RuntimeConfig(
        "dummy:tiny",
        dtype="float32",
        device="emulated",
        context_len=512,
        kv_pool="virtual",
        scheduler=scheduler,
    )
    engine = select_engine(config).engine
    assert isinstance(engine, DeviceEngine)
    return engine


def virtual_rig(engine: DeviceEngine, preempt_every: int = 0, **changes: int) -> Rig:
    rig = rig_for("cpu", preempt_every, **changes)
    return Rig(rig.config, 512, preempt_every, engine, engine.sampler)


def idle_memory(rig: Rig) -> IdleMemory:
    give_back = page_release(rig.engine)
    assert give_back is not None
    give_back(range(64))  # what an earlier test left
    return IdleMemory(rig.scheduler, give_back, seconds=10.0)


@needs_compiler
@pytest.mark.parametrize(
    ("changes", "at_once", "preempt_every"),
    [({}, 10, 0), ({"max_chunk": 16}, 5, 3), ({"num_pages": 8}, 10, 0)],
    ids=["batch of 10", "preempted every third step", "hardly any memory"],
)
def test_memory_comes_with_work_and_goes_when_idle(
    changes: dict[str, int], at_once: int, preempt_every: int
) -> None:
    rig = virtual_rig(virtual_engine(), preempt_every, **changes)
    idle, pages = idle_memory(rig), rig.engine.attention.pages
    count, base = rig.engine.driver.count, pages.memory.data_ptr()
    start, most = count.used, 0
    for turn in range(2):
        assert answers(rig, at_once) == alone()
        assert pages.mapped_bytes > 0
        most = max(most, pages.mapped_bytes)
        idle.turn(20.0 * turn)
        assert pages.mapped_bytes > 0, "not at once"
        idle.turn(20.0 * turn + 10.0)
        assert pages.mapped_bytes == 0
        assert count.used <= start + 0.1 * most
    assert rig.engine.attention.pages.memory.data_ptr() == base
    assert rig.engine.driver.mapped.num_handles == 0
    if preempt_every:
        assert rig.scheduler.stats.preemptions > 2


@needs_compiler
def test_little_work_takes_little_memory_also_after_much() -> None:
    rig = virtual_rig(virtual_engine())
    idle, pages = idle_memory(rig), rig.engine.attention.pages
    rig.gen(range(10), 4)
    rig.run()
    little = pages.mapped_bytes
    assert answers(rig, at_once=10) == alone()
    assert pages.mapped_bytes > 2 * little
    idle.turn(0.0)
    idle.turn(10.0)
    rig.gen(range(10), 4)
    rig.run()
    assert pages.mapped_bytes == little


@needs_compiler
def test_graphs_outlive_the_memory_of_the_pages_they_read() -> None:
    engine = virtual_engine()
    rig = virtual_rig(engine)
    idle = idle_memory(rig)
    assert answers(rig, at_once=10) == alone()
    graphs, before = dict(engine._graphs), engine.num_replays
    assert graphs
    idle.turn(0.0)
    idle.turn(10.0)
    assert answers(rig, at_once=10) == alone()
    assert engine.num_replays > before
    assert engine._graphs == graphs, "none was captured anew"


@needs_compiler
def test_pages_of_a_live_branch_keep_their_memory() -> None:
    rig = virtual_rig(virtual_engine())
    idle, engine = idle_memory(rig), rig.engine
    assert answers(rig, at_once=10) == alone()
    node = next(node for node in rig.scheduler.tree.walk() if not node.children)
    rig.scheduler.pins.pin(node, 1)
    idle.turn(0.0)
    idle.turn(10.0)
    held = list(rig.scheduler.tree.pages_held())
    assert held
    attention = engine.attention
    staging = engine.driver.memory(attention.bytes_per_page)
    attention.send_page(held[0], staging)
    engine.finish()
    assert bool(staging.view(torch.float32).isfinite().any())
    assert 0 < attention.pages.mapped_bytes < 64 * attention.bytes_per_page


@needs_compiler
def test_the_second_tier_gets_what_goes_and_gives_it_back() -> None:
    rig = virtual_rig(virtual_engine(), num_pages=12)
    attention = rig.engine.attention
    rig.scheduler = Scheduler(
        rig.config, 512, store=HostStore(attention, 80 * attention.bytes_per_page)
    )
    idle = idle_memory(rig)
    assert answers(rig, at_once=2) == alone()
    assert rig.scheduler.stats.evicted_pages > 0
    idle.turn(0.0)
    idle.turn(10.0)
    assert attention.pages.mapped_bytes == 0
    computed = rig.scheduler.stats.computed_tokens
    assert answers(rig, at_once=2) == alone()
    assert rig.scheduler.tier is not None
    assert rig.scheduler.tier.counters.loaded > 5
    assert rig.scheduler.stats.computed_tokens - computed < computed / 2


@needs_compiler
def test_a_step_that_finds_no_memory_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = virtual_engine()
    idle_memory(virtual_rig(engine))
    count = engine.driver.count  # type: ignore[attr-defined]
    monkeypatch.setattr(count, "limit", count.used)
    rig = virtual_rig(engine)
    rig.gen(range(10), 4)
    with pytest.raises(PagesFull):
        rig.step()
    monkeypatch.setattr(count, "limit", None)
    assert answers(virtual_rig(engine), at_once=10) == alone()


@needs_compiler
def test_an_engine_without_such_a_pool_gives_nothing_back() -> None:
    engine = rig_for("emulated").engine
    assert page_release(engine) is None


# --- the option


def test_the_processor_refuses_a_virtual_pool() -> None:
    with pytest.raises(InvalidParameter, match="kv_pool = 'virtual' is of a device"):
        select_engine(RuntimeConfig("dummy:tiny", kv_pool="virtual"))


@needs_compiler
def test_a_device_without_virtual_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    key = ModuleKey("float", 32)

    class Plain(EmulatedDriver):
        def virtual_memory(self) -> EmulatedMemory:
            raise loading.NotSupported("has none; leave out kv_pool")

    monkeypatch.setattr(loading, "open_driver", lambda *_: Plain(emulated_kernels(key)))
    virtual_engine.cache_clear()
    with pytest.raises(loading.NotSupported, match="leave out kv_pool"):
        virtual_engine()
    virtual_engine.cache_clear()
