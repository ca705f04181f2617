"""`lmprog sim`: the core against a simulated model, every step checked."""

from __future__ import annotations

import argparse
import logging

from lmprog.simulation.command import main


def run(given: argparse.Namespace) -> int:
    """Exit code 1 on the first violation."""
    # The faults that it injects on purpose are logged like any others; that would only clutter
    # the output.
    logging.getLogger("lmprog").setLevel(logging.CRITICAL)
    return main(given.seed, given.steps, given.worlds)
