"""Short forms of what real processes must survive: `python -m benchmarks.endurance`."""

from __future__ import annotations

import pytest

from benchmarks.endurance import main
from benchmarks.runner import run

TRIALS = [
    ("runtime-kills", 1),
    ("client-kills", 2),
    ("idle-streams", 100),
    ("churn", 80),
    ("mixed", 190),
    ("slow-readers", 2),
    ("clock", 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("trial", "times"), TRIALS)
def test_nothing_hangs_is_wrong_or_left_behind(trial: str, times: int) -> None:
    assert run(main, [trial, "--times", str(times)]) == 0
