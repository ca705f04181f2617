"""What the device waits for, counted on a driver that computes nothing."""

from __future__ import annotations

import pytest

from benchmarks.device_step import step_times

STEPS = 34
"""Two steps in this many are planned with everything known."""


@pytest.mark.parametrize("is_mixed", [False, True], ids=["decodes", "beside chunks of a prompt"])
def test_a_device_hardly_waits_for_the_host_where_the_next_step_has_begun(is_mixed: bool) -> None:
    """A step of 200 ms hides what the host does, on any machine; only processor time is counted."""
    ahead, plain = (
        step_times(16, 200.0, STEPS, is_ahead, is_mixed=is_mixed) for is_ahead in (True, False)
    )
    assert ahead.host > 0.0
    assert plain.exposed > 0.0
    assert ahead.exposed < plain.exposed / 3
