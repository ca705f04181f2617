"""The simulated world holds: over many seeds, and again from the same seed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.simulation import world
from lmprog.simulation.world_runs import (
    SimulationRun,
    WorldTally,
    main,
    run_world,
    run_worlds,
    tallies,
)

SHARDS = 16
STEPS = int(os.environ.get("LMPROG_SIM_STEPS", "100000"))
"""Checked steps over all shards; millions more are run at night (`lmprog sim --hours`)."""


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_world_breaks_a_rule(shard: int) -> None:
    tally = WorldTally(10_000 * shard)
    while tally.steps < STEPS // SHARDS:
        tally.add(run_worlds(SimulationRun(), tally.seed + tally.worlds, 1))
    assert not tally.violations
    print(f"{tally.steps} checked steps of {tally.worlds} worlds from seed {tally.seed} on")


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 9, 15, 31, 51])
def test_a_seed_replays_exactly(seed: int) -> None:
    """Wherever the second world's objects lie in memory."""
    trace = run_world(seed, 200).trace
    others = [object() for _ in range(seed % 7 * 1_001)]
    assert run_world(seed, 200).trace == trace
    assert others is not None


@pytest.mark.parametrize("seed", [20_005, 200_000_144])
def test_what_was_scored_before_a_preemption_is_not_scored_again(seed: int) -> None:
    """As it was in steps begun ahead, which computed parts of an option again."""
    run_world(seed)


def test_a_call_of_high_priority_is_not_hidden_behind_the_first_one_of_its_program() -> None:
    """Programs take turns by their first ones, and the bound of waiting is that of each."""
    run_world(6_100_172, 80)


def test_a_page_is_not_stored_before_the_step_that_copies_to_it() -> None:
    """A state was evicted while a step was planned, and with it the last page of its path was
    stored as it was before that step's copy: a wrong text for whoever loaded it.
    """
    run_world(720_000_055, 100)


def test_who_loses_its_work_with_its_row_gets_further_before_it_loses_it_again() -> None:
    """Three clients take turns in one row, without a cache: each computed its prompt from the
    beginning in each of its turns, and none of them ever to its end.
    """
    run_world(2_611_293_148)


@pytest.mark.parametrize("seed", [750_001_166, 750_002_686])
def test_calls_of_one_client_do_not_preempt_each_other_for_ever(seed: int) -> None:
    """One had been admitted before another that ran, and was preempted for that one in the next
    step, where nothing is cached and there is one row.
    """
    run_world(seed)


def test_nobody_idles_for_tokens_that_left_memory_with_their_branches() -> None:
    """A program that had added 571 tokens, with memory for 128, kept the others waiting for as long
    as computing all of them takes.
    """
    run_world(330_013_574)


def test_who_was_preempted_often_is_left_the_room_that_it_needs() -> None:
    """Also by older ones that come back while it runs: one was preempted nine times of eight."""
    run_world(340_005_162)


def test_a_fault_is_a_cause_from_when_somebody_is_told_of_it() -> None:
    """As with seed 200,000,906: it ended a step that was begun ahead and that nobody awaited, and
    was told to a call that had come since.
    """
    made = next(one for one in map(world.World, range(20)) if one.scenario.is_ahead)
    device = made._device
    assert device is not None
    while len(device._todo) < 2:
        made.step()
    made.engine.fail_next = True
    told = made._num_faults_told()
    device.drain()
    assert (made.engine.num_faults, made._num_faults_told()) == (told + 1, told)
    while device.has_untold_fault:
        made.step()
    assert made._num_faults_told() > told


def waiting_world(monkeypatch: pytest.MonkeyPatch) -> world.World:
    """One in which something waits, and nothing gets on."""
    made = world.World(3)
    made.step()
    monkeypatch.setattr(Scheduler, "idle", False)
    made._check_progress(moved=True)
    return made


def test_jumps_of_the_clock_do_not_look_like_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with seed 30,004,493: two of them, of 42 s together, while a load was awaited."""
    made = waiting_world(monkeypatch)
    monkeypatch.setattr(made.rng, "choice", lambda kinds: "jump")
    for _ in range(8):
        made._fault()
    made._check_progress(moved=False)


def test_a_world_that_gets_nowhere_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    made = waiting_world(monkeypatch)
    made.now += 100.0
    with pytest.raises(AssertionError, match="none makes progress"):
        made._check_progress(moved=False)


def test_different_seeds_are_different_worlds() -> None:
    assert len({run_world(seed, 50).trace for seed in range(5)}) == 5


@pytest.mark.parametrize("seed", range(20, 25))
def test_how_often_everything_is_checked_changes_nothing(seed: int) -> None:
    assert run_world(seed, 100, 1).trace == run_world(seed, 100, 1_000).trace


def test_the_command_says_what_it_ran(tmp_path: Path) -> None:
    said: list[str] = []
    record = tmp_path / "record.jsonl"
    assert main(SimulationRun(seed=7, steps=40, worlds=60, record=record), said.append) == 0
    assert "60 worlds from seed 7" in said[0]
    assert "no violation" in said[0]
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(line["seed"], line["worlds"]) for line in lines] == [(7, 50), (57, 10)]
    assert all(line["violations"] == [] and line["steps"] > 40 for line in lines)


def test_worlds_of_models_without_states_may_be_left_out() -> None:
    asked = SimulationRun(steps=2, worlds=40, only_states=True)
    has_states = [world.scenario_of(seed).states is not None for seed in range(40)]
    assert sum(tally.worlds for tally in tallies(asked)) == sum(has_states) > 0


def test_several_processes_run_the_same_worlds() -> None:
    one, two = (
        [(tally.seed, tally.steps, tally.last_trace) for tally in tallies(asked)]
        for asked in (
            SimulationRun(steps=4, worlds=110, processes=1),
            SimulationRun(steps=4, worlds=110, processes=2),
        )
    )
    assert one == two


def test_no_world_is_started_after_the_time_is_over() -> None:
    assert list(tallies(SimulationRun(worlds=None, hours=0.0))) == []
    ran = list(tallies(SimulationRun(worlds=None, hours=1e-9, steps=1)))
    assert len(ran) <= 1


def test_a_violation_ends_its_world_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(scheduler: Scheduler) -> None:
        assert scheduler.config.page_size != 16, "no large pages"

    monkeypatch.setattr(world, "check_running", check)
    said: list[str] = []
    assert main(SimulationRun(seed=7, steps=5, worlds=20), said.append) == 1
    assert "VIOLATION  seed " in said[0]
    assert "no large pages" in said[0]
    assert "replay: lmprog sim --seed" in said[0]
    assert "20 worlds from seed 7" in said[-1]
    assert f"{len(said) - 1} violations" in said[-1]
