"""Which replica a program goes to: the longest prefix that is already there, among those with room
and unless a copy of it elsewhere costs less than to crowd there; and what is remembered of prefixes
for that.

A prefix that nobody has goes to a replica that holds little and is not busy, and among such ones
where its name leads (rendezvous hashing), so that gateways that know nothing of each other choose
alike. A session always goes where its name leads. Numbers only, and pure: the same everywhere.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

SLACK = 1.1
"""A replica may have so many times the mean load …"""
CHANCE = 2
"""… and so many square roots of the mean more (at least so many programs), since loads differ that
much by chance where prefixes are spread evenly: to give way to chance costs copies of prefixes."""
NEAR = 0.5
"""Loads that differ by less than this share of the mean count as equal for a new prefix."""
NEARLY = 1 / 64
"""The share of a replica's memory by which two replicas may differ and still count as equally full.
"""
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


def relieved(
    chosen: int, matched: Sequence[int], loads: Sequence[int], alike: int, written: float
) -> int:
    """The index of a less loaded replica to which the prefix is worth a copy; else `chosen`.

    `alike` counts the open programs at the chosen one that begin alike: loads that are uneven by
    chance are not its prefix's. `written` is how many tokens a program writes, in blocks. A program
    more in a batch makes each of its steps longer, for itself and for all others: so `n` programs
    fewer are worth `2 * n` times what one writes, and a copy costs what must be computed.
    """
    least = min(loads)
    fewer = min(alike, loads[chosen] - least - 1)
    if fewer <= 0:
        return chosen
    other = max(
        (index for index, load in enumerate(loads) if load == least),
        key=lambda index: matched[index],
    )
    return other if 2 * fewer * written > matched[chosen] - matched[other] else chosen


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


BLOCK = 64
"""Characters of a block; a token has about four."""


def keys_of(text: str, salt: str = "") -> list[int]:
    """One key for each whole block, each over everything before it too; the same in every process
    (Python draws a secret for hashes of texts, and none for those of numbers).
    """
    keys = []
    key = _number(salt)
    for start in range(0, len(text) - BLOCK + 1, BLOCK):
        key = hash((key, _number(text[start : start + BLOCK])))
        keys.append(key)
    return keys


def _number(text: str) -> int:
    return int.from_bytes(text.encode("utf-8", "surrogatepass"))


class PrefixMemory:
    """Replicas are small numbers, given by the caller and used again after `forget`."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        """Key -> the replicas that have it, as bits."""
        self._blocks: dict[int, OrderedDict[int, None]] = {}
        self._most: dict[int, int] = {}

    def add(self, replica: int, most_blocks: int) -> None:
        """A replica whose memory holds `most_blocks`; it has nothing yet."""
        self._blocks[replica] = OrderedDict()
        self._most[replica] = max(1, most_blocks)

    def forget(self, replica: int) -> None:
        """The replica is gone, and all that it had."""
        for key in self._blocks.pop(replica, ()):
            self._clear(replica, key)
        self._most.pop(replica, None)

    def matched(self, keys: Sequence[int], replicas: Sequence[int]) -> list[int]:
        """How many leading blocks each of the replicas has."""
        found = dict.fromkeys(replicas, 0)
        left = sum(1 << replica for replica in replicas)
        for index, key in enumerate(keys):
            now = left & self._holders.get(key, 0)
            if index:  # most replicas have not even the first block
                for replica in _bits(left & ~now):
                    found[replica] = index
            left = now
            if not left:
                break
        for replica in _bits(left):
            found[replica] = len(keys)
        return [found[replica] for replica in replicas]

    def held(self, replica: int) -> float:
        """The share of the replica's memory that is taken."""
        return len(self._blocks[replica]) / self._most[replica]

    def remember(self, replica: int, keys: Sequence[int]) -> None:
        """The replica is sent a text of these blocks."""
        blocks = self._blocks[replica]
        bit = 1 << replica
        for key in keys:
            if key in blocks:
                blocks.move_to_end(key)
            else:
                blocks[key] = None
                self._holders[key] = self._holders.get(key, 0) | bit
        while len(blocks) > self._most[replica]:
            self._clear(replica, blocks.popitem(last=False)[0])

    def _clear(self, replica: int, key: int) -> None:
        holders = self._holders[key] & ~(1 << replica)
        if holders:
            self._holders[key] = holders
        else:
            del self._holders[key]


def _bits(mask: int) -> list[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
