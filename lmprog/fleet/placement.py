"""Which replica a program goes to: the longest prefix that is already there, among those with room.

A prefix that nobody has goes to a replica that holds little and is not busy, and among such ones
where its name leads (rendezvous hashing), so that gateways that know nothing of each other choose
alike. A session always goes where its name leads. Numbers only, and pure: the same everywhere.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

SLACK = 1.1
"""A replica may have so many times the mean load …"""
CHANCE = 2
"""… and so many square roots of the mean more (at least so many programs), since loads differ that
much by chance where prefixes are spread evenly: to give way to chance costs copies of prefixes."""
NEAR = 0.5
"""Loads that differ by less than this share of the mean count as equal for a new prefix."""
NEARLY = 1 / 64
"""Of a replica's memory: what may differ where two of them count as equally full."""
_MIX = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def mark_of(name: str) -> int:
    """64 bits that stand for a name, in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def load_bound(loads: Sequence[int], slots: int) -> float:
    """Below this load a replica takes more: near the mean, or less than half of its slots; and
    while anybody has a free slot, no more than it has slots, since to wait for one takes longer
    than to compute a prefix again.
    """
    mean = sum(loads) / len(loads)
    bound = max(SLACK * mean + CHANCE * max(1.0, math.sqrt(mean)), slots / 2)
    return min(bound, slots) if min(loads) < slots else bound


def choose(
    matched: Sequence[int],
    loads: Sequence[int],
    held: Callable[[int], float],
    slots: int,
    mark: int,
    marks: Sequence[int],
) -> int:
    """The index of the best replica for a program.

    `matched` counts the blocks of the prefix that each replica is known to have, `loads` its open
    programs; `held` gives the share of its memory that is known to be taken. `mark` stands for the
    beginning of the text, `marks` for the replicas' names.

    Where prefixes fill one replica before the other, the full one evicts what the other had room
    for: so a new prefix goes to the emptier one, unless that is busier.

    At least one replica is below the bound always, since the least loaded one is below the mean.
    """
    bound = load_bound(loads, slots)
    open_to_more = [index for index, load in enumerate(loads) if load < bound]
    longest = max(matched[index] for index in open_to_more)
    best = [index for index in open_to_more if matched[index] == longest]
    least = min(loads[index] for index in best)
    if longest:
        best = [index for index in best if loads[index] == least]
    else:
        idle = least + NEAR * sum(loads) / len(loads)
        shares = {index: held(index) for index in best if loads[index] <= idle}
        full = min(shares.values()) + NEARLY
        best = [index for index, share in shares.items() if share <= full]
    return max(best, key=lambda index: _weight(mark, marks[index]))


def choose_for_session(session: str, names: Sequence[str]) -> int:
    """The index of the session's replica: another one only where that replica is gone, or a new one
    takes its share.
    """
    mark = mark_of(session)
    return max(range(len(names)), key=lambda index: _weight(mark, mark_of(names[index])))


def _weight(one: int, other: int) -> int:
    """Of a pair of marks: as good as drawn."""
    mixed = ((one ^ other) * _MIX) & _MASK
    return ((mixed ^ (mixed >> 29)) * _MIX) & _MASK
