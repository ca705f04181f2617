"""Frames of layers with windows in a second tier, on the fake model, whose text changes with any
wrong frame: what is stored, what comes back, and what goes first."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from lmprog.config import SchedulerConfig
from lmprog.radix.frames import WindowPages, WindowPool
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence
from lmprog.runtime.tier.page_store import page_keys, root_of
from lmprog.runtime.tier.second_tier import SecondTier
from lmprog.runtime.tier.stored_frames import FrameHandles
from lmprog.runtime.tier.storing import TierStoring
from tests.runtime.rig import Rig, expected

PARTS = 5
"""Of a frame."""


def rig_of(num_handles: int = 400, num_pages: int = 60, **config: Any) -> Rig:
    fields: dict[str, Any] = {"page_size": 4, "num_pages": num_pages, "speculation": "off"}
    pool = WindowPool(8, num_pages, 1, PARTS)
    return Rig(SchedulerConfig(**fields | config), num_handles=num_handles, windows=pool)


def tier_of(rig: Rig) -> SecondTier:
    tier = rig.scheduler.tier
    assert tier is not None
    return tier


def handles_of(rig: Rig) -> FrameHandles:
    handles = tier_of(rig)._handles
    assert isinstance(handles, FrameHandles)
    return handles


def numbers(count: int, seed: int = 1) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(97) for _ in range(count)]


def ran(rig: Rig, prompt: list[int], count: int) -> Sequence:
    """Its text is right."""
    sequence = rig.gen(prompt, count)
    rig.run()
    assert list(sequence.tokens) == [*prompt, *expected(prompt, count)]
    return sequence


def framed(rig: Rig, tokens: array[int]) -> list[bool]:
    """Of the pages of a stored path, whether their frames are stored."""
    found = tier_of(rig).index.match(tokens, root_of("").hex())
    pages = found.pages if found.partial is None else [*found.pages, found.partial]
    return [page in handles_of(rig).of for page in pages]


@pytest.mark.parametrize("length", [45, 46, 48, 49])
def test_an_evicted_text_is_gone_on_from_where_it_ended(length: int) -> None:
    rig = rig_of()
    first = ran(rig, numbers(length - 6), 6)
    rig.scheduler.tree.clear()
    known = length - 1  # of the last token nothing was computed
    seen = framed(rig, first.tokens)
    assert seen == [False] * (len(seen) - sum(seen)) + [True] * sum(seen)
    assert sum(seen) in (2, 3), "the last window"
    longer = ran(rig, [*first.tokens, 7, 8], 3)
    assert longer.num_found == known
    num_frames = len(seen) - (known - 7) // 4
    assert tier_of(rig).counters.loaded == len(seen) + PARTS * num_frames


def test_frames_that_are_gone_come_back_to_pages_that_stayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stretch that gives way is stored with its path; nothing was stored at rest or ahead."""
    monkeypatch.setattr(TierStoring, "save_recent", lambda *_: True)
    monkeypatch.setattr(TierStoring, "save_ahead", lambda *_: None)
    rig = rig_of()
    first = ran(rig, numbers(42), 4)
    pages = rig.scheduler.pages
    assert isinstance(pages, WindowPages)
    while pages.give_way():
        pages.trim()
    assert not any(pages.frames)
    assert rig.scheduler.tree.match(first.tokens).length == 45
    longer = ran(rig, [*first.tokens, 7, 8], 3)
    assert longer.num_found == 44, "whole pages only: the last one has no frame any more"
    assert tier_of(rig).counters.loaded == 2 * PARTS


def test_what_parted_in_the_middle_is_gone_on_from_there() -> None:
    rig = rig_of()
    base = numbers(60)
    ran(rig, base, 4)
    for token in (1, 2):
        ran(rig, [*base[:32], token, *numbers(20, token)], 4)
    rig.scheduler.tree.clear()
    third = ran(rig, [*base[:32], 3, *numbers(20, 3)], 4)
    assert third.num_found == 32


def test_frames_behind_a_longer_text_go_first() -> None:
    """Where only one text went on; those at which several parted stay."""
    rig = rig_of(num_handles=130)
    base = ran(rig, numbers(40), 6)
    rig.scheduler.tree.clear()
    longer = ran(rig, [*base.tokens, *numbers(40, 2)], 6)
    rig.scheduler.tree.clear()
    handles = handles_of(rig)
    assert len(handles.passed) == sum(framed(rig, longer.tokens)) - 3
    assert framed(rig, longer.tokens)[-3:] == [True] * 3
    while handles.give_way():
        pass
    assert sum(framed(rig, longer.tokens)) == 3
    assert ran(rig, [*longer.tokens, 5], 2).num_found == len(longer.tokens) - 1


def test_a_runtime_that_opens_the_store_finds_frames_with_their_pages() -> None:
    rig = rig_of()
    first = ran(rig, numbers(42), 4)
    rig.scheduler.tree.clear()
    again = rig_of()
    again.store.kept = rig.store.kept
    again.scheduler = Scheduler(again.config, 4096, store=again.store, windows=again.windows)
    assert framed(again, first.tokens) == framed(rig, first.tokens)
    assert ran(again, [*first.tokens, 7, 8], 3).num_found == 45


def test_a_frame_that_is_not_what_was_stored_is_computed_again() -> None:
    rig = rig_of()
    first = ran(rig, numbers(42), 4)
    rig.scheduler.tree.clear()
    found = tier_of(rig).index.match(first.tokens, root_of("").hex())
    lost = handles_of(rig).of[found.pages[-1]]
    rig.store.kept[lost[1]].contents = None
    assert ran(rig, [*first.tokens, 7, 8], 3).num_found == 0
    assert tier_of(rig).counters.loaded == 12, "the pages were good"
    assert tier_of(rig).counters.lost > 0
    assert not framed(rig, first.tokens)[-2]


def test_the_key_of_a_frame_is_none_of_its_page_or_of_a_state() -> None:
    rig = rig_of()
    ran(rig, numbers(20), 4)
    frames = tier_of(rig)._frames
    assert frames is not None
    page = page_keys(root_of(""), array("i", numbers(4)).tobytes(), 4)[0]
    keys = frames.keys(page)
    assert len({page.id, *(key.id for key in keys)}) == 1 + PARTS
    assert not any(page.is_served_by(key) or key.is_served_by(page) for key in keys)
    assert not any(a.is_served_by(b) for a in keys for b in keys if a is not b)
