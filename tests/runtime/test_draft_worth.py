"""Drafts stop where they do not pay, and start again where they may."""

from __future__ import annotations

import random

import pytest

from lmprog.config import SchedulerConfig, SpeculationName
from lmprog.runtime.scheduling.draft_worth import (
    AT_FIRST,
    FIRST_RATIO,
    LONGEST_PAUSE,
    MOST,
    SHORTEST_PAUSE,
    SHORTEST_TRIAL,
    DraftCosts,
    DraftTrials,
    after_draft,
    most_worth,
)
from tests.runtime.guesses import knowing
from tests.runtime.rig import VOCAB, Rig, expected


@pytest.mark.parametrize("num_rows", [1, 8, 64])
@pytest.mark.parametrize("drafted", [0.05, 0.3, 1.0])
def test_a_drafted_token_costs_what_steps_with_drafts_last_longer(
    num_rows: int, drafted: float
) -> None:
    dice, costs = random.Random(3), DraftCosts()
    assert costs.ratio(num_rows) == FIRST_RATIO
    for _ in range(300):
        count = dice.choice([0, 2, 5]) * num_rows
        seconds = (num_rows + drafted * count) * dice.uniform(0.95, 1.05)
        costs.observe(num_rows, count, 1e-3 * seconds)
    assert costs.ratio(num_rows) == pytest.approx(drafted, abs=0.15)


def test_costs_of_many_rows_are_not_those_of_one() -> None:
    """What is fixed is paid once, however many rows share it."""
    costs = DraftCosts()
    for step in range(100):
        for num_rows in (1, 16):
            count = 4 * (step % 2)
            costs.observe(num_rows, count, 10.0 + num_rows + count)
    assert costs.ratio(1) == pytest.approx(1 / 11, abs=0.05)
    assert costs.ratio(16) == pytest.approx(16 / 26, abs=0.05)


def test_a_machine_that_was_busy_with_something_else_is_not_the_drafts_fault() -> None:
    costs = DraftCosts()
    for step in range(200):
        count = 4 * (step % 2)
        costs.observe(1, count, 1.0 + 0.1 * count + 1_000.0 * (step in (150, 181)))
    assert costs.ratio(1) < 0.5


def test_steps_without_drafts_are_made_to_compare_with() -> None:
    costs, num_drafted = DraftCosts(), []
    for _ in range(100):
        num_drafted.append(0 if costs.needs_plain(3) else 5)
        costs.observe(3, num_drafted[-1], 1.0)
    assert num_drafted[0] == 0
    assert num_drafted.count(0) == 6
    assert costs.needs_plain(4), "a number of rows that was not seen"


def test_a_cost_measured_long_ago_is_doubted() -> None:
    costs = DraftCosts()
    for step in range(100):
        costs.observe(1, step % 2, 1.0 + step % 2)
    assert costs.ratio(1) > 0.8
    for _ in range(1_500):
        costs.observe(1, 0, 1.0)
    assert costs.ratio(1) == pytest.approx(FIRST_RATIO, abs=0.05)


def test_more_is_drafted_the_likelier_it_is_right_and_the_less_it_costs() -> None:
    assert [most_worth(chance, 0.3) for chance in (0.2, 0.3, 0.6, 0.9, 1.0)] == [0, 1, 2, 11, MOST]
    assert [most_worth(0.6, least) for least in (0.61, 0.6, 0.1, 0.0)] == [0, 1, 4, MOST]


def test_a_chance_follows_what_happened() -> None:
    assert after_draft(AT_FIRST, 3, 3) > after_draft(AT_FIRST, 1, 1) > AT_FIRST
    assert after_draft(AT_FIRST, 0, 5) < AT_FIRST
    assert after_draft(AT_FIRST, 0, 5) == after_draft(AT_FIRST, 0, 1), "only the first one counts"
    assert after_draft(AT_FIRST, 2, 5) < after_draft(AT_FIRST, 2, 2)


