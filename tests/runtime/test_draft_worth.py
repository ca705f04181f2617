"""Drafts stop where they do not pay, and start again where they may."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

import pytest

from lmprog.config import SchedulerConfig, SpeculationName
from lmprog.runtime.scheduling import drafting
from lmprog.runtime.scheduling.draft_worth import (
    ALLOWED,
    ALONE,
    COMPARED,
    FIRST_RATIO,
    KEPT,
    MOST,
    MOST_CREDIT,
    OUTLIER,
    STAKE,
    STALE,
    UNEVEN,
    DraftAccounts,
    DraftCosts,
    StepKind,
)
from lmprog.runtime.scheduling.drafting import Guess
from lmprog.runtime.scheduling.plan import Row
from tests.runtime.guesses import knowing
from tests.runtime.rig import VOCAB, Rig, expected

# --- what a drafted token costs


@pytest.mark.parametrize("num_rows", [1, 8, 64])
@pytest.mark.parametrize("drafted", [0.05, 0.3, 1.0])
def test_a_drafted_token_costs_what_steps_with_drafts_last_longer(
    num_rows: int, drafted: float
) -> None:
    dice, costs, kind = random.Random(3), DraftCosts(), StepKind(num_rows, True)
    assert costs.ratio(kind) == FIRST_RATIO
    for _ in range(300):
        count = dice.choice([0, 2, 5]) * num_rows
        observe(costs, kind, count, (num_rows + drafted * count) * dice.uniform(0.95, 1.05))
    assert costs.ratio(kind) == pytest.approx(drafted, abs=0.15)
    assert costs.usual(kind) == pytest.approx(num_rows, rel=0.05)


def observe(costs: DraftCosts, kind: StepKind, num_drafted: int, seconds: float) -> None:
    if num_drafted:
        costs.observe(kind, num_drafted, seconds)
    else:
        costs.observe_plain(kind, seconds)


def test_costs_of_many_rows_are_not_those_of_one() -> None:
    """What is fixed is paid once, however many rows share it."""
    costs = DraftCosts()
    for step in range(100):
        for num_rows in (1, 16):
            count = 4 * (step % 2)
            observe(costs, StepKind(num_rows, True), count, 10.0 + num_rows + count)
    one, many = StepKind(1, True), StepKind(16, True)
    assert costs.ratio(one) == pytest.approx(1 / 11, abs=0.05)
    assert costs.ratio(many) == pytest.approx(16 / 26, abs=0.05)
    assert costs.ratio(StepKind(16, False)) == FIRST_RATIO, "masks cost something, too"


def test_steps_with_more_drafted_tokens_tell_better_what_one_costs() -> None:
    """One of 64 beside many of one, which other work makes three times as dear."""
    costs, kind = DraftCosts(), StepKind(8, True)
    costs.observe_plain(kind, 8.0)
    costs.observe(kind, 64, 8.0 + 64 * 0.4)
    for _ in range(12):
        costs.observe(kind, 1, 8.0 + 3 * 0.4)
    assert costs.ratio(kind) == pytest.approx(0.4, abs=0.05)


def test_a_step_that_took_much_longer_than_it_should_was_disturbed() -> None:
    costs, kind = DraftCosts(), StepKind(8, True)
    for _ in range(20):
        costs.observe_plain(kind, 8.0)
        assert costs.observe(kind, 16, 16.0) <= 2.1
    assert costs.observe(kind, 16, 800.0) == pytest.approx(2.0 * OUTLIER, rel=0.05)


def test_a_machine_that_was_busy_with_something_else_is_not_the_drafts_fault() -> None:
    costs, kind = DraftCosts(), StepKind(1, True)
    for step in range(200):
        count = 4 * (step % 2)
        seconds = 1.0 + 0.1 * count + 1_000.0 * (step in (150, 181))
        observe(costs, kind, count, seconds)
    assert costs.ratio(kind) < 0.5
    assert costs.usual(kind) == 1.0


def test_what_a_step_takes_without_drafts_is_measured_again_when_it_is_old() -> None:
    costs, kind = DraftCosts(), StepKind(3, True)
    assert costs.usual(kind) is None
    costs.observe_plain(kind, 9.0)
    for _ in range(STALE):
        assert costs.usual(kind) == 9.0
        costs.observe(kind, 2, 9.5)
    assert costs.usual(kind) is None
    costs.observe_plain(kind, 5.0)
    assert costs.usual(kind) == 5.0, "what is that old does not count any more"


def test_slow_first_steps_are_not_what_later_ones_are_held_against() -> None:
    """After a prompt, a step is slow, and a mask that is made for the first time takes long."""
    costs, kind = DraftCosts(), StepKind(1, False)
    for step in range(3 * KEPT):
        costs.observe_plain(kind, 3.0 if step % 3 == 0 else 1.0)
    assert costs.usual(kind) == 1.0


def test_a_cost_measured_long_ago_is_doubted() -> None:
    costs, kind = DraftCosts(), StepKind(1, True)
    for step in range(100):
        observe(costs, kind, step % 2, 1.0 + step % 2)
    assert costs.ratio(kind) > 0.8
    for _ in range(1_500):
        costs.observe_plain(kind, 1.0)
    assert costs.ratio(kind) == pytest.approx(FIRST_RATIO, abs=0.05)


# --- whether it pays


class Steps:
    """Steps of four rows, in which drafts bring `num_accepted` further tokens."""

    def __init__(self, num_steps: float, num_accepted: int = 1, looking: float = 0.0) -> None:
        """`num_steps`: what a step with drafts takes, in steps without."""
        self.num_steps = num_steps
        self.num_accepted = num_accepted
        self.looking = looking
        self.lost = 0.0

    def run(self, accounts: DraftAccounts, count: int) -> int:
        """In how many of so many steps something is drafted; where looking takes time, in none."""
        kind, num_drafted = StepKind(4, True), 0
        for _ in range(count):
            may = accounts.may_draft(kind)
            if may and not self.looking:
                num_drafted += 1
                self.lost += self.num_steps - 1.0
                accounts.book(kind, self.num_accepted, self.num_steps)
            else:
                self.lost += self.looking * may
                accounts.credit(kind, self.looking * may, 1)
        return num_drafted


@pytest.mark.parametrize("num_steps", [1.05, 1.3, 1.9])
def test_where_drafts_lose_time_all_trials_together_lose_a_part_of_it(num_steps: float) -> None:
    accounts, steps = DraftAccounts(), Steps(num_steps, num_accepted=0)
    num_drafted = steps.run(accounts, 5_000)
    assert num_drafted > 20, "it is tried again"
    assert steps.lost <= STAKE + 5_000 * ALLOWED + num_steps


def test_looking_for_what_is_never_found_loses_no_more() -> None:
    steps = Steps(1.0, looking=0.08)
    steps.run(DraftAccounts(), 5_000)
    assert 0.5 * 5_000 * ALLOWED < steps.lost <= STAKE + 5_000 * ALLOWED + 1


def test_where_drafts_save_time_nothing_pauses() -> None:
    num_drafted = Steps(1.05, num_accepted=2).run(DraftAccounts(), 500)
    assert num_drafted == 500 - 500 // (COMPARED + 1), "but for a few to compare with"


def test_a_right_token_saves_less_where_some_rows_go_on_slowly() -> None:
    """Of a row's part of a step: all of it, a half, or what was found between the two."""
    kind = StepKind(4, True)
    for paces, saved in (([6.0] * 4, 1.0), ([6.0, 6.0, 6.0, 0.0], UNEVEN), ([2.0, 1.0] * 2, 5 / 6)):
        accounts = DraftAccounts()
        for _ in range(100):
            accounts.see_paces(kind, paces)
        assert accounts.saved_by_one(kind) == pytest.approx(saved, abs=0.01)
        assert accounts.saved_by_one(StepKind(1, True)) == ALONE
        assert UNEVEN < accounts.saved_by_one(StepKind(64, True)) < 1.0, "not known yet"


