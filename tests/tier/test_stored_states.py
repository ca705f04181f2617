"""States of recurrent layers in a second tier, on the fake model, whose text changes with any wrong
state: what is stored, what comes back, and what goes first.
"""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from lmprog.config import SchedulerConfig
from lmprog.radix.snapshots import StateSnapshot
from lmprog.runtime.scheduling.recurrent import StatePool
from lmprog.runtime.tier.page_store import page_keys, root_of
from lmprog.runtime.tier.second_tier import SecondTier
from lmprog.runtime.tier.stored_states import StoredStates
from lmprog.runtime.tier.storing import TierStoring
from lmprog.simulation.fake_engine import PARTS_OF_STATE
from tests.runtime.rig import Rig
from tests.runtime.test_recurrent_states import PROMPT, computed, right


def rig_of(num_slots: int = 8, num_handles: int = 200, **config: Any) -> Rig:
    fields: dict[str, Any] = {"page_size": 4, "num_pages": 60, **config}
    pool = StatePool(num_slots, 1000, PARTS_OF_STATE)
    return Rig(SchedulerConfig(**fields), states=pool, num_handles=num_handles)


def tier_of(rig: Rig) -> SecondTier:
    tier = rig.scheduler.tier
    assert tier is not None
    return tier


def stored_of(rig: Rig) -> StoredStates:
    states = tier_of(rig)._states
    assert states is not None
    return states


def snapshots(rig: Rig) -> list[StateSnapshot]:
    """Those in memory."""
    return [one for root in rig.scheduler.tree.roots() for one in stored_of(rig).pool.below(root)]


def last_stored(rig: Rig, tokens: array[int]) -> int:
    tier = tier_of(rig)
    return stored_of(rig).last(tier.index.match(tokens, root_of("").hex()))


def test_an_evicted_path_comes_back_up_to_its_last_state() -> None:
    rig = rig_of()
    first = rig.gen(PROMPT, 6)
    rig.run()
    rig.scheduler.tree.clear()
    assert last_stored(rig, first.tokens) == 45, "of the last token nothing was computed"
    assert not snapshots(rig)
    longer = rig.gen([*first.tokens, 7, 8], 3)
    rig.run()
    assert right(rig, first, longer)
    assert computed(rig)[-3] == [(45, 48)]
    assert tier_of(rig).counters.loaded == 12 + PARTS_OF_STATE


