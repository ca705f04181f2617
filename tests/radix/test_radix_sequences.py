"""Sequences that come, go on, go and fail, on a tree with too little memory: any order of them
keeps every invariant.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.radix.simulated_sequences import Sequence, Sequences, ints

EXAMPLES = int(os.environ.get("LMPROG_RADIX_EXAMPLES", "40"))  # of 50 steps, for each page size
SEEDS = int(os.environ.get("LMPROG_RADIX_SEEDS", "40"))  # of 200 steps, for each page size

numbers = st.integers(0, 2**16)
few_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(lambda tokens: ints(*tokens))


class Life:
    """Verbs that take any numbers, so that a machine or a dice can play them."""

    def __init__(self, page_size: int) -> None:
        self.it = Sequences(page_size, 24 if page_size < 16 else 12)
        self.past = [ints()]  # token sequences that were seen once: new ones begin like old ones

    def sequence(self, which: int) -> Sequence | None:
        living = [sequence for sequence in self.it.sequences if sequence.node.alive]
        return living[which % len(living)] if living else None

    def start(self, which: int, cut: int, more: list[int], salt: int, keep: bool) -> None:
        old = self.past[which % len(self.past)]
        tokens = old[: cut % (len(old) + 1)] + ints(*more)
        if len(self.it.sequences) >= 6:
            self.it.drop(self.it.sequences[which % 6])
        if self.it.start(tokens, "ab"[salt % 2], keep):
            self.past.append(tokens)

    def extend(self, which: int, more: list[int]) -> None:
        sequence = self.sequence(which)
        if sequence and self.it.extend(sequence, ints(*more)):
            self.past.append(sequence.tokens)

    def keep(self, which: int, swap: bool, let_go_first: bool) -> None:
        sequence = self.sequence(which)
        if sequence:
            self.it.keep(sequence, let_go_first)
            if swap:
                self.it.swap(sequence)

    def drop(self, which: int, keep: bool) -> None:
        if self.it.sequences:
            sequence = self.it.sequences[which % len(self.it.sequences)]
            if keep and sequence.node.alive:
                self.it.keep(sequence)
            self.it.drop(sequence)

    def fail(self, which: int, cut: int, whole: bool) -> None:
        if self.it.sequences:
            sequence = self.it.sequences[which % len(self.it.sequences)]
            self.it.discard(sequence, None if whole else cut % (sequence.node.end + 1))

    def pin(self, which: int) -> None:
        nodes = [*self.it.tree.walk(), *(sequence.node for sequence in self.it.sequences)]
        if nodes:
            node = nodes[which % len(nodes)]
            self.it.tree.pin(node)
            self.it.pins.append(node)

    def unpin(self, which: int) -> None:
        if self.it.pins:
            self.it.tree.unpin(self.it.pins.pop(which % len(self.it.pins)))

    def evict(self, count: int) -> None:
        could = self.it.tree.num_evictable
        assert self.it.evict(count % 5) == min(count % 5, could)

    def clear(self) -> None:
        could = self.it.tree.num_evictable
        assert self.it.tree.clear() == could
        self.it.forget_all_but_the_tree()
        assert not self.it.tree.num_evictable
        if not any(sequence.node.parent for sequence in self.it.sequences):
            assert not self.it.tree.num_nodes

    def match(self, which: int, cut: int, more: list[int], salt: int) -> None:
        old = self.past[which % len(self.past)]
        tokens = old + ints(*more)
        limit = cut % (len(tokens) + 1)
        name = "ab"[salt % 2]
        self.it.check_match(
            self.it.tree.match(memoryview(tokens), name, limit), tokens[:limit], name
        )

    def end(self) -> None:
        """When all are gone, nothing refs a page but the tree, and the tree can give back every
        one.
        """
        for sequence in list(self.it.sequences):
            self.it.drop(sequence)
        while self.it.pins:
            self.unpin(0)
        self.it.check()
        self.it.tree.clear()
        self.it.tree.check()
        assert self.it.pages.num_free == self.it.pages.num_pages
        assert self.it.tree.num_nodes == self.it.tree.num_cached == self.it.tree.num_pinned == 0


class LifeMachine(RuleBasedStateMachine):
    @initialize(page_size=st.sampled_from([1, 2, 4, 16]))
    def begin(self, page_size: int) -> None:
        self.life = Life(page_size)

    @rule(which=numbers, cut=numbers, more=few_tokens, salt=numbers, keep=st.booleans())
    def start(self, which: int, cut: int, more: list[int], salt: int, keep: bool) -> None:
        self.life.start(which, cut, more, salt, keep)

    @rule(which=numbers, more=few_tokens)
    def extend(self, which: int, more: list[int]) -> None:
        self.life.extend(which, more)

    @rule(which=numbers, swap=st.booleans(), let_go_first=st.booleans())
    def keep(self, which: int, swap: bool, let_go_first: bool) -> None:
        self.life.keep(which, swap, let_go_first)

    @rule(which=numbers, keep=st.booleans())
    def drop(self, which: int, keep: bool) -> None:
        self.life.drop(which, keep)

    @rule(which=numbers, cut=numbers, whole=st.booleans())
    def fail(self, which: int, cut: int, whole: bool) -> None:
        self.life.fail(which, cut, whole)

    @rule(which=numbers)
    def pin(self, which: int) -> None:
        self.life.pin(which)

    @rule(which=numbers)
    def unpin(self, which: int) -> None:
        self.life.unpin(which)

    @rule(count=numbers)
    def evict(self, count: int) -> None:
        self.life.evict(count)

    @rule(which=numbers, cut=numbers, more=few_tokens, salt=numbers)
    def match(self, which: int, cut: int, more: list[int], salt: int) -> None:
        self.life.match(which, cut, more, salt)

    @rule()
    def clear(self) -> None:
        self.life.clear()

    @invariant()
    def refs(self) -> None:
        if hasattr(self, "life"):
            self.life.it.check()

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.end()


TestLife = pytest.mark.slow(LifeMachine.TestCase)
TestLife.settings = settings(
    max_examples=4 * EXAMPLES,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def play(seed: int, page_size: int, num_steps: int) -> None:
    """One life by dice. Nothing is cleared midway, and runs are longer: fuller trees than the
    machine's.
    """
    dice = random.Random(seed)
    life = Life(page_size)

    def number() -> int:
        return dice.randrange(2**16)

    def tokens() -> list[int]:
        return [dice.randrange(2) for _ in range(dice.randint(1, 3 * page_size // 2 + 3))]

    verbs: list[Callable[[], None]] = [
        *[lambda: life.start(number(), number(), tokens(), number() % 4 // 3, dice.random() < 0.8)]
        * 6,
        *[lambda: life.extend(number(), tokens())] * 5,
        *[lambda: life.keep(number(), dice.random() < 0.5, dice.random() < 0.5)] * 3,
        *[lambda: life.drop(number(), dice.random() < 0.7)] * 4,
        lambda: life.fail(number(), number(), dice.random() < 0.5),
        *[lambda: life.pin(number())] * 2,
        *[lambda: life.unpin(number())] * 2,
        *[lambda: life.evict(number())] * 2,
        *[lambda: life.match(number(), number(), tokens(), number())] * 2,
    ]
    for _ in range(num_steps):
        dice.choice(verbs)()
        life.it.check()
    life.end()


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
def test_any_life_keeps_every_invariant(page_size: int) -> None:
    for seed in range(SEEDS):
        try:
            play(seed, page_size, 200)
        except BaseException:
            print(f"replay: play(seed={seed}, page_size={page_size}, num_steps=200)")
            raise