def test_where_rows_gain_alike_drafts_that_cost_half_of_a_row_pay() -> None:
    """And where one of them gains nothing, they do not."""
    kind = StepKind(4, True)
    for paces, pays in (([3.0] * 4, True), ([4.0, 4.0, 4.0, 0.0], False)):
        accounts = DraftAccounts()
        for _ in range(60):
            accounts.see_paces(kind, paces)
            accounts.book(kind, 12, 1.0 + 16 * 0.5 / 4)
        assert accounts.is_open(kind) == pays


def test_a_trial_stakes_no_more_than_it_may_lose() -> None:
    """Each row tries so many tokens that all of them together, if none is right, take what is
    left; what they save lets the next steps try more.
    """
    accounts, kind, ratio, tried = DraftAccounts(), StepKind(8, True), 0.5, []
    for _ in range(12):
        tried.append(accounts.most_each(kind, ratio))
        accounts.book(kind, 8 * tried[-1], 1.0 + tried[-1] * ratio)
    assert tried[0] == STAKE / ratio
    assert tried == sorted(tried)
    assert tried[-1] == MOST
    accounts, lost = DraftAccounts(), 0.0
    while accounts.is_open(kind):
        num_steps = 1.0 + accounts.most_each(kind, ratio) * ratio
        accounts.book(kind, 0, num_steps)
        lost += num_steps - 1.0
    assert lost <= STAKE


