"""A replica's death loses no program: whatever it had done is there again, token for token."""

from __future__ import annotations

import itertools
import random

import pytest

from lmprog import wire
from tests.fleet.deaths import trial
from tests.fleet.replicas import Fleet, RandomProgram, outcome, streamed

SLOW = wire.SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, seed=5)


@pytest.mark.parametrize("number", range(40))
def test_a_program_is_the_same_with_and_without_deaths(number: int, seed: int) -> None:
    assert trial(seed * 1000 + number) == []


def test_every_step_is_a_good_moment_to_die() -> None:
    def tried(death: int | None) -> tuple[dict[int, object], dict[tuple[int, int], object], int]:
        fleet = Fleet(2)
        fleet.say(wire.Open(1), wire.Append(1, (wire.TextPiece("abcd"),)))
        fleet.say(wire.Generate(1, 2, SLOW, stream=True), wire.Fork(1, (3, 4)))
        fleet.say(wire.Append(3, (wire.TextPiece("x"), wire.Ref(2))))
        fleet.say(wire.Generate(3, 5, SLOW, stream=True), wire.Select(4, 6, ("ab", "cd")))
        fleet.say(wire.Append(1, (wire.Gained(3),)), wire.Generate(1, 7, SLOW))
        heard = []
        for step in range(80):
            if step == death:
                fleet.kill(fleet.where(1))
            heard += fleet.step()
        fleet.say(wire.Close(1), wire.Close(3), wire.Close(4))
        heard += fleet.until_idle()
        assert fleet.router._calls == {}
        return outcome(heard), dict(streamed(heard)), fleet.router.num_moved

    calm = tried(None)
    assert set(calm[0]) == {2, 5, 6, 7}
    for death in range(1, 45):
        found = tried(death)
        assert found[:2] == calm[:2], f"died at step {death}"
        assert found[2] == 1


def test_eight_replicas_lose_nothing_by_a_death_after_any_op(seed: int) -> None:
    """Programs run side by side, op by op; each op is in turn the last before its replica dies."""
    programs = [RandomProgram(random.Random(100 * seed + n), first=1000 * n) for n in range(2)]
    ops = [
        (one.root, op)
        for frames in itertools.zip_longest(*(one.frames[:-1] for one in programs), fillvalue=())
        for one, frame in zip(programs, frames, strict=True)
        for op in frame
    ]

    def tried(death: int | None) -> tuple[dict[int, object], dict[tuple[int, int], object], int]:
        fleet, heard = Fleet(8), []
        for number, (root, op) in enumerate(ops):
            fleet.say(op)
            home = fleet.router._branches[root].home
            if number == death and home is not None:
                fleet.kill(home.name)
            heard += fleet.step() if number % 3 == 2 else []
        heard += fleet.until_idle()
        for one in programs:
            fleet.say(*one.frames[-1])
        heard += fleet.until_idle()
        assert sum(fleet.router.loads.values()) == 0
        return outcome(heard), dict(streamed(heard)), fleet.router.num_moved

    calm = tried(None)
    assert len(calm[0]) >= 2
    moved = 0
    for death in range(len(ops)):
        found = tried(death)
        assert found[:2] == calm[:2], f"a replica died after op {death}: {ops[death][1]}"
        moved += found[2]
    assert moved > 3


def test_a_program_that_loses_three_replicas_is_not_moved_again() -> None:
    fleet = Fleet(4)
    fleet.say(wire.Open(1), wire.Append(1, (wire.TextPiece("abcd"),)), wire.Generate(1, 2, SLOW))
    for _ in range(3):
        fleet.step()
        fleet.kill(fleet.where(1))
    (reply,) = fleet.until_idle()
    assert isinstance(reply, wire.Failed)
    assert reply.code == "runtime_gone"
    assert "moved 2 times" in reply.message
    fleet.say(wire.Generate(1, 3, SLOW))
    (later,) = fleet.until_idle()
    assert isinstance(later, wire.Failed)
    assert later.call == 3


def test_programs_wait_for_a_replica_and_are_given_up_in_the_end() -> None:
    fleet = Fleet(1)
    fleet.say(wire.Open(1), wire.Append(1, (wire.TextPiece("abcd"),)), wire.Generate(1, 2, SLOW))
    fleet.step()
    fleet.kill("replica-0")
    fleet.say(wire.Open(3), wire.Append(3, (wire.TextPiece("efgh"),)), wire.Generate(3, 4, SLOW))
    assert fleet.step() == []
    fleet.add()
    assert set(outcome(fleet.until_idle())) == {2, 4}
    fleet.kill("replica-1")
    fleet.say(wire.Generate(1, 5, SLOW))
    fleet.now += 100.0
    fleet.router.tick()
    assert outcome(fleet.step()) == {5: "runtime_gone"}


def test_a_failed_branch_stays_failed_after_a_move() -> None:
    fleet = Fleet(2)
    fleet.say(wire.Open(1), wire.Append(1, (wire.TextPiece("abcd"),)), wire.Generate(1, 2, SLOW))
    fleet.say(wire.Fork(1, (8,)))
    fleet.step()
    fleet.say(wire.Cancel(2))
    assert outcome(fleet.until_idle()) == {2: "cancelled"}
    fleet.kill(fleet.where(1))
    fleet.say(wire.Generate(1, 3, SLOW), wire.Generate(8, 4, SLOW))
    assert outcome(fleet.until_idle()) == {3: "cancelled", 4: "cancelled"}


