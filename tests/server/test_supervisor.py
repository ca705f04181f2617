"""The supervisor's decisions in virtual time: a scripted runtime, no process, no waiting."""

from __future__ import annotations

import random

import pytest

from lmprog.errors import ModelError
from lmprog.launch.restarts import LONGEST_GAP, DelayLimits, HangTimeouts
from lmprog.server.supervision.supervisor import Phase, RestartTimeouts, Supervisor

TICK = 0.2


class Script:
    """Verbs that write down what was wanted, and a runtime that does as the test says."""

    def __init__(self, patience: RestartTimeouts | None = None) -> None:
        self.now = 100.0
        self.starts: list[float] = []
        self.ends: list[tuple[float, str]] = []
        self.reaches = 0
        self.alive = True
        self.answers = True
        self.cpu = 0.0
        self.cpu_rate = 0.0
        self.start_seconds = 1.0
        self.figures = {"running": 0.0, "waiting": 0.0, "computed_tokens": 0.0}
        self.tokens_per_second = 0.0
        self._due: list[tuple[float, str]] = []
        self.supervisor = Supervisor(self, lambda: self.now, patience or RestartTimeouts())

    def start(self) -> None:
        self.starts.append(self.now)
        self._due.append((self.now + self.start_seconds, "started"))

    def ask(self) -> None:
        if self.answers and self.alive:
            self._due.append((self.now + 0.01, "answered"))

    def reach(self) -> None:
        self.reaches += 1

    def pulse(self) -> float | None:
        return self.cpu if self.alive else None

    def end(self, why: str) -> None:
        self.ends.append((self.now, why))
        self._due.append((self.now + 0.5, "ended"))

    def run(self, seconds: float) -> None:
        """Virtual time goes on, with a tick every `TICK`."""
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            self.cpu += self.cpu_rate * TICK
            self.figures["computed_tokens"] += self.tokens_per_second * TICK
            due, self._due = (
                [d for d in self._due if d[0] <= self.now],
                [d for d in self._due if d[0] > self.now],
            )
            for _at, what in due:
                self._happen(what)
            self.supervisor.tick()

    def _happen(self, what: str) -> None:
        if what == "answered":
            self.supervisor.answered(dict(self.figures))
        elif what == "started":
            self.alive = True
            self.supervisor.started()
        else:
            self.supervisor.ended()


@pytest.fixture
def script() -> Script:
    made = Script()
    made.supervisor.begin()
    made.run(2.0)
    assert made.supervisor.phase is Phase.SERVING
    return made


def test_an_idle_runtime_that_answers_is_left_alone(script: Script) -> None:
    script.run(3600.0)
    assert script.ends == []
    assert script.supervisor.restarts == 0


def test_a_death_is_seen_within_a_second_and_the_next_life_begins_at_once(script: Script) -> None:
    script.run(120.0)
    died = script.now
    script.alive = False
    script.run(1.0)
    assert script.ends[0][0] - died <= 1.0
    assert "ended" in script.ends[0][1]
    script.run(2.0)
    assert script.supervisor.phase is Phase.SERVING
    assert script.supervisor.restarts == 1


def test_a_loop_that_does_not_answer_is_ended_when_its_process_computes_nothing(
    script: Script,
) -> None:
    script.answers = False
    hung = script.now
    script.run(8.0)
    assert script.ends == []
    script.run(4.0)
    ((when, why),) = script.ends
    assert 9.0 <= when - hung <= 12.0
    assert "computes nothing" in why


def test_a_runtime_that_hangs_is_not_ready_within_three_seconds(script: Script) -> None:
    assert script.supervisor.is_responsive()
    script.answers = False
    script.run(3.0)
    assert not script.supervisor.is_responsive()
    assert script.ends == []
    script.answers = True
    script.supervisor.answered(dict(script.figures))
    assert script.supervisor.is_responsive()


def test_a_runtime_in_a_long_step_is_ready(script: Script) -> None:
    script.answers = False
    script.cpu_rate = 1.0
    for _ in range(60):
        script.run(1.0)
        assert script.supervisor.is_responsive()


def test_it_tells_how_long_a_start_takes_as_it_saw_it() -> None:
    script = Script(RestartTimeouts(delays=DelayLimits(first=4.0)))
    script.start_seconds = 8.0
    script.supervisor.begin()
    script.run(9.0)
    assert script.supervisor.seconds_until_up() == 0.0
    for rest in (0.0, 4.0):  # the second short life is followed by a rest
        script.alive = False
        while script.supervisor.phase is not Phase.STARTING:
            script.run(TICK)
            if script.supervisor.phase is Phase.RESTING:
                until_up = script.supervisor.seconds_until_up()
                assert 8.0 <= until_up <= 9.0 + rest
        assert script.supervisor.seconds_until_up() == pytest.approx(8.0, abs=2 * TICK)
        script.run(4.0)
        assert script.supervisor.seconds_until_up() == pytest.approx(4.0, abs=2 * TICK)
        script.run(6.0)
        assert script.supervisor.phase is Phase.SERVING


