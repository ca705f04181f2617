"""Texts that part inside a page, in a store that others share: what they have in common is found to
the token, and nothing else is.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

import pytest

from lmprog.radix import RadixTree
from lmprog.runtime.tier import tier_questions
from lmprog.runtime.tier.page_store import LoadEnd, PageKey, page_keys, parts_of, root_of
from lmprog.runtime.tier.tier_questions import StoredParts
from lmprog.simulation.fake_engine import FakeStore, KeptPage
from tests.tier.tiered_pool import PAGE, TieredPool, text

STEM = array("i", range(1, 11))  # two whole pages of four, and half of one


class SharedFake(FakeStore):
    """A store that others write to: what is there is known by the ids of keys."""

    is_shared = True
    there: dict[bytes, KeptPage]

    def store(self, handle: int, page: int, key: PageKey, wait: float = 0.0) -> bool:
        taken = super().store(handle, page, key, wait)
        if taken and key.id not in self.there:
            self.there[key.id] = self.kept[handle]
        return taken

    def load(self, handles: Sequence[int], pages: Sequence[int], keys: Sequence[PageKey]) -> int:
        self.kept = {at: self.there[key.id] for at, key in enumerate(keys) if key.id in self.there}
        return super().load(range(len(keys)), pages, keys)

    def find(self, keys: Sequence[PageKey], states: Sequence[PageKey] = ()) -> int:
        self._num_loads += 1
        count = next((at for at, key in enumerate(keys) if key.id not in self.there), len(keys))
        parts = parts_of(keys[count]) if count < len(keys) else []
        found = (len(one.tokens) // 4 for one in parts if one.id in self.there)
        self.answers.append(LoadEnd(self._num_loads, count, next(found, 0)))
        return self._num_loads

    def finished(self) -> list[LoadEnd]:
        answers, self.answers = self.answers, []
        return answers + super().finished()

    def forget(self, handles: Sequence[int], keys: Sequence[PageKey]) -> None:
        for key in keys:
            self.there.pop(key.id, None)


class SharingPool(TieredPool):
    """One of several runtimes with a store."""

    def __init__(self, there: dict[bytes, KeptPage], faults: float = 0.0, pages: int = 24) -> None:
        super().__init__(pages)
        self.store = SharedFake(self.engine, 64, random.Random(1), faults)
        self.store.there, self.store.answers = there, []
        self.store.costs = TieredPool().store.costs
        self.tree = RadixTree(PAGE, self.pages)
        self.tier = self.opened()

    def ended(self, tokens: array[int], salt: str = "") -> None:
        """A program with that text has ended, and nothing else is to be done."""
        self.compute(tokens, salt)
        self.tier.storing.save_recent(lambda: True)

    def asked(self, tokens: array[int], salt: str = "") -> int:
        """Tokens of a new text that are found, which is waited for as a sequence does."""
        for _ in range(4):
            if self.tier.fetch(tokens, salt, len(tokens), self.free) is None:
                break
            for _ in range(9):
                self.tier.collect()
                self.check()
        return self.bring_back(tokens, salt)


def with_end(*tokens: int) -> array[int]:
    return array("i", [*STEM, *tokens])


def stem_stored(there: dict[bytes, KeptPage]) -> SharingPool:
    pool = SharingPool(there)
    pool.ended(with_end(*range(20, 30)))
    pool.ended(with_end(*range(30, 40)))
    return pool


def test_another_runtime_finds_a_prefix_that_ends_inside_a_page() -> None:
    there: dict[bytes, KeptPage] = {}
    stem_stored(there)
    other = SharingPool(there)
    assert other.asked(with_end(*range(50, 60))) == len(STEM)
    other.tree.clear()
    assert other.asked(with_end(*range(60, 64))) == len(STEM), "no page of its own is asked for"


def test_who_has_stored_it_finds_it_again() -> None:
    pool = stem_stored({})
    pool.tree.clear()
    assert pool.asked(with_end(*range(50, 60))) == len(STEM)


def test_no_part_is_stored_where_no_texts_part() -> None:
    """A text that goes on from another one's end is one text."""
    there: dict[bytes, KeptPage] = {}
    pool = SharingPool(there)
    pool.ended(STEM)
    pool.ended(with_end(*range(20, 30)))
    assert all(len(one.key.tokens) == 4 * PAGE for one in there.values())
    assert len(there) == 5


def test_a_part_that_is_gone_costs_its_tokens_alone() -> None:
    there: dict[bytes, KeptPage] = {}
    pool = stem_stored(there)
    (part,) = [name for name, one in there.items() if len(one.key.tokens) < 4 * PAGE]
    del there[part]
    pool.tree.clear()
    assert pool.asked(with_end(*range(50, 60))) == 8
    assert pool.tier.counters.lost == 1
    pool.tree.clear()
    assert pool.asked(with_end(*range(60, 70))) == 8
    assert pool.tier.counters.lost == 1, "it is known to be gone"