def test_a_state_that_is_evicted_alone_comes_back_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was stored at rest or ahead."""
    monkeypatch.setattr(TierStoring, "save_recent", lambda *_: True)
    monkeypatch.setattr(TierStoring, "save_ahead", lambda *_: None)
    rig = rig_of(num_slots=3)
    first = rig.gen(PROMPT, 6)
    rig.run()
    for number in range(3):
        rig.gen([50, number, 3], 2)
        rig.run()
    assert first.tokens not in [one.node.tokens for one in snapshots(rig)]
    assert rig.scheduler.tree.match(first.tokens).length == 45
    longer = rig.gen([*first.tokens, 7, 8], 3)
    rig.run()
    assert right(rig, first, longer)
    assert computed(rig)[-3] == [(45, 48)]
    assert tier_of(rig).counters.loaded == PARTS_OF_STATE


def test_pages_behind_the_last_state_are_not_stored() -> None:
    rig = rig_of()
    first = rig.gen(PROMPT, 6)
    rig.run()
    for one in snapshots(rig):
        if one.position > len(PROMPT):
            stored_of(rig).pool.drop(one)
    rig.scheduler.tree.clear()
    assert tier_of(rig).index.match(first.tokens, root_of("").hex()).length == 39
    assert tier_of(rig).num_pages == 10 + PARTS_OF_STATE


def test_a_state_of_which_a_part_is_lost_is_none() -> None:
    rig = rig_of()
    first = rig.gen(PROMPT, 6)
    rig.run()
    rig.scheduler.tree.clear()
    for one in rig.store.kept.values():
        if one.key.part == PARTS_OF_STATE:
            one.contents = None
    longer = rig.gen([*first.tokens, 7, 8], 3)
    rig.run()
    assert right(rig, first, longer)
    assert computed(rig)[-4:-2] == [[(0, 45)], [(45, 48)]], "its pages are there"
    assert tier_of(rig).counters.lost == 1
    assert not [one for one in rig.store.kept.values() if one.key.part], "none is believed again"


def test_a_state_is_not_stored_before_the_step_that_computes_it_is_over() -> None:
    rig = rig_of()
    rig.gen(PROMPT, 1)
    plan = rig.scheduler.plan()
    assert plan.states is not None
    (snapshot,) = snapshots(rig)
    assert not snapshot.is_ready
    assert not stored_of(rig).wanted(snapshot.node, snapshot.position, whole=False)


def test_a_state_that_a_later_one_of_its_path_makes_needless_goes_first() -> None:
    rig = rig_of(num_handles=26)
    other = rig.gen([60, *PROMPT[:10]], 2)
    rig.run()
    rig.scheduler.tree.clear()
    chat = rig.gen(PROMPT, 2)
    rig.run()
    for _ in range(3):
        rig.scheduler.tree.clear()
        chat = rig.gen([*chat.tokens, 7, 8], 2)
        rig.run()
    rig.scheduler.tree.clear()
    assert last_stored(rig, other.tokens) == 12, "it is used less lately than needless states"
    assert last_stored(rig, chat.tokens) == len(chat.tokens) - 1
    assert tier_of(rig).num_pages <= 26


def test_what_was_stored_is_found_again_with_its_states() -> None:
    rig = rig_of()
    first = rig.gen(PROMPT, 6)
    rig.run()
    rig.scheduler.tree.clear()
    lost = next(handle for handle, one in rig.store.kept.items() if one.key.part == 1)
    again = rig_of()
    again.store.kept |= rig.store.kept
    scheduler = again.scheduler
    reopened = SecondTier(
        again.store,
        scheduler.tree,
        scheduler.pages,
        lambda: 1.0,
        lambda: 0.0,
        scheduler.tables.states and scheduler.tables.states.pool_states,
    )
    assert reopened.counters.found == tier_of(rig).num_pages
    assert reopened._states is not None
    found = reopened.index.match(first.tokens, root_of("").hex())
    assert reopened._states.last(found) == 45
    reopened.check()
    del again.store.kept[lost]
    without = SecondTier(
        again.store,
        scheduler.tree,
        scheduler.pages,
        lambda: 1.0,
        lambda: 0.0,
        scheduler.tables.states and scheduler.tables.states.pool_states,
    )
    assert without._states is not None
    assert not without._states.last(without.index.match(first.tokens, root_of("").hex()))


def test_keys_of_states_are_those_of_their_path_and_part() -> None:
    states = stored_of(rig_of())
    keys = page_keys(root_of(""), array("i", range(10)).tobytes(), 4)
    names = [key.id for end in range(1, 11) for key in states.keys(keys, end)]
    names += [key.id for key in keys]
    assert len(set(names)) == 10 * PARTS_OF_STATE + len(keys)
    one, other = states.keys(keys, 6)[0], states.keys(keys, 7)[0]
    assert not one.is_served_by(other), "a page serves what it begins with, a state does not"


def test_in_a_shared_store_states_are_left_between_pages() -> None:
    rig = rig_of()
    rig.store.is_shared = True
    shared = Rig(rig.config, states=StatePool(8, 6, PARTS_OF_STATE))
    states = shared.scheduler.tables.states
    assert states is not None
    states._grain, states._every = 4, 8
    shared.gen(PROMPT[:30], 1)
    shared.run()
    kept = [one for root in shared.scheduler.tree.roots() for one in states.snapshots.below(root)]
    assert sorted(one.position for one in kept) == [8, 16, 24, 28, 30]


def test_free_slots_are_the_parts_behind_the_pages() -> None:
    states = rig_of(num_slots=3).scheduler.tables.states
    assert states is not None
    assert states.snapshots.take_slot() == 0
    assert states.free_parts(60) == [62, 63, 64, 65]
