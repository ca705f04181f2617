"""Recurrent states in the scheduler: where rows read and leave them, on the fake model, whose text
changes with any wrong state."""

from __future__ import annotations

from array import array
from typing import Any
from unittest.mock import patch

import pytest

from lmprog.config import SchedulerConfig
from lmprog.errors import ModelError
from lmprog.runtime.scheduling.drafting import Guess, decoding_kind, num_again
from lmprog.runtime.scheduling.plan import Plan, RowDraft
from lmprog.runtime.scheduling.recurrent import StatePool
from lmprog.runtime.scheduling.sequence import Sequence
from tests.runtime.rig import Rig, expected

PROMPT = [(7 * place) % 61 for place in range(40)]


def rig_of(num_slots: int = 32, every: int = 1000, **config: Any) -> Rig:
    fields: dict[str, Any] = {"page_size": 4, "num_pages": 200, **config}
    return Rig(SchedulerConfig(**fields), states=StatePool(num_slots, every))


def right(rig: Rig, *sequences: Sequence) -> bool:
    """Whether each went on as the model does without any cache."""
    return all(
        list(one.tokens)[one.group.prompt_len :]
        == expected(list(one.tokens)[: one.group.prompt_len], one.num_generated)
        for one in sequences
    )


def computed(rig: Rig) -> list[list[tuple[int, int]]]:
    """By step: the rows' first and last positions."""
    return [[(row.start, row.end) for row in plan.rows] for plan in rig.plans if plan.rows]


def test_the_same_prompt_is_computed_again_from_its_last_token() -> None:
    rig = rig_of()
    first = rig.gen(PROMPT, 3)
    rig.run()
    second = rig.gen(PROMPT, 3)
    rig.run()
    assert right(rig, first, second)
    assert computed(rig)[0] == [(0, 40)]
    assert computed(rig)[3][0] == (39, 40)


def test_a_branch_goes_on_where_it_ended() -> None:
    rig = rig_of()
    first = rig.gen(PROMPT, 3)
    rig.run()
    longer = [*first.tokens, 5, 6]
    forks = [rig.gen([*longer, token], 3) for token in (7, 8, 9)]
    rig.run()
    assert right(rig, *forks)
    assert computed(rig)[3] == [(42, 46), (45, 46), (45, 46)]


def test_sequences_of_one_step_share_a_prefix_that_it_computes() -> None:
    rig = rig_of()
    forks = [rig.gen([*PROMPT[:30], token, 1, 2], 3) for token in (50, 51, 52)]
    rig.run()
    assert right(rig, *forks)
    assert computed(rig)[0] == [(0, 33), (30, 33), (30, 33)]


def test_what_lies_behind_the_last_state_is_computed_again_once_and_its_pages_are_shared() -> None:
    rig = rig_of()
    rig.gen(PROMPT, 1)
    rig.run()
    held = rig.scheduler.tree.num_cached
    parting = [rig.gen([*PROMPT[:21], token, 1, 2], 4) for token in (50, 51)]
    rig.run()
    assert right(rig, *parting)
    assert computed(rig)[1] == [(0, 21), (21, 24)], "up to where the tree's tokens end"
    again = rig.gen([*PROMPT[:21], 52, 1, 2], 1)
    rig.run()
    assert right(rig, again)
    assert computed(rig)[-1] == [(21, 24)]
    assert rig.scheduler.tree.num_cached <= held + 3 * 3, "the prefix has its pages once"


def test_a_known_prompt_without_its_state_is_computed_again_and_has_its_pages_once() -> None:
    rig = rig_of()
    rig.gen(PROMPT, 1)
    rig.run()
    pages, states = rig.scheduler.pages, rig.scheduler.tables.states
    assert states is not None
    for slot_of in [*states.snapshots._order, *states.snapshots._unused]:
        states.snapshots.drop(slot_of)
    held = pages.num_pages - pages.num_free
    again = rig.gen(PROMPT, 6)
    rig.step()
    assert computed(rig)[-1] == [(0, 40)]
    rig.step()
    assert pages.num_pages - pages.num_free <= held + 1
    rig.run()
    assert right(rig, again)


def test_snapshots_are_left_every_so_many_tokens_of_a_prompt() -> None:
    rig = rig_of(every=8)
    rig.gen(PROMPT, 1)
    rig.run()
    parting = rig.gen([*PROMPT[:21], 50], 2)
    rig.run()
    assert right(rig, parting)
    assert computed(rig)[1] == [(16, 21)]


def test_a_preempted_sequence_goes_on_from_its_state() -> None:
    rig = rig_of()
    only = rig.gen(PROMPT, 6)
    rig.step()
    rig.step()
    rig.scheduler.preempt(only)
    rig.run()
    assert right(rig, only)
    assert computed(rig)[2] == [(41, 42)]


def test_whoever_finds_no_slot_waits_for_one() -> None:
    rig = rig_of(num_slots=3)
    several = [rig.gen([token, *PROMPT], 4) for token in range(6)]
    rig.run()
    assert right(rig, *several)
    assert max(len(plan.rows) for plan in rig.plans) <= 3


