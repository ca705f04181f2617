"""Programs that are moved on purpose, and sessions that stay together."""

from __future__ import annotations

import random
from collections import deque

from lmprog import wire
from lmprog.fleet.placement import choose_for_session
from tests.fleet.replicas import Fleet, RandomProgram, outcome, streamed

LONG = wire.SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, seed=5)


def ask(branch: int, text: str = "abcd", session: str = "") -> list[wire.Op]:
    return [
        wire.Open(branch, session=session),
        wire.Append(branch, (wire.TextPiece(text),)),
        wire.Generate(branch, branch + 1, LONG, stream=True),
    ]


def test_a_draining_replica_gets_no_new_programs_and_keeps_those_it_has() -> None:
    fleet = Fleet(2)
    fleet.say(*ask(1))
    fleet.step()
    home = fleet.where(1)
    fleet.router.drain(home)
    fleet.say(*ask(11))
    assert fleet.where(11) != home
    assert fleet.where(1) == home
    assert set(outcome(fleet.until_idle())) == {2, 12}


def test_what_is_left_on_a_drained_replica_moves_as_often_as_needed() -> None:
    calm = Fleet(2)
    calm.say(*ask(1))
    expected = calm.until_idle()
    fleet, heard = Fleet(2), []
    fleet.say(*ask(1))
    for _ in range(5):  # more often than it would be moved after deaths
        heard += fleet.step()
        home = fleet.where(1)
        fleet.router.evacuate(home)
        assert fleet.router.loads[home] == 0
        fleet.add()
    heard += fleet.until_idle()
    assert fleet.router.num_moved == 5
    assert outcome(heard) == outcome(expected)
    assert streamed(heard) == streamed(expected)
    for talk in fleet.replicas.values():
        assert talk.scheduler.idle


def test_the_last_replica_keeps_its_programs_when_it_is_drained() -> None:
    fleet = Fleet(1)
    fleet.say(*ask(1))
    fleet.step()
    fleet.router.evacuate("replica-0")
    assert fleet.router.loads == {"replica-0": 1}
    assert set(outcome(fleet.until_idle())) == {2}


def test_replicas_that_say_goodbye_make_no_program_a_suspect() -> None:
    fleet = Fleet(6)
    fleet.say(*ask(1))
    for _ in range(5):
        fleet.step()
        home = fleet.where(1)
        del fleet.replicas[home]
        fleet.router.lose(home, died=False)
    assert outcome(fleet.until_idle())[2] != "runtime_gone"


def test_a_program_that_computed_nothing_is_no_suspect() -> None:
    fleet = Fleet(6)
    fleet.say(*ask(1))
    fleet.until_idle()
    for _ in range(4):  # its replica dies between its calls
        fleet.kill(fleet.where(1))
        fleet.say(wire.Read(1, 100 + fleet.steps))
        assert "runtime_gone" not in outcome(fleet.until_idle()).values()


def test_random_programs_are_the_same_when_every_replica_is_drained_in_turn(seed: int) -> None:
    for number in range(10):
        rng = random.Random(seed * 1000 + number)
        program = RandomProgram(rng, first=0)
        heard: list[list[wire.Reply]] = []
        for drains in (False, True):
            fleet, found = Fleet(3), list[wire.Reply]()
            for frame in program.frames[:-1]:
                fleet.say(*frame)
                found += fleet.step()
                home = fleet.router._branches[program.root].home
                if drains and home is not None:
                    fleet.router.evacuate(home.name)
                    fleet.add()
            found += fleet.until_idle()
            fleet.say(*program.frames[-1])
            heard.append(found + fleet.until_idle())
        assert outcome(heard[1]) == outcome(heard[0])
        assert streamed(heard[1]) == streamed(heard[0])


def test_programs_of_one_session_share_a_replica_whatever_its_load() -> None:
    fleet = Fleet(4)
    for number in range(12):
        fleet.say(*ask(10 * number + 1, text=f"{number} abcd", session="one"))
    assert len({fleet.where(10 * number + 1) for number in range(12)}) == 1
    for number in range(12, 40):
        fleet.say(*ask(10 * number + 1, text=f"{number} abcd", session=f"other {number}"))
    assert len({fleet.where(10 * number + 1) for number in range(12, 40)}) == 4


def test_a_lost_replica_moves_its_own_sessions_only() -> None:
    names = [f"replica-{number}" for number in range(8)]
    sessions = [f"session {number}" for number in range(200)]
    before = {one: names[choose_for_session(one, names)] for one in sessions}
    assert set(before.values()) == set(names)
    left = [name for name in names if name != "replica-3"]
    for one in sessions:
        after = left[choose_for_session(one, left)]
        assert after == before[one] or before[one] == "replica-3"


def test_what_waits_at_a_silent_replica_is_asked_elsewhere_once() -> None:
    """What has got a part of its text stays: the silence may end."""
    calm = Fleet(2)
    calm.say(*ask(1), *ask(11))
    expected = outcome(calm.until_idle())
    fleet, heard = Fleet(2), []
    fleet.say(*ask(1))
    home = fleet.where(1)
    while not any(isinstance(one, wire.Delta) for one in heard):
        heard += fleet.step()
    other = next(name for name in fleet.router.loads if name != home)
    fleet.router.drain(other)
    fleet.say(*ask(11))
    assert fleet.where(11) == home
    third = fleet.add()
    for _ in range(2):
        fleet.router.hedge(home)
        assert (fleet.where(1), fleet.where(11)) == (home, third)
    fleet.router.hedge(third)
    assert fleet.where(11) == third, "once"
    heard += fleet.until_idle()
    assert outcome(heard) == expected
    assert fleet.router.num_moved == 1


def test_what_a_replica_answers_of_an_earlier_stay_is_not_heard() -> None:
    """A program is back before a silent replica tells that its calls were closed."""
    calm = Fleet(2)
    calm.say(*ask(1))
    expected = calm.until_idle()
    fleet = Fleet(2)
    fleet.say(*ask(1))
    heard = [*fleet.step(), *fleet.step()]
    first = fleet.where(1)
    silent = fleet.replicas.pop(first)
    frames: list[tuple[str, list[wire.Op]]] = []
    for _ in range(2):  # to the other one, and back
        fleet.router.evacuate(fleet.where(1))
        fleet.router._replicas[first].draining = False
        frames += [frame for frame in fleet.router.outgoing if frame[0] == first]
        fleet.router.outgoing = deque(one for one in fleet.router.outgoing if one[0] != first)
        heard += fleet.step()
    assert fleet.where(1) == first
    fleet.router.outgoing.extend(frames)
    fleet.replicas[first] = silent
    heard += fleet.until_idle()
    assert outcome(heard) == outcome(expected)
    assert streamed(heard) == streamed(expected)
    assert not fleet.router._replicas[first].left
