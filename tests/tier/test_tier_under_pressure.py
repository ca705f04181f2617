"""With a second tier of the size of what all programs need, almost nothing is computed twice."""

from __future__ import annotations

import pytest

from benchmarks.memory_pressure import outcome


@pytest.mark.parametrize(("answer", "think"), [(8, 0.0), (8, 100.0), (96, 100.0)])
def test_half_the_memory_and_a_tier_find_what_can_be_found(answer: int, think: float) -> None:
    found = outcome("programs that fit, second tier", 1, answer, think, memory=0.5, scale=0.25)
    assert found.hits >= 0.98
    assert found.computed <= 1.05
