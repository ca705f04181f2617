"""Whatever fails, at any moment, fails cleanly: a short form of `python -m
tests.simulation.every_failure`.
"""

from __future__ import annotations

import logging

import pytest

from lmprog.runtime.programs.delivery import CallCompletion
from tests.simulation.constrained_failures import CONSTRAINED_KINDS
from tests.simulation.every_failure import KINDS, strike_all


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of failures are logged with their traces."""
    caplog.set_level(logging.CRITICAL + 1, logger="lmprog")


def test_every_so_many_calls_of_each_kind_fail_cleanly() -> None:
    points = strike_all(1, steps=12, every=20)
    assert {kind.__name__ for kind in [*KINDS, *CONSTRAINED_KINDS]} - set(points) <= {
        "fail_tier_read"
    }


def test_a_failure_that_is_not_clean_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    original = CallCompletion.fail
    monkeypatch.setattr(
        CallCompletion,
        "fail",
        lambda self, call, error: None if error.code == "model" else original(self, call, error),
    )
    with pytest.raises(AssertionError, match="fail_forward at call"):
        strike_all(1, steps=15, every=2)