def test_a_contest_that_is_not_decided_goes_on_elsewhere() -> None:
    fleet = Fleet(2)
    fleet.say(wire.Open(1), wire.Append(1, (wire.TextPiece("abcd"),)), wire.Fork(1, (2, 3, 4)))
    for branch in (2, 3, 4):
        fleet.say(wire.Generate(branch, branch + 10, SLOW))
    fleet.say(wire.Contest((12, 13, 14)))
    fleet.step()
    fleet.step()
    fleet.kill(fleet.where(1))
    found = outcome(fleet.until_idle())
    assert set(found) == {12, 13, 14}
    assert [call for call, one in found.items() if one != "cancelled"] != []
    assert list(found.values()).count("cancelled") == 2


def test_generations_without_a_seed_can_be_done_again() -> None:
    free = wire.SamplingParams(temperature=1.0, max_tokens=10, ignore_eos=True)
    fleet = Fleet(2)
    fleet.say(wire.Open(1), wire.Append(1, (wire.TextPiece("abcd"),)))
    fleet.say(wire.Generate(1, 2, free, stream=True))
    heard = [reply for _ in range(5) for reply in fleet.step()]
    fleet.kill(fleet.where(1))
    heard += fleet.until_idle()
    (done,) = [reply for reply in heard if isinstance(reply, wire.CallDone)]
    assert streamed(heard)[2, 0][0] == done.outputs[0].text


def test_a_program_that_goes_another_way_fails_instead_of_mixing_texts() -> None:
    fleet = Fleet(2)
    fleet.say(wire.Open(1), wire.Append(1, (wire.TextPiece("abcd"),)))
    fleet.say(wire.Generate(1, 2, SLOW, stream=True))
    for _ in range(5):
        fleet.step()
    log = fleet.router._branches[1].log
    log._streamed[2, 0].text = "~" + log._streamed[2, 0].text[1:]  # as if the other had differed
    fleet.kill(fleet.where(1))
    heard = fleet.until_idle()
    assert outcome(heard) == {2: "runtime_gone"}


def test_what_a_lost_replica_still_says_is_not_heard() -> None:
    fleet = Fleet(2)
    fleet.say(wire.Open(1), wire.Append(1, (wire.TextPiece("abcd"),)), wire.Generate(1, 2, SLOW))
    fleet.step()
    lost = fleet.where(1)
    fleet.kill(lost)
    fleet.router.take_replies(
        lost, [wire.CallDone(2, (wire.Output("x", (1,), "stop"),), wire.Usage())]
    )
    assert outcome(fleet.until_idle())[2][0].text != "x"


def test_questions_about_the_runtime_are_asked_of_all() -> None:
    fleet = Fleet(3)
    fleet.say(wire.Describe(1), wire.Flush(2), wire.Encode(3, "ab", prefix=False))
    heard = fleet.until_idle()
    figures = {one.call: one.figures for one in heard if isinstance(one, wire.Described)}
    assert figures[1]["pages"] == 3 * 64
    assert figures[1]["page_size"] == 4
    assert set(figures) == {1, 2}
    assert [one.tokens for one in heard if isinstance(one, wire.TokensAre)]


def answers_beside_poison(num_replicas: int) -> dict[int, wire.Reply]:
    """Last replies of nine programs, and of the tenth, which ends each replica that works on it; one
    more comes for each that is gone.
    """
    fleet, heard = Fleet(num_replicas), list[wire.Reply]()
    for number in range(1, 11):
        prompt = wire.Append(number, (wire.TextPiece(f"program {number}"),))
        sampling = wire.SamplingParams(max_tokens=12, seed=number, ignore_eos=True)
        fleet.say(wire.Open(number), prompt, wire.Generate(number, 100 + number, sampling))
    poison = fleet.router._branches[10]
    for _ in range(400):
        heard += fleet.step()
        fleet.now += 0.2
        fleet.router.tick()
        if poison.home is not None and poison.log.pending:
            heard += fleet.step()
            fleet.kill(poison.home.name)
            fleet.add()
    return {one.call: one for one in heard if isinstance(one, wire.CallDone | wire.Failed)}


def test_a_program_that_ends_replicas_is_told_from_those_beside_it() -> None:
    """Three deaths at most are for all of them; the cause alone is blamed."""
    found = answers_beside_poison(3)
    failed = {call for call, one in found.items() if isinstance(one, wire.Failed)}
    assert failed == {110}
    assert len(found) == 10


def test_where_there_is_one_replica_a_cause_is_found_all_the_same() -> None:
    found = answers_beside_poison(1)
    assert isinstance(found[110], wire.Failed)
    assert len(found) == 10


def alone(fleet: Fleet) -> None:
    """A program of one call, under which two replicas have died."""
    fleet.say(wire.Open(1), wire.Append(1, (wire.TextPiece("abcd"),)), wire.Generate(1, 2, SLOW))
    for _ in range(2):
        fleet.step()
        fleet.kill(fleet.where(1))
        fleet.add()


def test_where_replicas_die_without_it_too_a_program_is_not_the_cause_of_one_death_alone() -> None:
    fleet = Fleet(3)
    alone(fleet)
    other = next(name for name in fleet.replicas if name != fleet.where(1))
    fleet.kill(other)
    fleet.add()
    fleet.step()
    fleet.kill(fleet.where(1))
    assert outcome(fleet.until_idle())[2] != "runtime_gone"


def test_a_cause_is_found_also_where_replicas_die_without_it() -> None:
    fleet, heard = Fleet(3), list[wire.Reply]()
    alone(fleet)
    fleet.kill(next(name for name in fleet.replicas if name != fleet.where(1)))
    for _ in range(4):
        heard += fleet.step()
        if fleet.router._branches[1].home is not None:
            fleet.kill(fleet.where(1))
            fleet.add()
    assert outcome(heard + fleet.step()) == {2: "runtime_gone"}
    assert fleet.router._num_died <= 6
