"""The cache of constraints: what it counts, and what that costs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lmprog import wire
from lmprog.constraints.compiling import compiler as cache_module
from lmprog.constraints.compiling.compiler import ConstraintCache
from lmprog.constraints.constraint import Constraint
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.runtime.programs.call_constraints import kept_bytes
from tests.constraints.conftest import EOS

GROWING = wire.Regex("(a|b)*a(a|b){9}")


def use(constraint: Constraint, vocabulary: Vocabulary) -> None:
    """Walks through many states, each of which is remembered with its mask."""
    draw = random.Random(3)
    for _ in range(100):
        state = constraint.start
        for _ in range(12):
            row = constraint.mask(state)
            moves = [one for one in range(len(vocabulary)) if row.allows(one) and one != EOS]
            if not moves:
                break
            state = constraint.advance(state, draw.choice(moves))


def test_what_grew_while_it_was_used_counts_when_the_next_one_comes(small: Vocabulary) -> None:
    alone = ConstraintCache()
    alone.get(wire.Regex("b"), small)
    least = alone.num_bytes
    grown = alone.get(GROWING, small)
    use(grown, small)
    added = alone.num_bytes - least
    assert added > 4 * least

    cache = ConstraintCache(max_bytes=added)
    first = cache.get(wire.Regex("b"), small)
    cache.get(wire.Regex("bb"), small)
    used = cache.get(GROWING, small)
    assert cache.peek(wire.Regex("b"), small) is first
    assert cache.peek(GROWING, small) is used
    use(used, small)
    cache.get(wire.Regex("bbb"), small)
    assert cache.peek(wire.Regex("bb"), small) is None
    assert cache.num_bytes <= added + 3 * least


def test_a_new_constraint_measures_those_that_were_used_and_not_all(
    small: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = 0
    size_of = cache_module._size_of

    def counting(held: Any) -> int:
        nonlocal measured
        measured += 1
        return size_of(held)

    monkeypatch.setattr(cache_module, "_size_of", counting)
    cache = ConstraintCache()
    for number in range(60):
        cache.get(wire.Regex("a" * (number + 1)), small)
    assert len(cache) == 60
    assert measured <= 3 * 60


def test_a_cleared_cache_holds_and_counts_nothing(small: Vocabulary) -> None:
    cache = ConstraintCache(max_bytes=100_000)
    for _ in range(2):
        for number in range(1, 30):
            cache.get(wire.Regex("a" * number), small)
        assert 1 < len(cache) < 29
        cache.clear()
        assert (len(cache), cache.num_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("vocab_size", "megabytes"), [(2_000, 32), (64 * 1024, 64), (128 * 1024, 128), (256_000, 128)]
)
def test_what_is_kept_grows_with_the_vocabulary(vocab_size: int, megabytes: int) -> None:
    assert kept_bytes(vocab_size) == megabytes << 20
