"""A step is bounded in seconds, whatever its rows are and however slow the model is."""

from __future__ import annotations

from typing import Any

import pytest

from lmprog.config import SchedulerConfig
from lmprog.launch.restarts import HangTimeouts, ProgressWatch
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.namespaces import Namespace
from lmprog.runtime.scheduling.rows import ALONE_SECONDS
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.step_costs import SHORT_ALONE
from tests.runtime.rig import Rig

MIDDLE = 0.04, 0.0016
"""Seconds of a step and of a token, as of a model that a processor computes well ..."""
LARGE = 0.8, 0.03
"""... of one whose weights take a second to read ..."""
LARGEST = 7.0, 0.2
"""... and of one that hardly fits the machine."""


class TimedRig(Rig):
    """Its steps take so many seconds each, and for each token."""

    def __init__(self, fixed: float, per_token: float, **changes: Any) -> None:
        super().__init__(SchedulerConfig(**{"page_size": 16, "num_pages": 600, **changes}), 9000)
        self.costs, self.now = (fixed, per_token), 0.0
        self.seconds: list[float] = []
        self._computing, self.engine = self.engine, self
        self.scheduler = Scheduler(self.config, self.context_len, clock=lambda: self.now)

    def forward(self, batch: Batch) -> object:
        self.seconds.append(self.costs[0] + self.costs[1] * batch.num_tokens)
        self.now += self.seconds[-1]
        return self._computing.forward(batch)

    def streams(self, num: int, num_steps: int = 8) -> None:
        """So many decode by now, for ever."""
        for number in range(num):
            self.gen([number + 1, 7], 400)
        for _ in range(num_steps):
            self.step()


def prompt(number: int, length: int) -> list[int]:
    return [(number * 31 + position * 7) % 97 for position in range(length)]


def test_a_prefill_beside_decodes_is_cut_to_the_length_of_a_step() -> None:
    rig = TimedRig(0.005, 0.0001)
    rig.streams(4)
    rig.gen(prompt(9, 1200), 1)
    rig.run()
    beside = rig.seconds[12:16]
    assert max(rig.seconds) <= 0.0501
    assert max(beside) > 0.8 * 0.05, "no shorter than it need be"


def test_prompts_of_a_small_model_take_the_whole_budget_once_their_cost_is_known() -> None:
    rig = TimedRig(0.005, 0.0001)
    for number in range(9):
        rig.gen(prompt(number, 700), 1)
        rig.run()
    begin = len(rig.plans)
    rig.gen(prompt(99, 1200), 1)
    rig.run()
    assert len([plan for plan in rig.plans[begin:] if plan.rows]) == 1


@pytest.mark.parametrize(("costs", "most"), [(MIDDLE, 1.0), (LARGE, 4.0), (LARGEST, 29.0)])
def test_prompts_without_decodes_are_cut_to_steps_of_bounded_seconds(
    costs: tuple[float, float], most: float
) -> None:
    """A second, or four times what a step takes by itself."""
    assert most == pytest.approx(max(ALONE_SECONDS, 4 * costs[0]), rel=0.26)
    rig = TimedRig(*costs)
    for number in range(8):
        rig.gen(prompt(number, 300), 1)
    rig.run()
    assert max(rig.seconds) <= 1.001 * most
    assert rig.plans[0].num_tokens == rig.config.page_size, "nothing is known of its cost yet"


def test_prompts_of_a_model_without_a_fixed_cost_are_cut_to_a_second_once_that_is_known() -> None:
    rig = TimedRig(0.0, 0.02)
    for number in range(8):
        rig.gen(prompt(number, 300), 1)
    rig.run()
    assert max(rig.seconds[2:]) <= 1.001 * ALONE_SECONDS
    assert max(rig.seconds) <= 1.001


def test_many_short_rows_are_cut_to_steps_of_bounded_seconds() -> None:
    rig = TimedRig(*MIDDLE)
    for number in range(200):
        rig.score(prompt(number, 24), 8, (1, 2))
    rig.run()
    assert max(rig.seconds) <= 1.001 * ALONE_SECONDS
    assert len(rig.seconds) < 16, "and to no more of them than it takes"


def test_without_a_bound_for_decodes_their_steps_are_bounded_as_those_without_any() -> None:
    rig = TimedRig(*MIDDLE, step_ms=0)
    rig.streams(4, num_steps=20)
    rig.gen(prompt(9, 2400), 1)
    rig.run()
    assert 0.9 * ALONE_SECONDS < max(rig.seconds) <= 1.001 * ALONE_SECONDS


def test_without_a_bound_for_decodes_those_of_all_clients_are_in_each_step() -> None:
    rig = TimedRig(*MIDDLE, step_ms=0)
    for client in ("one", "two"):
        for number in range(8):
            rig.gen([number + 1, 7], 30, client=client, namespace=Namespace(client))
    for _ in range(20):
        rig.step()
    assert len(rig.plans[-1].rows) == 16


def test_a_fixed_cost_is_told_from_that_of_tokens_by_the_first_steps() -> None:
    """Else all steps would be as small as the first."""
    rig = TimedRig(*LARGE)
    rig.gen(prompt(1, 600), 1)
    rig.run()
    whole = LARGE[0] + LARGE[1] * 600
    assert rig.now <= 2.0 * whole


