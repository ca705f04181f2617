"""What was right of drafts decides how many tokens the next ones have."""

from __future__ import annotations

import random

import pytest

from lmprog.runtime.scheduling.draft_worth import (
    ASKED,
    AT_FIRST,
    EVIDENCE,
    MOST,
    SHORTEST,
    WRITTEN,
    DraftChances,
    DraftRecord,
)

LONG = EVIDENCE[-1]


def drafted(chances: DraftChances, evidence: int, num_right: int, count: int) -> None:
    """A draft of plain text with so much evidence, so often."""
    for _ in range(count):
        chances.learn(True, evidence, num_right, MOST)


def test_more_is_drafted_the_likelier_it_is_right_and_the_less_it_costs() -> None:
    chances, found = DraftChances(), []
    for num_right in (0, 1, 3, 9, MOST):
        drafted(chances, ASKED, num_right, 40)
        found.append(chances.num_worth(True, ASKED, least=0.3))
    assert found[0] == 0
    assert found == sorted(found)
    assert found[-1] == MOST
    worth = [chances.num_worth(True, SHORTEST, least) for least in (0.61, 0.6, 0.3, 0.1, 0.0)]
    assert worth[:2] == [0, 1], "at first a token is right with a chance of 0.6"
    assert worth == sorted(worth)
    assert worth[-1] == MOST


def test_a_number_of_tokens_is_worth_it_where_all_of_them_are_right_with_the_least_chance() -> None:
    """By multiplying token by token."""
    dice = random.Random(2)
    for _ in range(200):
        chances = DraftChances()
        for _ in range(30):
            chances.learn(True, dice.randint(0, 20), dice.randint(0, 6), 6)
        evidence, least, factor = dice.randint(0, 20), dice.uniform(0.01, 1), dice.uniform(0.3, 1)
        count, gain = 0, 1.0
        while count < MOST:
            after = evidence + count if evidence >= SHORTEST else evidence
            gain *= factor * chances.of(True, after)
            if gain < least:
                break
            count += 1
        assert chances.num_worth(True, evidence, least, factor) == count


def test_in_a_long_copy_tokens_are_likelier_than_after_two_alike() -> None:
    """A draft of ten right tokens after two alike says little of what follows two alike."""
    chances = DraftChances()
    for _ in range(20):
        drafted(chances, SHORTEST, 0, 2)
        drafted(chances, SHORTEST, 10, 1)
    assert chances.of(True, SHORTEST) < 0.75
    assert chances.of(True, 2 * SHORTEST) > 0.95
    few = chances.num_worth(True, SHORTEST, least=0.6)
    assert few < 3
    assert chances.num_worth(True, 2 * SHORTEST, least=0.6) > few + 2


def test_of_what_follows_the_first_wrong_token_nothing_is_learned() -> None:
    few, many = DraftChances(), DraftChances()
    few.learn(True, SHORTEST, 3, 4)
    many.learn(True, SHORTEST, 3, 16)
    for evidence in EVIDENCE:
        assert few.of(True, evidence) == many.of(True, evidence)


def test_what_was_learned_of_a_kind_holds_for_the_next_request() -> None:
    chances = DraftChances()
    assert chances.of(True, SHORTEST) == chances.of(True, LONG) == AT_FIRST
    drafted(chances, SHORTEST, 0, 12)
    drafted(chances, LONG, 6, 12)
    assert chances.of(True, SHORTEST) < 0.15
    assert chances.of(True, LONG) > 0.8
    worth = chances.worth(True, least=0.5)
    assert worth == (2 * SHORTEST, True, chances.of(True, LONG))
    assert chances.worth(True, least=0.61).least == LONG
    assert chances.worth(True, least=0.999) == (None, False, 0.0)
    assert chances.of(False, SHORTEST) == AT_FIRST, "constrained ones are of another kind"


def test_what_a_model_writes_or_a_constraint_asks_for_stays_of_its_kind() -> None:
    for evidence in (WRITTEN, ASKED):
        chances = DraftChances()
        drafted(chances, evidence, MOST, 3)
        others = [one for one in EVIDENCE if one != evidence]
        assert chances.of(True, evidence) > 0.9
        assert {chances.of(True, one) for one in others} == {AT_FIRST}


def test_the_first_outcomes_of_a_kind_count_most() -> None:
    chances = DraftChances()
    chances.learn(False, LONG, 0, 1)
    first = AT_FIRST - chances.of(False, LONG)
    for _ in range(60):
        chances.learn(False, LONG, 1, 1)
    before = chances.of(False, LONG)
    chances.learn(False, LONG, 0, 1)
    assert (before - chances.of(False, LONG)) / before < first / AT_FIRST / 2


def test_a_kind_that_was_wrong_is_tried_again_seldom() -> None:
    chances, num_tried = DraftChances(), 0
    for _ in range(10_000):
        if chances.worth(True, least=0.3).least == SHORTEST:
            num_tried += 1
            chances.learn(True, SHORTEST, 0, 1)
    assert 20 < num_tried < 300


def test_a_sequence_whose_drafts_were_wrong_has_shorter_ones_than_others() -> None:
    """Until that is long ago. Right ones make them no longer than others'."""
    record = DraftRecord()
    assert record.factor == 1.0
    for _ in range(4):
        record.learn(expected=0.8, num_accepted=0, num_drafted=4)
    wrong = record.factor
    assert wrong < 0.55
    for _ in range(20):
        record.forget()
    assert record.factor > 0.95
    for _ in range(10):
        record.learn(expected=4.0, num_accepted=8, num_drafted=8)
    assert record.factor == 1.0


def test_a_sequence_that_does_as_well_as_others_is_judged_as_they_are() -> None:
    """What was expected of it is what the shared chances say of the tokens that were tried."""
    chances, record = DraftChances(), DraftRecord()
    for _ in range(60):
        expected = chances.learn(True, ASKED, 3, 6)
        record.learn(expected, 3, 6)
    assert expected == pytest.approx(3.0, rel=0.1)
    assert record.factor == pytest.approx(1.0, abs=0.1)


def test_a_pace_is_the_mean_of_the_newest_steps_with_drafts() -> None:
    record = DraftRecord()
    assert record.see_step(8) == 8.0
    for _ in range(40):
        record.see_step(2)
    assert record.pace == pytest.approx(2.0, abs=0.01)
