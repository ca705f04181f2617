"""Pages are handed out, come back, and are never in two places."""

from __future__ import annotations

import pytest

from lmprog.radix import PageAllocator


def test_taken_pages_are_distinct_and_counted() -> None:
    pages = PageAllocator(4)
    assert pages.allocate(3) == [0, 1, 2]
    assert pages.num_free == 1
    pages.check([2, 0, 1])


def test_nothing_is_taken_when_fewer_pages_are_free() -> None:
    pages = PageAllocator(2)
    assert pages.allocate(3) is None
    assert pages.num_free == 2


def test_no_pages_may_be_asked_for() -> None:
    pages = PageAllocator(0)
    assert pages.allocate(0) == []
    assert pages.allocate(1) is None


def test_a_page_given_back_is_handed_out_again() -> None:
    pages = PageAllocator(2)
    pages.allocate(2)
    pages.free([1])
    assert pages.allocate(1) == [1]


@pytest.mark.parametrize("back", [[3], [0, 0], [7]])
def test_a_page_that_is_not_taken_cannot_be_given_back(back: list[int]) -> None:
    pages = PageAllocator(4)
    pages.allocate(2)
    with pytest.raises(AssertionError):
        pages.free(back)


@pytest.mark.parametrize(
    ("held", "fault"),
    [([0], "leaked"), ([0, 1, 1], "two owners"), ([0, 1, 2], "owned though free")],
)
def test_check_finds_lost_and_doubled_pages(held: list[int], fault: str) -> None:
    pages = PageAllocator(4)
    pages.allocate(2)
    with pytest.raises(AssertionError, match=fault):
        pages.check(held)
