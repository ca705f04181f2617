"""Pages from a budget, and views that start on a cache line."""

from __future__ import annotations

import pytest
import torch

from lmprog.errors import InvalidParameter
from lmprog.runtime.engine.attention.backend import KvPool
from lmprog.runtime.engine.machine.resources import ALIGNMENT, aligned, pages_that_fit


def test_only_whole_pages_fit() -> None:
    assert pages_that_fit(100, 30) == 3
    assert pages_that_fit(30, 30) == 1


def test_a_budget_below_one_page_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="one needs 30 bytes"):
        pages_that_fit(29, 30)


def test_views_are_aligned_and_do_not_overlap() -> None:
    pool = KvPool(aligned(3 * 4) + aligned(5 * 2))
    first, second = pool.take((3,), torch.float32), pool.take((5, 1), torch.bfloat16)
    assert first.data_ptr() % ALIGNMENT == 0
    assert second.data_ptr() % ALIGNMENT == 0
    first.fill_(1.0)
    second.fill_(2.0)
    assert first.tolist() == [1.0, 1.0, 1.0]


def test_a_pool_that_is_used_up_is_an_error() -> None:
    pool = KvPool(64)
    pool.take((16,), torch.float32)
    with pytest.raises(ValueError, match="64 bytes"):
        pool.take((1,), torch.float32)


def test_views_keep_the_memory_alive() -> None:
    view = KvPool(1 << 16).take((1 << 14,), torch.float32)
    view.fill_(3.0)
    assert float(view.sum()) == 3.0 * (1 << 14)