@pytest.mark.parametrize("costs", [MIDDLE, LARGE, LARGEST])
def test_a_runtime_that_computes_long_prompts_is_not_taken_for_hung(
    costs: tuple[float, float],
) -> None:
    rig, timeouts = TimedRig(*costs), HangTimeouts()
    for number in range(4):
        rig.gen(prompt(number, 300), 3)
    watch, before = ProgressWatch(timeouts, 0.0), 0.0
    while not rig.scheduler.idle:
        rig.step()
        watch.take_pulse(rig.now, rig.now, rig.now - before)
        before = rig.now
        assert watch.trouble(rig.now) is None  # the answer is still to come
        computed = float(rig.scheduler.stats.computed_tokens)
        watch.take_figures({"running": 1.0, "computed_tokens": computed}, rig.now)
        assert watch.trouble(rig.now) is None
    assert max(rig.seconds) < timeouts.longest_step / 4


@pytest.mark.parametrize(("fixed", "most"), [(0.014, 1.5), (0.03, 1.5), (0.05, 2.0), (0.2, 2.0)])
def test_prompts_have_half_of_the_time_beside_streams_and_two_thirds_of_steps_not_twice_as_long(
    fixed: float, most: float
) -> None:
    """`most`: times as long as alone, in one step."""
    rig = TimedRig(fixed, 0.0007, step_ms=50)
    rig.streams(4, num_steps=20)
    began, number = rig.now, len(rig.seconds)
    long = rig.gen(prompt(9, 2000), 1)
    while not long.num_generated:
        rig.step()
    alone, decodes = fixed + 0.0007 * 2000, fixed + 4 * 0.0007
    assert rig.now - began <= most * alone + 10 * fixed, "while larger and larger steps are tried"
    longest = max(0.05, min(0.1, 3.0 * decodes), 2.0 * decodes)
    assert max(rig.seconds[number:]) <= 1.01 * longest


def test_prompts_get_a_page_in_each_step_however_long_tokens_take() -> None:
    rig = TimedRig(0.001, 0.05)
    rig.streams(2)
    long = rig.gen(prompt(9, 400), 1)
    found = []
    while not long.num_generated:
        rig.step()
        found += [row.num_tokens for row in rig.plans[-1].rows if row.sequence is long]
    assert set(found) == {rig.config.page_size}


def test_steps_that_begin_to_take_longer_are_cut_within_some_steps() -> None:
    rig = TimedRig(*MIDDLE)
    for number in range(12):
        rig.gen(prompt(number, 600), 1)
        rig.run()
    rig.costs = MIDDLE[0], 4 * MIDDLE[1]  # as far into a long text
    rig.gen(prompt(99, 8000), 1)
    number = len(rig.seconds)
    rig.run()
    assert max(rig.seconds[number : number + 4]) > 2.0 * ALONE_SECONDS
    assert max(rig.seconds[number + 4 :]) <= 1.1 * ALONE_SECONDS


SMALL = 0.001, 0.0005


def test_steps_of_a_small_model_are_short_even_while_nobody_else_asks() -> None:
    rig = TimedRig(*SMALL)
    for number in range(9):
        rig.gen(prompt(number, 700), 1)
    rig.run()
    assert max(rig.seconds[4:]) <= 1.001 * SHORT_ALONE
    assert len(rig.seconds) < 1.2 * sum(rig.seconds) / SHORT_ALONE + 8


@pytest.mark.parametrize(("costs", "most"), [(SMALL, 0.025), (MIDDLE, 0.167)])
def test_prompts_beside_calls_of_others_are_cut_to_shorter_steps(
    costs: tuple[float, float], most: float
) -> None:
    rig = TimedRig(*costs, step_ms=50)
    for number in range(9):
        rig.gen(prompt(number, 700), 1)
    rig.run()
    number = len(rig.seconds)
    for client in ("one", "two"):
        rig.gen(prompt(99, 1200), 1, client=client, namespace=Namespace(client))
    while rig.scheduler.shares.are_several:
        rig.step()
    assert max(rig.seconds[number:]) <= 1.001 * most


def test_a_client_that_decodes_little_waits_for_short_steps_and_the_others_take_turns() -> None:
    rig = TimedRig(*SMALL, step_ms=50, num_pages=4000)
    rig.gen([95, 7], 3)
    rig.run()  # what a step takes by itself is known
    many = [rig.gen([number + 1, 7], 200, client="many") for number in range(90)]
    for _ in range(20):
        rig.step()
    assert len(rig.plans[-1].rows) == 90, "alone they all decode in each step"
    little = rig.gen([95, 7], 40, client="little")
    rig.step()
    number, before = len(rig.seconds), [one.num_generated for one in many]
    while little.num_generated < 40:
        rig.step()
        assert little in [row.sequence for row in rig.plans[-1].rows]
    took = rig.seconds[number:]
    assert max(took) <= 1.001 * 0.025
    grown = [one.num_generated - then for one, then in zip(many, before, strict=True)]
    assert max(grown) - min(grown) <= 1, "each sits out in turn"
    assert sum(grown) >= 0.8 * sum(took) / SMALL[1] * 0.9, "the steps are as long as they may be"
