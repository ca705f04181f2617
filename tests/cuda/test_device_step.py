"""What the device waits for, counted on a driver that computes nothing."""

from __future__ import annotations

import pytest

from benchmarks import device_step
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
    assert (ahead.chunks > 0.5) is is_mixed


def test_steps_that_should_have_chunks_and_have_none_are_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts that are longer than the context are refused."""
    monkeypatch.setattr(device_step, "PROMPT_WORDS", 3_000)
    with pytest.raises(RuntimeError, match="0% of the steps had a chunk"):
        step_times(4, 1.0, 12, is_mixed=True)
