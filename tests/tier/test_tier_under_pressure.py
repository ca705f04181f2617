"""With a second tier of the size of what all programs need, almost nothing is computed twice, though
one step may evict more pages than the tier takes at a time."""

from __future__ import annotations

import pytest

from benchmarks.virtual_time import outcome


@pytest.mark.parametrize(("answer", "think"), [(8, 0.0), (8, 100.0), (96, 0.0), (96, 100.0)])
def test_half_the_memory_and_a_tier_find_what_can_be_found(answer: int, think: float) -> None:
    found = outcome("programs that fit, second tier", 1, answer, think, memory=0.5, scale=0.25)
    assert found.hits >= 0.98
    assert found.computed <= 1.05


@pytest.mark.parametrize("think", [0.0, 10.0])
def test_in_a_quarter_of_the_memory_what_was_loaded_and_evicted_again_is_loaded_again(
    think: float,
) -> None:
    """Loading it twice more costs less than computing it."""
    found = outcome("programs that fit, second tier", 1, 8, think, memory=0.25, scale=0.25)
    assert found.hits >= 0.995
    assert found.computed <= 1.005