def test_a_long_step_that_computes_is_waited_for_but_not_for_ever(script: Script) -> None:
    script.answers, script.cpu_rate = False, 1.8
    hung = script.now
    script.run(110.0)
    assert script.ends == []
    script.run(20.0)
    assert 119.0 <= script.ends[0][0] - hung <= 122.0


def test_work_that_stands_still_is_a_hang_although_the_loop_answers(script: Script) -> None:
    script.cpu_rate = 1.0  # a loop that turns without moving anything
    script.figures["waiting"] = 3.0
    stood = script.now
    script.run(8.0)
    assert script.ends == []
    script.run(4.0)
    ((when, why),) = script.ends
    assert 9.0 <= when - stood <= 12.0
    assert "nobody was admitted" in why


def test_work_that_moves_slowly_is_no_hang(script: Script) -> None:
    script.figures["running"] = 1.0
    for _ in range(60):
        script.run(9.0)
        script.figures["computed_tokens"] += 1.0
    assert script.ends == []


def test_a_pause_of_ours_is_not_counted_against_the_runtime(script: Script) -> None:
    script.figures["running"], script.tokens_per_second = 1.0, 5.0
    script.run(5.0)
    script.now += 3600.0  # the machine slept
    script.run(5.0)
    assert script.ends == []
    assert HangTimeouts().stall > LONGEST_GAP


def test_a_lost_connection_is_reached_again_without_a_restart(script: Script) -> None:
    script.supervisor.lost()
    assert script.reaches == 1
    script.run(1.0)
    script.supervisor.reached()
    script.run(60.0)
    assert script.supervisor.phase is Phase.SERVING
    assert script.ends == []


def test_a_lost_connection_that_stays_lost_is_a_hang(script: Script) -> None:
    script.supervisor.lost()
    script.run(12.0)
    assert len(script.ends) == 1
    script.run(3.0)
    assert script.supervisor.phase is Phase.SERVING


def test_restarts_in_a_storm_come_less_and_less_often(script: Script) -> None:
    for _ in range(9):
        while script.supervisor.phase is not Phase.SERVING:
            script.run(TICK)
        script.alive = False
        script.run(TICK)
    pauses = [round(b - a) for a, b in zip(script.starts, script.starts[1:], strict=False)]
    assert pauses[0] <= 4
    assert pauses == sorted(pauses)
    assert max(pauses) <= DelayLimits().longest + 5.0


def test_after_a_long_life_the_next_start_does_not_wait(script: Script) -> None:
    for seconds in (1.0, 1.0, 1.0, 1.0, 100.0):
        while script.supervisor.phase is not Phase.SERVING:
            script.run(TICK)
        script.run(seconds)
        died = script.now
        script.alive = False
        script.run(TICK)
    script.run(2.0)
    assert script.starts[-1] - died <= 1.0


def test_a_first_start_that_fails_is_final_and_a_later_one_is_tried_again() -> None:
    first = Script()
    first.supervisor.begin()
    first._due.clear()
    first.supervisor.start_failed(ModelError("no such model"))
    first.run(100.0)
    assert first.supervisor.phase is Phase.FAILED
    assert isinstance(first.supervisor.failure, ModelError)

    later = Script()
    later.supervisor.begin()
    later.run(2.0)
    later.alive = False
    later.run(1.0)
    later._due.clear()
    later.supervisor.start_failed(ModelError("no memory"))
    later.run(60.0)
    assert later.supervisor.phase is Phase.SERVING


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_it_serves_again_when_the_faults_are_over(seed: int) -> None:
    chance = random.Random(seed)
    script = Script()
    script.supervisor.begin()
    for _ in range(40):
        match chance.randrange(5):
            case 0:
                script.alive = False
            case 1:
                script.answers = chance.random() < 0.5
            case 2:
                script.supervisor.lost()
            case 3:
                script.figures["waiting"] = chance.choice([0.0, 2.0])
            case 4:
                script.tokens_per_second = chance.choice([0.0, 10.0])
        script.run(chance.choice([0.2, 1.0, 5.0, 15.0]))
    script.answers, script.tokens_per_second = True, 10.0
    script.run(60.0)
    assert script.supervisor.phase is Phase.SERVING, f"seed {seed}"
    ended = len(script.ends)
    script.run(60.0)
    assert len(script.ends) == ended, f"seed {seed}"
