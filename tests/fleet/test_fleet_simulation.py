"""The simulation of many replicas, small: what its tables say must be so here too."""

from __future__ import annotations

from benchmarks.fleet import (
    Gateways,
    InTurns,
    Outcome,
    Placement,
    Policy,
    SimulatedFleet,
    least_loaded,
    sessions,
    simulate,
)

SMALL = SimulatedFleet(busy=0.8, replicas=16)
TOLD = sessions(SMALL, 4000)


def tried(policy: Policy) -> Outcome:
    return simulate(SMALL, TOLD, policy)


def test_affinity_finds_more_than_turns_and_lets_nobody_wait_longer() -> None:
    ours, turns = tried(Placement(SMALL)), tried(InTurns())
    assert ours.hit > turns.hit + 0.15
    assert ours.hit > tried(least_loaded).hit + 0.15
    assert ours.queue_p99 <= turns.queue_p99
    assert ours.first_p99 < turns.first_p99


def test_gateways_that_are_told_of_each_others_programs_find_what_one_finds() -> None:
    one, alone = tried(Placement(SMALL)).hit, tried(Gateways(SMALL, 8, TOLD, None)).hit
    assert alone > tried(InTurns()).hit + 0.05, "those that are not keep much of the affinity"
    assert tried(Gateways(SMALL, 8, TOLD, 0.05)).hit > one - 0.01 > alone + 0.04
    assert tried(Gateways(SMALL, 8, TOLD, 2.0)).hit > one - 0.02, "being late costs little"


def test_the_simulation_repeats_itself() -> None:
    first, second = tried(Placement(SMALL)), tried(Placement(SMALL))
    assert (first.hit, first.queue_p99) == (second.hit, second.queue_p99)
