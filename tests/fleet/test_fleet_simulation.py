"""The simulation of many replicas, small: what its tables say must be so here too."""

from __future__ import annotations

import pytest

from benchmarks.fleet_simulation import (
    WAYS,
    WORKLOADS,
    ByDirectory,
    Directory,
    Gateways,
    InTurns,
    LeastLoaded,
    Outcome,
    Placement,
    Policy,
    SimulatedFleet,
    World,
    beside_the_better,
    compared,
    sessions,
    simulate,
)

SMALL = SimulatedFleet(busy=0.8, replicas=8)
TOLD = sessions(SMALL, 1500)


def tried(policy: Policy) -> Outcome:
    return simulate(SMALL, TOLD, policy)


def test_affinity_finds_more_than_turns_and_lets_nobody_wait_longer() -> None:
    ours, turns = tried(Placement(SMALL)), tried(InTurns())
    assert ours.hit > turns.hit + 0.15
    assert ours.hit > tried(LeastLoaded()).hit + 0.15
    assert ours.queue_p99 < turns.queue_p99
    assert ours.first_p99 < turns.first_p99


def test_gateways_that_are_told_of_each_others_programs_find_what_one_finds() -> None:
    one, alone = tried(Placement(SMALL)).hit, tried(Gateways(SMALL, 8, None)).hit
    assert alone > tried(InTurns()).hit + 0.05, "those that are not keep much of the affinity"
    assert tried(Gateways(SMALL, 8, 0.05)).hit > one - 0.01 > alone + 0.04
    assert tried(Gateways(SMALL, 8, 2.0)).hit > one - 0.02, "being late costs little"


def test_the_simulation_repeats_itself() -> None:
    first, second = tried(Placement(SMALL)), tried(Placement(SMALL))
    assert (first.hit, first.mean) == (second.hit, second.mean)


@pytest.mark.parametrize("name", WORKLOADS)
def test_programs_take_at_most_a_tenth_longer_than_by_the_better_of_two_plain_ways(
    name: str,
) -> None:
    found = compared(WORKLOADS[name], 500, 20.0, WAYS)
    assert max(beside_the_better(found)) <= 1.1, found


def test_the_plain_ways_are_far_apart_where_one_of_them_is_wrong() -> None:
    """Else the comparison would say nothing."""
    hot = compared(WORKLOADS["hot prefix"], 300, 20.0, WAYS)
    assert hot["affinity only"].mean > 3 * hot["least load only"].mean
    even = compared(WORKLOADS["uniform"], 300, 20.0, WAYS)
    assert even["least load only"].mean > 1.5 * even["affinity only"].mean


def test_a_directory_knows_what_was_evicted_and_gains_little() -> None:
    """So there is none: what a gateway has sent says nearly as much."""
    fleet = SimulatedFleet(replicas=2, cache=4)
    world = World(fleet)
    world.replicas[1].blocks.update(dict.fromkeys([1, 2, 9]))
    found = Directory(fleet, world.replicas)
    assert found.matched([1, 2, 3], [0, 1]) == [0, 2]
    assert (found.held(0), found.held(1)) == (0.0, 0.75)
    ways = {"directory": ByDirectory, "sent": Placement}
    told = compared(WORKLOADS["skewed"], 500, 20.0, ways, cache=800)
    assert told["directory"].hit < told["sent"].hit + 0.05
