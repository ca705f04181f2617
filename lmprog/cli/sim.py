"""`lmprog sim`: the core against a simulated model, every step checked."""

from __future__ import annotations

import argparse
import gc
import logging
from pathlib import Path

from lmprog.simulation.world_runs import SimulationRun, main


def run(given: argparse.Namespace) -> int:
    """Exit code 1 where there was a violation."""
    # The faults that it injects on purpose are logged like any others; that would only clutter
    # the output.
    logging.getLogger("lmprog").setLevel(logging.CRITICAL)
    gc.freeze()  # what was loaded lives as long as the process
    worlds = 100 if given.worlds is None and given.hours is None else given.worlds
    return main(
        SimulationRun(
            seed=given.seed,
            steps=given.steps,
            worlds=worlds,
            hours=given.hours,
            processes=given.processes,
            full_check_every=given.check_every,
            only_states=given.states,
            record=None if given.record is None else Path(given.record),
        )
    )
