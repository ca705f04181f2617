"""Hard patterns of strangers: all are answered, and the work that others wait for stays what it
was.
"""

from __future__ import annotations

import time

from benchmarks.constrained import NUM_BOMBS, TOO_LARGE, Bench, hard_ones
from lmprog import wire

STEPS = 200
MORE_MS = 20.0  # what a step of others may cost more at the 99th percentile


def test_fifty_hard_constraints_are_answered_and_cost_others_little() -> None:
    bench = Bench(time.thread_time)  # the loop's own work: what else the machine does is not in it
    bench.ask(wire.Regex("warm+"), 8, stream=False)
    bench.rest()
    alone, _ = bench.gaps([], STEPS)
    assert not bench.refused
    asked = hard_ones()
    beside, _ = bench.gaps(asked, STEPS)
    assert len(bench.ended) == bench.num_calls == 1 + 4 + 4 + NUM_BOMBS
    too_large = sum(isinstance(bomb, wire.Regex) and TOO_LARGE in bomb.pattern for bomb in asked)
    assert too_large > 0
    assert len(bench.refused) == too_large
    assert all(
        "1000000000" in refusal.message or "repeat" in refusal.message for refusal in bench.refused
    )
    # A step may wait for a constraint and bring the text of two; hardly any does.
    assert len(beside) >= 0.95 * len(alone), "steps still bring the streams text"
    assert beside[int(0.99 * len(beside))] <= alone[int(0.99 * len(alone))] + MORE_MS
