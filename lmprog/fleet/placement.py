"""Which replica a program goes to: the longest prefix that is already there, among those with room.

A session instead goes where its name leads, whatever is known and however full that is. Pure but
for the draw that breaks ties, so that new programs without any known prefix do not all go to the
first replica.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

SLACK = 1.1
"""A replica may have so many times the mean load …"""
EXTRA = 2
"""… and so many programs more, so that a small fleet keeps its affinity."""


def load_bound(loads: Sequence[int], slots: int) -> float:
    """Below this load a replica takes more: near the mean, or less than half of its slots."""
    mean = sum(loads) / len(loads)
    return max(SLACK * mean + EXTRA, slots / 2)


def choose(matched: Sequence[int], loads: Sequence[int], slots: int, draw: random.Random) -> int:
    """The index of the best replica. `matched` counts the blocks of the prefix known to be there.

    At least one replica is below the bound always, since the least loaded one is below the mean.
    """
    bound = load_bound(loads, slots)
    open_to_more = [index for index, load in enumerate(loads) if load < bound]
    longest = max(matched[index] for index in open_to_more)
    best = [index for index in open_to_more if matched[index] == longest]
    least = min(loads[index] for index in best)
    return draw.choice([index for index in best if loads[index] == least])


def choose_for_session(session: str, names: Sequence[str]) -> int:
    """The index of the session's replica: the same in every process, and another one only where
    that replica is gone or a new one takes its share (rendezvous hashing).
    """

    def weight(index: int) -> bytes:
        return hashlib.blake2b(f"{session}\0{names[index]}".encode(), digest_size=8).digest()

    return max(range(len(names)), key=weight)
