"""Pages of a device in the host's memory: what was evicted comes back as it was, and the answers are
those without.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from lmprog import wire
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter
from lmprog.native import compiler
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.engine.device.host_store import HostStore
from lmprog.runtime.engine.device.tree_attention import TreeAttention
from lmprog.runtime.engine.kept_pages import open_store
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.tier.page_store import LoadEnd, PageKey
from tests.cuda.conftest import MakeKernels
from tests.cuda.test_emulated_engine import alone, answers, engine_of, rig_for

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
PAGES, PAGE_SIZE = 6, 4


def attention_of(kernels_of: MakeKernels) -> TreeAttention:
    shape = AttentionShape((LayerAttention(1.0), LayerAttention(1.0)), 4, 2, 64, 64, torch.bfloat16)
    made = TreeAttention(kernels_of("bf16", 64), shape, PAGES, PAGE_SIZE, 16)
    numbers = torch.arange(made._pool.nbytes // 2, dtype=torch.int32).to(torch.int16)
    made._pool.view(torch.int16).copy_(numbers)
    return made


def contents(attention: TreeAttention, page: int) -> torch.Tensor:
    """Of all layers."""
    attention.driver.event().wait()
    attention.driver.event().wait()
    layers = range(len(attention.shape.layers))
    return torch.stack([attention._pages_of(one)[page].view(torch.int16) for one in layers])


def key(number: int) -> PageKey:
    return PageKey(0, b"root", np.full(PAGE_SIZE, number, np.int32).tobytes())


def test_a_page_comes_back_as_it_was_wherever_it_goes(kernels_of: MakeKernels) -> None:
    attention = attention_of(kernels_of)
    store = HostStore(attention, 3 * attention.bytes_per_page + 5)
    assert store.num_handles == 3
    before = [contents(attention, page).clone() for page in range(PAGES)]
    assert store.store(2, 1, key(1))
    assert store.store(0, 4, key(4))
    attention.driver.compute(lambda: attention.fill(0.0))  # the pages are others' now
    ticket = store.load([0, 2], [3, 0], [key(4), key(1)])
    assert not contents(attention, 3).any(), "nothing is written before the load is asked about"
    assert store.finished() == [LoadEnd(ticket, 2)]
    assert not contents(attention, 3).any(), "nobody has waited for it"
    attention._join_layer(0)
    half = contents(attention, 3)
    assert torch.equal(half[0], before[4][0])
    assert not half[1].any(), "a layer waits for its own part alone"
    attention.join_pages()
    assert torch.equal(contents(attention, 3), before[4])
    assert torch.equal(contents(attention, 0), before[1])
    assert not contents(attention, 1).any(), "no other page is written"
    assert store.finished() == []


def test_only_what_was_stored_under_its_key_is_loaded(kernels_of: MakeKernels) -> None:
    store = HostStore(attention_of(kernels_of), 1 << 20)
    for handle in range(3):
        store.store(handle, handle, key(handle))
    store.forget([2], ())
    first = store.load([0, 1, 1], [3, 4, 5], [key(0), key(1), key(9)])
    second = store.load([2, 0], [3, 4], [key(2), key(0)])
    third = store.load([0], [3], [key(0)])
    store.abandon(third)
    assert store.finished() == [LoadEnd(first, 2), LoadEnd(second, 0), LoadEnd(third, 0)]


def forget(attention: TreeAttention, layer: int) -> None:
    """A layer does not wait for its pages."""
    attention._coming.pop(layer, None)


def join_another(attention: TreeAttention, layer: int) -> None:
    """A layer waits for the pages of the one before it."""
    last = len(attention.shape.layers) - 1
    mark = attention._coming.get(max(layer - 1, 0))
    if mark is not None:
        attention.driver.join(mark)
    if layer == last:
        attention._coming.clear()


@needs_compiler
@pytest.mark.parametrize("fault", [forget, join_another])
def test_a_layer_that_does_not_wait_for_its_pages_is_found(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[TreeAttention, int], None]
) -> None:
    rig = rig_for("emulated", num_pages=12)
    attention = engine_of("emulated").attention
    store = HostStore(attention, 80 * attention.bytes_per_page)
    rig.scheduler = Scheduler(rig.config, 512, store=store)
    assert answers(rig, at_once=2) == alone()
    monkeypatch.setattr(TreeAttention, "_join_layer", fault)
    assert answers(rig, at_once=2) != alone()


@needs_compiler
def test_what_the_device_has_no_place_for_comes_back_and_answers_are_the_same() -> None:
    computed = []
    for has_tier in (False, True):
        rig = rig_for("emulated", num_pages=12)
        attention = engine_of("emulated").attention
        store = HostStore(attention, 80 * attention.bytes_per_page) if has_tier else None
        rig.scheduler = Scheduler(rig.config, 512, store=store)
        assert answers(rig, at_once=2) == alone()
        assert rig.scheduler.stats.evicted_pages > 0
        before = rig.scheduler.stats.computed_tokens
        assert answers(rig, at_once=2) == alone()
        computed.append(rig.scheduler.stats.computed_tokens - before)
        if rig.scheduler.tier is not None:
            assert rig.scheduler.tier.counters.loaded > 5
    assert computed[1] < computed[0] / 2


def test_the_processor_has_no_such_tier() -> None:
    scheduler = SchedulerConfig(num_pages=8)
    config = RuntimeConfig("dummy:tiny", kv_host_mb=1, scheduler=scheduler)
    with pytest.raises(InvalidParameter, match="on the processor there is kv_disk_mb"):
        open_store(config, object(), wire.Fingerprint())


@needs_compiler
def test_a_device_opens_the_tier_that_is_asked_for() -> None:
    config = RuntimeConfig("dummy:tiny", device="emulated", kv_host_mb=1)
    store = open_store(config, engine_of("emulated"), wire.Fingerprint())
    assert isinstance(store, HostStore)
    assert store.num_handles == (1 << 20) // engine_of("emulated").attention.bytes_per_page
    assert min(store.costs.store, store.costs.load) > 0.0
    nothing = RuntimeConfig("dummy:tiny", device="emulated", kv_host_mb=0)
    with pytest.raises(InvalidParameter, match="kv_host_mb = 0 holds no page"):
        open_store(nothing, engine_of("emulated"), wire.Fingerprint())