def test_a_part_is_forgotten_with_its_path() -> None:
    there: dict[bytes, KeptPage] = {}
    pool = stem_stored(there)
    pool.tree.clear()
    pool.tier.discard(with_end(*range(20, 30)), "")
    assert {one.key.index for one in there.values()} == {2, 3, 4}, "of the other text alone"
    assert all(len(one.key.tokens) == 4 * PAGE for one in there.values())
    assert pool.asked(with_end(*range(50, 60))) == 0


def test_random_texts_in_two_runtimes_come_back_as_they_are_and_as_far_as_they_are_stored() -> None:
    """Beside a plain reader of the store: what is there of a text is loaded to the token, unless
    there are faults; its slots are right (`bring_back`) in any case.
    """
    num_parts = 0
    for seed in range(60):
        dice = random.Random(seed)
        there: dict[bytes, KeptPage] = {}
        faults = dice.choice([0.0, 0.0, 0.2])
        pools = [SharingPool(there, faults) for _ in range(2)]
        stems = [[dice.randrange(1, 4) for _ in range(dice.randint(1, 14))] for _ in range(3)]
        for _ in range(40):
            pool, salt = dice.choice(pools), dice.choice(["", "", "salt"])
            stem = dice.choice(stems)
            tokens = text(
                *stem[: dice.randint(1, 14)], *dice.choices(range(1, 6), k=dice.randint(1, 6))
            )
            pool.now += 2.0
            expected = readable(there, tokens, salt)
            in_memory = pool.tree.match(tokens, salt).length
            found = pool.asked(tokens, salt)
            if not faults:
                assert found >= max(in_memory, expected), (seed, tokens.tolist())
            pool.ended(tokens, salt)
            if dice.random() < 0.5:
                pool.tree.clear()
            pool.check()
        num_parts += sum(len(one.key.tokens) < 4 * PAGE for one in there.values())
    assert num_parts > 50


def readable(there: dict[bytes, KeptPage], tokens: array[int], salt: str) -> int:
    """Tokens of whole pages in turn that are there, where the last page is asked for as a whole."""
    keys, length = page_keys(root_of(salt), tokens.tobytes(), PAGE), 0
    for key in keys:
        if key.id not in there or len(key.tokens) < 4 * PAGE:
            break
        length += PAGE
    if length // PAGE < len(tokens) // PAGE:
        parts = [one for one in parts_of(keys[length // PAGE]) if one.id in there]
        length += max((len(one.tokens) // 4 for one in parts), default=0)
    return length


def test_the_longest_part_is_what_a_plain_search_finds() -> None:
    dice = random.Random(5)
    parts, known = StoredParts(PAGE), set()
    for _ in range(2000):
        tokens = array("i", dice.choices(range(2), k=dice.randint(5, 12)))
        salt = dice.choice(["", "a"])
        end = dice.choice([4, 8])
        limit = dice.randint(1, len(tokens))
        expected = max(
            (
                n
                for n in range(1, PAGE)
                if (salt, tuple(tokens[: end + n])) in known and end + n <= limit
            ),
            default=0,
        )
        assert parts.longest(tokens, salt, end, limit) == expected
        key = page_keys(root_of(salt), tokens.tobytes(), PAGE)[-1]
        if len(tokens) % PAGE and dice.random() < 0.2:
            parts.learn(key)
            known.add((salt, tuple(tokens)))
        elif len(tokens) % PAGE and dice.random() < 0.2:
            parts.forget([key])
            known.discard((salt, tuple(tokens)))
    assert len(known) > 10


def test_no_more_parts_are_known_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all begin alike, behind other pages."""
    monkeypatch.setattr(tier_questions, "MOST_PARTS", 8)
    parts, keys = StoredParts(PAGE), list[PageKey]()
    for number in range(100):
        for first in (7, number % 5):
            tokens = array("i", [number] * PAGE + [first, 7]).tobytes()
            keys.append(page_keys(root_of(""), tokens, PAGE)[-1])
            parts.learn(keys[-1])
            parts.learn(keys[-1])
            assert sum(parts.has(key) for key in {*keys}) <= 8
        assert any(parts.has(key) for key in keys[-12:]), "some are"
        parts.forget(keys[: number // 2])


def test_a_tier_of_one_runtime_finds_parts_in_its_index_and_stores_none() -> None:
    pool = TieredPool()
    pool.compute(with_end(*range(20, 30)))
    pool.compute(with_end(*range(30, 40)))
    pool.tree.clear()
    assert {len(one.key.tokens) for one in pool.store.kept.values()} == {4 * PAGE}
    assert pool.bring_back(with_end(*range(50, 60))) == len(STEM)
