"""A short call does not wait for a batch of its own client, whatever that batch is."""

from __future__ import annotations

from array import array
from itertools import product
from typing import Any

import pytest

from lmprog import wire
from lmprog.runtime.scheduling import rows
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from lmprog.runtime.scheduling.step_costs import MOST_AHEAD
from tests.runtime.test_shares_hold import Asker, BusyRuntime
from tests.runtime.test_step_bounds import TimedRig, prompt

ME = b"me"
SHORT = wire.SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
IGNORING = wire.SamplingParams(temperature=0.0, ignore_eos=True)


class Batch(Asker):
    """One request of many prompts, whose branches stay open until all of it is answered; before
    and beside it short calls, one at a time.
    """

    def __init__(self, count: int, length: int, sampling: wire.SamplingParams) -> None:
        super().__init__(ME, 1, 4, 2)
        self._given = [("".join(self._dice.choices("abcdefghij", k=length))) for _ in range(count)]
        self._sampling = sampling
        self.num_left = count
        self.begins_at = 0.5

    def hear(self, reply: wire.Reply, now: float) -> Any:
        self.num_left -= isinstance(reply, wire.CallDone) and reply.call > 100_000
        return super().hear(reply, now)

    def ask(self, now: float) -> Any:
        if now >= self.begins_at:
            self.begins_at = float("inf")
            for number, text in enumerate(self._given, 100_001):
                yield wire.Open(number)
                yield wire.Append(number, (wire.TextPiece(text),))
                yield wire.Generate(number, number, self._sampling)
            self.waits.clear()
        yield from super().ask(now)


BATCHES = {
    "long prompts with log-probabilities": (
        *(20, 390),
        wire.SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=1),
    ),
    "long prompts": (20, 390, wire.SamplingParams(max_tokens=16, ignore_eos=True)),
    "many prompts": (300, 60, wire.SamplingParams(max_tokens=8, ignore_eos=True)),
    "results of one prompt": (1, 40, wire.SamplingParams(max_tokens=200, ignore_eos=True, n=64)),
}


@pytest.mark.parametrize(
    ("kind", "num_pages"), [*product(BATCHES, [5000]), ("long prompts with log-probabilities", 800)]
)
def test_a_short_call_waits_no_more_than_some_steps_beside_a_batch(
    kind: str, num_pages: int
) -> None:
    batch = Batch(*BATCHES[kind])
    runtime = BusyRuntime([batch], num_pages=num_pages, token_budget=2048, max_rows=256)
    runtime.run(3.5)
    assert batch.num_left, "it is still under way"
    assert len(batch.waits) >= 5
    assert max(batch.waits) <= 1.0 + 4 * 0.1, "the longest step that is under way, and its own"


