"""Where programs go: the longest known prefix, as long as its replica has room."""

from __future__ import annotations

import random

from lmprog.fleet.placement import choose, load_bound
from lmprog.fleet.prefix_memory import BLOCK, PrefixMemory, keys_of


def plain_matched(
    sent: dict[int, list[list[int]]], keys: list[int], replicas: list[int]
) -> list[int]:
    """The twin: looks through everything that was sent."""
    found = []
    for replica in replicas:
        known = {key for one in sent[replica] for key in one}
        found.append(next((n for n, key in enumerate(keys) if key not in known), len(keys)))
    return found


def test_the_longest_prefix_wins_where_there_is_room() -> None:
    draw = random.Random(1)
    assert choose([0, 3, 1], [0, 1, 0], 8, draw) == 1
    assert choose([0, 3, 1], [0, 60, 0], 8, draw) == 2


def test_equal_matches_go_to_the_less_loaded_and_ties_are_drawn() -> None:
    draw = random.Random(1)
    assert choose([2, 2], [3, 1], 8, draw) == 1
    assert {choose([0, 0, 0], [1, 1, 1], 8, draw) for _ in range(60)} == {0, 1, 2}


def test_somebody_always_has_room(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(300):
        loads = [draw.randrange(50) for _ in range(draw.randrange(1, 9))]
        slots = draw.randrange(1, 64)
        index = choose([draw.randrange(5) for _ in loads], loads, slots, draw)
        assert loads[index] < load_bound(loads, slots)


def test_the_memory_says_what_its_twin_says(seed: int) -> None:
    draw = random.Random(seed)
    memory = PrefixMemory()
    sent: dict[int, list[list[int]]] = {}
    for _ in range(400):
        replica = draw.randrange(5)
        if draw.random() < 0.05:
            memory.forget(replica)
            sent.pop(replica, None)
        if replica not in sent:
            memory.add(replica, 10_000)
            sent[replica] = []
        text = "".join(draw.choices("ab", k=draw.randrange(5))).ljust(6, "c")
        keys = keys_of("".join(letter * BLOCK for letter in text), draw.choice(["", "salt"]))
        assert memory.matched(keys, list(sent)) == plain_matched(sent, keys, list(sent))
        memory.remember(replica, keys)
        sent[replica].append(keys)


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    memory = PrefixMemory()
    memory.add(0, 3)
    old, new = keys_of("a" * BLOCK * 2), keys_of("b" * BLOCK * 2)
    memory.remember(0, old)
    memory.remember(0, new)
    assert memory.matched(new, [0]) == [2]
    assert memory.matched(old, [0]) == [0]
    memory.forget(0)
    assert memory._holders == {}


def test_salts_share_no_prefix() -> None:
    assert set(keys_of("a" * 200, "one")) & set(keys_of("a" * 200, "two")) == set()