def test_what_was_saved_does_not_pay_for_endless_losses() -> None:
    accounts = DraftAccounts()
    Steps(1.0, num_accepted=4).run(accounts, 1_000)
    steps = Steps(1.5, num_accepted=0)
    steps.run(accounts, 500)
    assert steps.lost <= MOST_CREDIT + 500 * ALLOWED + 1


def test_what_begins_to_pay_is_tried_again() -> None:
    accounts = DraftAccounts()
    assert Steps(1.5, num_accepted=0).run(accounts, 1_000) < 50
    assert Steps(1.0).run(accounts, 1_000) > 800


def test_beside_prompts_nothing_is_drafted_before_it_has_paid() -> None:
    accounts, kind = DraftAccounts(), StepKind(4, True)
    assert accounts.may_draft(kind)
    assert not accounts.may_draft(kind, has_prompts=True)
    accounts.book(kind, 4, 1.0)
    assert accounts.may_draft(kind, has_prompts=True)


# --- in the scheduler


def drafted_in(mode: SpeculationName, right: float, length: int = 150) -> Rig:
    """A step lasts a second and one more for each token: a drafted one costs half of a row."""
    rig = Rig(SchedulerConfig(page_size=16, num_pages=64, speculation=mode))
    prompt = [random.Random(1).randrange(VOCAB) for _ in range(9)]
    if rig.scheduler.drafting is not None:
        rig.scheduler.drafting.source = knowing([prompt + expected(prompt, length)], right)
    sequence = rig.gen(prompt, length)
    rig.run()
    assert list(sequence.tokens) == prompt + expected(prompt, length)
    return rig


def test_drafts_that_are_wrong_are_given_up_and_tried_again_seldom() -> None:
    stats = drafted_in("auto", right=0.0, length=900).scheduler.stats
    assert 3 <= stats.drafted_tokens <= 60
    assert stats.accepted_tokens == 0
    assert drafted_in("always", right=0.0).scheduler.stats.drafted_tokens > 400


def test_a_short_request_does_not_try_what_those_before_it_found_wrong() -> None:
    """By counts: many requests of ten tokens draft no more than one long one."""
    rig = Rig(SchedulerConfig(page_size=16, num_pages=64, speculation="auto"))
    drafted = []
    for number in range(40):
        prompt = [number, 1, 2, 3]
        text = prompt + expected(prompt, 10)
        rig.scheduler.drafting.source = knowing([text], right=0.0)
        sequence = rig.gen(prompt, 10)
        rig.run()
        assert list(sequence.tokens) == text
        drafted.append(sequence.group.drafted)
    assert sum(drafted[:4]) >= 2
    assert sum(drafted[4:]) <= 12


def test_nothing_is_looked_for_and_little_noted_while_drafts_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By counts: of the steps of a pause, one in ten is looked at."""
    rig = Rig(SchedulerConfig(page_size=16, num_pages=256, speculation="auto"))
    num_noted, num_guessed = [0], [0]
    kind_of = drafting.decoding_kind

    def counted(rows: Sequence[Row]) -> StepKind | None:
        num_noted[0] += 1
        return kind_of(rows)

    def source(tokens: array[int], most: int, evidence: int) -> Guess:
        num_guessed[0] += 1
        return Guess(())

    monkeypatch.setattr(drafting, "decoding_kind", counted)
    rig.scheduler.drafting.source = source
    for number in range(4):
        rig.gen([number, 1], 600)
    for _ in range(20):
        rig.step()
    assert num_guessed[0] > 0
    for _ in range(30):
        rig.scheduler.drafting.accounts.book(StepKind(4, True), 0, 2.0)
    rig.step()
    num_noted[0], num_guessed[0] = 0, 0
    for _ in range(500):
        rig.step()
    assert num_guessed[0] == 0
    assert 50 <= num_noted[0] <= 110, "before a step, and after it"


def test_drafts_that_are_right_are_made_longer() -> None:
    stats = drafted_in("auto", right=1.0).scheduler.stats
    assert stats.accepted_tokens == stats.drafted_tokens
    assert stats.steps < 150 / 2


def test_nothing_is_drafted_where_that_is_off() -> None:
    stats = drafted_in("off", right=1.0).scheduler.stats
    assert stats.drafted_tokens == 0
    assert stats.steps == 150
