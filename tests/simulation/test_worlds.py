"""The simulated world holds: over many seeds, and again from the same seed."""

from __future__ import annotations

import logging
import os

import pytest

from lmprog.simulation.command import main, run_world

SHARDS = 16
STEPS = int(os.environ.get("LMPROG_SIM_STEPS", "208000"))
"""Checked steps over all shards."""


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Injected faults are logged with their traces; thousands of them help nobody."""
    logging.getLogger("lmprog").setLevel(logging.CRITICAL)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_world_breaks_a_rule(shard: int) -> None:
    steps, seed = 0, 10_000 * shard
    while steps < STEPS // SHARDS:
        steps += run_world(seed).steps
        seed += 1
    print(f"{steps} checked steps, seeds {10_000 * shard}..{seed - 1}")


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 9, 15, 31, 51])
def test_a_seed_replays_exactly(seed: int) -> None:
    """Wherever the second world's objects lie in memory."""
    trace = run_world(seed, 200).trace
    others = [object() for _ in range(seed % 7 * 1_001)]
    assert run_world(seed, 200).trace == trace
    assert others is not None


def test_different_seeds_are_different_worlds() -> None:
    assert len({run_world(seed, 50).trace for seed in range(5)}) == 5


def test_the_command_says_what_it_ran() -> None:
    said: list[str] = []
    assert main(seed=7, steps=100, worlds=3, say=said.append) == 0
    assert "3 worlds from seed 7" in said[0]
    assert "no violation" in said[0]