class Waiting(TimedRig):
    """Long prompts of one client, of which memory holds one at a time."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(0.005, 0.001, **{"num_pages": 50, "policy": "fcfs", **changes})
        self.gen(prompt(1, 40), 1)
        self.run()
        self.long = [self.gen(prompt(number, 640), 40) for number in range(2, 6)]
        self.step()

    def short(self, number: int, **fields: Any) -> Sequence:
        return self.gen(prompt(number, 8), 2, **fields)


def test_short_calls_go_before_long_ones_for_as_long_as_those_are_served() -> None:
    rig = Waiting(max_rows=1, num_pages=600)
    number = 20
    while len([one for one in rig.long if one.num_generated == 40]) < 2:
        number += 1
        assert number < 600, "long ones are served too"
        rig.short(number)
        rig.step()
    short = sum(
        cost
        for plan, cost in zip([one for one in rig.plans if one.rows], rig.seconds, strict=True)
        if plan.rows[0].sequence.group.prompt_len == 8
    )
    assert 0.5 * MOST_AHEAD < short <= sum(rig.seconds) - short + MOST_AHEAD
    rig.run()


def test_a_call_that_came_later_than_the_margin_allows_is_short_for_nothing() -> None:
    rig = Waiting(max_rows=1, ageing=0.05)
    rig.now += 1.0
    short = rig.short(20)
    rig.run()
    assert short.admission_order > max(one.admission_order for one in rig.long)


def test_a_short_call_goes_before_no_priority() -> None:
    rig = Waiting(max_rows=1)
    first = rig.gen(prompt(9, 640), 40, priority=1)
    short = rig.short(20)
    rig.run()
    assert short.admission_order > first.admission_order


def test_short_calls_that_were_cancelled_while_they_waited_hold_nobody_up() -> None:
    rig = Waiting(max_rows=1)
    for number in range(20, 60):
        rig.step()
        rig.scheduler.end(rig.short(number))
    rig.run()
    assert [one.num_generated for one in rig.long] == [40] * 4


class AllRows(TimedRig):
    """Four rows, which one client holds with long answers; others of its calls wait."""

    def __init__(self) -> None:
        super().__init__(0.005, 0.001, max_rows=4)
        self.long = [self.gen(prompt(number, 20), 400, client="long") for number in range(8)]
        for _ in range(20):
            self.step()

    def short_of(self, client: str, number: int) -> Sequence:
        return self.gen(prompt(number, 8), 2, client=client)

    def held_by(self, client: str) -> int:
        return sum(one.group.client == client for one in self.scheduler.running)

    @property
    def num_preemptions(self) -> int:
        return self.scheduler.stats.preemptions


@pytest.mark.parametrize("client", ["long", "other"])
def test_a_short_call_is_given_a_row_at_once_though_long_answers_hold_all(client: str) -> None:
    rig = AllRows()
    waits = []
    for number in range(20, 30):
        short = rig.short_of(client, number)
        before = len(rig.seconds)
        while not short.num_generated:
            rig.step()
        waits.append(len(rig.seconds) - before)
        for _ in range(8):
            rig.step()
    assert max(waits) <= 2
    assert rig.num_preemptions == 10


def test_a_short_call_is_given_no_row_of_a_higher_priority() -> None:
    rig = TimedRig(0.005, 0.001, max_rows=1)
    long = rig.gen(prompt(1, 20), 60, priority=1)
    for _ in range(20):
        rig.step()
    short = rig.gen(prompt(2, 4), 1)
    for _ in range(10):
        rig.step()
    assert not short.admission_order
    assert not rig.scheduler._running.admission.gives_row(long), "to nobody else either"
    other = rig.gen(prompt(3, 4), 1, client="other")
    rig.step()
    rig.step()
    assert other.num_generated == 1, "priorities are of one client's calls"
    rig.run()


def test_two_clients_with_long_answers_have_half_of_the_rows_each_and_seldom_change_them() -> None:
    rig = AllRows()
    for number in range(40, 48):
        rig.gen(prompt(number, 20), 400, client="other")
    held, before = [], len(rig.seconds)
    for _ in range(300):
        rig.step()
        held.append(rig.held_by("other"))
        assert len(rig.scheduler.running) <= 4
    assert held.index(2) <= 100, "one row after the other, by what was served"
    assert 1.7 <= sum(held[100:]) / 200 <= 2.3
    assert rig.num_preemptions <= 0.1 * (len(rig.seconds) - before)


class AllMemory(TimedRig):
    """Results of one prompt, which have filled the memory that they share, and go on to grow."""

    def __init__(self) -> None:
        super().__init__(0.005, 0.0002, num_pages=30, max_rows=16)
        call = SequenceGroup(prompt_len=8, client="long")
        settings = GenerationSettings(IGNORING, 90, (), 8)
        for seed in range(12):
            results = Generation(settings, seed)
            call.sequences.append(Sequence(call, array("i", prompt(1, 8)), results))
        self.scheduler.submit(call)
        self.long = call.sequences
        while not self.num_preemptions:
            self.step()

    @property
    def num_preemptions(self) -> int:
        return self.scheduler.stats.preemptions

    def given(self) -> list[int]:
        """The steps in which one that runs is sent back to the queue from now on."""
        found, running = list[int](), self.scheduler._running
        preempt = running.preempt

        def counting(sequence: Sequence) -> None:
            found.append(self.scheduler.step)
            preempt(sequence)

        running.preempt = counting  # type: ignore[method-assign]
        return found

    def steps_until_begun(self, short: Sequence) -> int:
        for count in range(1, 100):
            self.step()
            if short.num_generated:
                return count
        raise AssertionError("it waits for ever")


def test_a_short_call_is_given_memory_by_those_of_others_that_have_all_of_it() -> None:
    rig = AllMemory()
    waits = []
    for number in range(20, 24):
        waits.append(rig.steps_until_begun(rig.gen(prompt(number, 8), 2, client="other")))
        for _ in range(3):
            rig.step()
    assert max(waits) <= 3
    rig.run()
    assert [one.num_generated for one in rig.long] == [90] * 12


def test_a_call_as_long_as_those_that_have_all_memory_is_given_none() -> None:
    rig = AllMemory()
    gives_row = rig.scheduler._running.admission.gives_row
    rig.gen(prompt(20, 8), 90, client="other")
    rig.scheduler.shares.serve("long", 1.0)
    assert not gives_row(rig.scheduler.running[-1], only_short=True)
    rig.gen(prompt(21, 8), 2, client="other")
    assert gives_row(rig.scheduler.running[-1], only_short=True)


def test_memory_is_not_given_again_and_again_where_that_is_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "MOST_GIVEN", 3)
    rig = AllMemory()
    rig.gen(prompt(20, 8), 2, client="other")
    rig.scheduler.shares.serve("long", 1.0)
    running, given = rig.scheduler._running, rig.given()
    monkeypatch.setattr(running.admission, "next", lambda *_: None)
    running.admission.blocked_by = "memory"
    for step in range(100, 104):
        running.take_turns(step, rig.now)
    assert len(given) == 2 * 3, "in the first of these steps and in the last"