def looks(trials: DraftTrials, num_steps: int, plain: float, with_drafts: float) -> list[bool]:
    """In which steps of four rows drafts are looked for, which then bring a fifth token."""
    found = []
    for _ in range(num_steps):
        found.append(trials.may_look(4))
        if found[-1]:
            trials.observe(4, 5, with_drafts, num_drafted=2)
        else:
            trials.observe_plain(4, plain)
    return found


def test_where_looking_for_drafts_loses_time_the_pauses_grow() -> None:
    found = looks(DraftTrials(), 4_000, plain=4.0, with_drafts=5.2)
    trials = sum(found) / SHORTEST_TRIAL
    assert found.index(True) > 0, "there is something to compare with"
    assert sum(found[: SHORTEST_PAUSE // 2]) <= SHORTEST_TRIAL
    assert 4_000 / LONGEST_PAUSE / 2 < trials < 4_000 / LONGEST_PAUSE + 6


def test_where_they_save_time_nothing_pauses_and_another_size_is_judged_by_itself() -> None:
    trials = DraftTrials()
    found = looks(trials, 500, plain=4.0, with_drafts=4.3)
    assert sum(found) > 0.95 * len(found), "but for a few to compare with"
    assert not trials.may_look(16), "of so many rows nothing is known yet"


def test_beside_other_rows_a_right_token_saves_less_than_a_row_costs() -> None:
    assert sum(looks(DraftTrials(), 500, plain=4.0, with_drafts=4.8)) < 100
    alone, num_looked = DraftTrials(), 0
    for _ in range(500):
        looked = alone.may_look(1)
        num_looked += looked
        if looked:
            alone.observe(1, 2, 1.6, num_drafted=1)
        else:
            alone.observe_plain(1, 1.0)
    assert num_looked > 400


def test_slow_first_steps_are_not_what_later_ones_are_held_against() -> None:
    """A process begins slowly; drafts that lose time look like savings beside that."""
    trials = DraftTrials()
    looks(trials, 12, plain=12.0, with_drafts=12.0)
    found = looks(trials, 1_000, plain=4.0, with_drafts=5.2)
    assert sum(found[500:]) < 50


def test_what_begins_to_pay_is_tried_again() -> None:
    trials = DraftTrials()
    assert sum(looks(trials, 1_000, plain=4.0, with_drafts=6.0)) < 100
    assert sum(looks(trials, 1_000, plain=4.0, with_drafts=4.0)) > 500


def drafted_in(mode: SpeculationName, right: float, length: int = 150) -> Rig:
    """A step lasts a second and one more for each token: a drafted one costs half of a row."""
    rig = Rig(SchedulerConfig(page_size=16, num_pages=64, speculation=mode))
    prompt = [random.Random(1).randrange(VOCAB) for _ in range(9)]
    rig.scheduler.drafting.source = knowing([prompt + expected(prompt, length)], right)
    sequence = rig.gen(prompt, length)
    rig.run()
    assert list(sequence.tokens) == prompt + expected(prompt, length)
    return rig


def test_drafts_that_are_wrong_are_given_up_and_tried_again_seldom() -> None:
    stats = drafted_in("auto", right=0.0).scheduler.stats
    assert 3 <= stats.drafted_tokens <= 30
    assert stats.accepted_tokens == 0
    assert drafted_in("always", right=0.0).scheduler.stats.drafted_tokens > 400


def test_drafts_that_are_right_are_made_longer() -> None:
    stats = drafted_in("auto", right=1.0).scheduler.stats
    assert stats.accepted_tokens == stats.drafted_tokens
    assert stats.steps < 150 / 3


def test_nothing_is_drafted_where_that_is_off() -> None:
    stats = drafted_in("off", right=1.0).scheduler.stats
    assert stats.drafted_tokens == 0
    assert stats.steps == 150
