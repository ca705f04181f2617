"""What a step costs outside of the model, in calls of Python functions: the same on every machine,
unlike time (`python -m benchmarks.host_step`).
"""

from __future__ import annotations

import sys
from types import FrameType

from benchmarks.host_step import decoding_loop
from lmprog.runtime.loop import Loop

STEPS = 16
"""As many as a page has slots: each sequence needs one new page in them."""
MOST_PER_ROW = 20
"""Calls of Python functions for one more token of one more sequence, from plan to reply."""


def calls_in_steps(loop: Loop) -> int:
    """Python functions that are called in so many steps; functions in C are not counted."""
    num_calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for _ in range(STEPS):
            loop.step()
    finally:
        sys.setprofile(before)
    return num_calls


def test_a_row_that_decodes_costs_few_calls() -> None:
    few, many = (calls_in_steps(decoding_loop(rows, 2 * STEPS)) for rows in (4, 36))
    assert (many - few) / (32 * STEPS) <= MOST_PER_ROW