def drafting_rig(guesses: list[list[int]], num_slots: int = 32) -> Rig:
    """Each guess is tried in its turn."""
    rig = rig_of(num_slots, speculation="always", share=False)
    assert rig.scheduler.drafting is not None
    rig.scheduler.drafting.source = lambda tokens, most, evidence: Guess(
        guesses.pop(0)[:most] if guesses else ()
    )
    return rig


def test_after_a_right_draft_the_state_is_the_one_behind_it() -> None:
    right_ones = expected(PROMPT, 8)
    rig = drafting_rig([right_ones[:2]])
    only = rig.gen(PROMPT, 8)
    rig.run()
    assert right(rig, only)
    assert computed(rig)[:2] == [[(0, 42)], [(42, 43)]]


def test_after_a_wrong_draft_what_was_right_is_computed_again_from_the_state_before_it() -> None:
    first, second, third = expected(PROMPT, 3)
    rig = drafting_rig([[first, second + 1], [third + 1]])
    only = rig.gen(PROMPT, 8)
    rig.run()
    assert right(rig, only)
    assert computed(rig)[:3] == [[(0, 42)], [(40, 43)], [(42, 43)]]
    assert only.group.computed == 40 + 7 + 1


def test_what_is_computed_again_counts_as_a_cost_of_drafts() -> None:
    drafts = {row: RowDraft(array("i", range(4)), (1, 2, 1)) for row in range(3)}
    assert num_again(drafts, {0: 2, 1: 3}) == 3, "of the first; the second is right, no third is"
    booked = []
    for states in (StatePool(32, 1000), None):
        rig = Rig(SchedulerConfig(page_size=4, num_pages=200, speculation="auto"), states=states)
        only = rig.gen(PROMPT, 8)
        while only.computed < 41:
            rig.step()
        row = rig.plans[-1].rows[0]
        drafting = rig.scheduler.drafting
        assert drafting is not None
        kind = decoding_kind([row])
        assert kind is not None
        for _ in range(3):
            drafting.costs.observe_plain(kind, 1.0)
        with patch.object(drafting.accounts, "book") as book:
            longer = row._replace(end=row.end + 4, tokens=row.tokens + drafts[0].tokens)
            drafting.observe(Plan((longer,), drafts={0: drafts[0]}), {0: 2}, 2.0)
        booked.append(book.call_args.args[2] - 3 * drafting.costs.ratio(kind) * bool(states))
        assert drafting.costs.ratio(kind) > 0.0
    assert booked[0] == pytest.approx(booked[1])


def test_without_a_slot_that_nobody_needs_nothing_is_drafted() -> None:
    rig = drafting_rig([[1, 2]], num_slots=2)
    several = [rig.gen([token, *PROMPT], 4) for token in range(2)]
    rig.run()
    assert right(rig, *several)
    assert not rig.scheduler.stats.drafted_tokens


@pytest.mark.parametrize("every", [1, 5, 1000])
@pytest.mark.parametrize("config", [{}, {"max_chunk": 3}, {"share": False}, {"num_pages": 18}])
def test_a_pool_of_two_slots_changes_no_answer(config: dict[str, Any], every: int) -> None:
    rig = rig_of(num_slots=2, every=every, **config)
    several = [rig.gen([*PROMPT[: 5 * part], 60, part], 5) for part in range(6)]
    rig.run()
    assert right(rig, *several)


def test_what_a_failed_step_was_to_leave_is_not_there() -> None:
    rig = rig_of()
    rig.gen(PROMPT, 1)
    rig.run()
    rig.gen([*PROMPT[:21], 50], 4)
    plan = rig.scheduler.plan()
    assert plan.states is not None
    assert plan.states.snapshots, "one where the tree's tokens end"
    for one in rig.scheduler.fail(plan, ModelError("told to")):
        rig.scheduler.end(one.sequence)
    rig.scheduler.check()
    after = rig.gen([*PROMPT[:21], 51], 4)
    rig.run()
    assert right(rig, after)
    assert computed(rig)[1] == [(0, 21)]


def test_the_state_behind_tokens_that_are_not_kept_is_given_up() -> None:
    """A stop text may drop tokens that were computed."""
    rig = rig_of()
    only = rig.gen(PROMPT, 6)
    for _ in range(5):
        rig.step()
    assert only.computed == 44
    rig.scheduler.end(only, keep=42)
    rig.scheduler.check()
    after = rig.gen([*only.tokens[:42], 50], 4)
    rig.run()
    assert right(rig, after)
    assert computed(rig)[5] == [(39, 42)], "from the last token of the prompt"


def test_a_model_without_recurrent_layers_has_nothing_of_it() -> None:
    rig = Rig(SchedulerConfig(page_size=4, num_pages=64))
    only = rig.gen(PROMPT, 2)
    rig.run()
    assert rig.scheduler.tables.states is None
    assert rig.scheduler.tree.watcher is None
    assert all(plan.states is None for plan in rig.plans)
    assert only.recurrent is None
