"""Which replica a program goes to: where it costs least, by what must be computed there, who is
there, and how fast that replica is; and what is remembered of prefixes for that.

A prefix that nobody has goes to a replica that holds little and is not busy, and among such ones
where its name leads (rendezvous hashing), so that gateways that know nothing of each other choose
alike. A session always goes where its name leads. Numbers only, and pure: the same everywhere.
"""

from __future__ import annotations

import functools
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple, Protocol

BLOCK = 64
"""Characters of a block."""
CHARACTERS_PER_TOKEN = 4
"""How many tokens a text has, and how many blocks a replica's pages hold, is only guessed at."""
BLOCK_TOKENS = BLOCK // CHARACTERS_PER_TOKEN
NEAR = 0.5
"""Costs that differ by less than this share count as equal: what is not counted is what a copy of a
prefix drives out of memory, and loads differ that much by chance."""
COPY_USERS = 0.25
"""Of the open programs that begin alike, the share that is expected to use a copy of what they
have in common, besides the one that makes it."""
NEARLY = 1 / 64
"""The share of a replica's memory by which two replicas may differ and still count as equally full.
"""
_MIX = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def mark_of(name: str) -> int:
    """64 bits that stand for a name, in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


class Speed(NamedTuple):
    """How long a step of a replica takes, in seconds, as it has measured it itself."""

    fixed: float
    """Of a step, however much is in it."""
    token: float
    """Of one more token, be it of a prompt or of a row that writes."""


ASSUMED_SPEED = Speed(0.01, 0.0005)
"""Until somebody has measured one; only how they relate matters."""
USUAL_TOKENS = 32
"""Speeds are compared by steps of so many."""
APART = 2.0
"""A replica whose steps take not so many times as long as usual, or as short, counts as usual: so
far apart are those of equal ones at times, by what else their machines do."""
NEWS = 0.05
"""Weight of the newest figures, of which there are two in a second; at first all weigh the same."""
FEWEST = 8
"""Figures before a speed is known."""


class SpeedMeter:
    """The speed of one replica, by its figures, which are of its last hundred steps."""

    def __init__(self) -> None:
        self.speed: Speed | None = None
        """None: not known yet."""
        self._mean = self._told = Speed(0.0, 0.0)
        self._num_told = 0

    def take(self, figures: Mapping[str, float]) -> None:
        told = Speed(figures.get("step_seconds", 0.0), figures.get("token_seconds", 0.0))
        if told == self._told:
            return  # it has done nothing since
        self._told, self._num_told = told, self._num_told + 1
        weight = max(NEWS, 1.0 / self._num_told)
        pairs = zip(self._mean, told, strict=True)
        self._mean = Speed(*(old + weight * (new - old) for old, new in pairs))
        if self._num_told >= FEWEST:
            self.speed = self._mean


class KnownReplica(Protocol):
    """A replica as far as placement knows it."""

    number: int
    """In the memory of prefixes."""
    mark: int
    """Of its name: see `mark_of`."""
    load: int
    """Its open programs."""
    slots: int
    """So many programs it serves well at the same time."""
    meter: SpeedMeter
    written: float
    """Tokens that a program writes there on average."""
    alike: dict[int, int]
    """Its open programs by the key of their first block."""


def best(
    candidates: Sequence[KnownReplica], keys: Sequence[int], mark: int, memory: PrefixMemory
) -> int:
    """The index of the replica for a program whose text has these `keys`; `mark` stands for its
    beginning.

    The cheapest one; of those that cost about as much, the one that knows most of it. Where
    prefixes fill one replica before the other, the full one evicts what the other had room for:
    so a prefix that nobody has goes to the emptier one, unless that has more programs.
    """
    matched = memory.matched(keys, [one.number for one in candidates])
    costs = costs_of(candidates, len(keys), matched, keys[0] if keys else 0)
    most = (1.0 + NEAR) * min(costs)
    near = [index for index, cost in enumerate(costs) if cost <= most]
    if any(matched):
        longest = max(matched[index] for index in near)
        near = [index for index in near if matched[index] == longest]
        least = min(costs[index] for index in near)
        near = [index for index in near if costs[index] == least]
    else:
        loads = [candidates[index].load for index in near]
        idle = min(loads) + NEAR * sum(loads) / len(loads)
        near = [index for index, load in zip(near, loads, strict=True) if load <= idle]
        held = {index: memory.held(candidates[index].number) for index in near}
        full = min(held.values()) + NEARLY
        near = [index for index, share in held.items() if share <= full]
    return max(near, key=lambda index: _weight(mark, candidates[index].mark))


def costs_of(
    candidates: Sequence[KnownReplica], num_blocks: int, matched: Sequence[int], beginning: int
) -> list[float]:
    """Seconds that a program takes from itself and from others at each replica, which has `matched`
    of its blocks.

    What must be computed holds up the program and all others there; where others have it, this
    makes a copy, which some of those who begin alike will use. Each token that it writes takes a
    step, which is longer for each program; and the program makes each step of the others longer,
    while they are together. Where a replica has no slot left it waits until some have ended, which
    nobody does while another has one.
    """
    speeds = _weighed(tuple([one.meter.speed for one in candidates]))
    written = sum([one.written for one in candidates]) / len(candidates)
    alike = sum([one.alike.get(beginning, 0) for one in candidates])
    has_slots = any(one.load < one.slots for one in candidates)
    most = max(matched)
    new, copied = BLOCK_TOKENS * (num_blocks - most), BLOCK_TOKENS / (1.0 + COPY_USERS * alike)
    missing = {found: new + copied * (most - found) for found in set(matched)}
    costs = []
    for one, found, (fixed, token) in zip(candidates, matched, speeds, strict=True):
        load = one.load
        if load < one.slots:
            together = written * (fixed + token * (2 * load + 1))
        elif has_slots:
            costs.append(inf)
            continue
        else:
            together = written * (fixed + token * (2 * load + 1))
            together *= 1.0 + (load - one.slots + 1) / one.slots
        costs.append(missing[found] * token * (1 + load) + together)
    return costs


@functools.lru_cache(maxsize=16)
def _weighed(speeds: tuple[Speed | None, ...]) -> Sequence[Speed]:
    """What counts as the speed of each: the usual one, that of the middle, unless its own is far
    apart. They change a few times in a second, and are asked for with each program.
    """
    steps = sorted([(one.fixed + USUAL_TOKENS * one.token, one) for one in speeds if one])
    step, usual = steps[(len(steps) - 1) // 2] if steps else (0.0, ASSUMED_SPEED)
    fastest, slowest = step / APART, step * APART
    return [
        usual if one is None or fastest < one.fixed + USUAL_TOKENS * one.token < slowest else one
        for one in speeds
    ]


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


def keys_of(text: str, salt: str = "") -> list[int]:
    """One key for each whole block, each over everything before it too; the same in every process
    (Python draws a secret for hashes of texts, and none for those of numbers).
    """
    keys: list[int] = []
    key, number = _number(salt), int.from_bytes
    starts = range(0, len(text) - BLOCK + 1, BLOCK)
    if text.isascii():  # a byte for each character: all are encoded at once
        letters = text.encode()
        for start in starts:
            key = hash((key, number(letters[start : start + BLOCK])))
            keys.append(key)
        return keys
    for start in starts:
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
            self._clear(1 << replica, key)
        self._most.pop(replica, None)

    def matched(self, keys: Sequence[int], replicas: Sequence[int]) -> list[int]:
        """How many leading blocks each of the replicas has."""
        holders = self._holders
        left = holders.get(keys[0], 0) if keys else 0  # most have not even the first block
        if not left:
            return [0] * len(replicas)
        found: dict[int, int] = {}
        for index, key in enumerate(keys):
            if (now := left & holders.get(key, 0)) != left:
                for replica in _bits(left & ~now):
                    found[replica] = index
                left = now
                if not left:
                    break
        for replica in _bits(left):
            found[replica] = len(keys)
        return [found.get(replica, 0) for replica in replicas]

    def held(self, replica: int) -> float:
        """The share of the replica's memory that is taken."""
        return len(self._blocks[replica]) / self._most[replica]

    def remember(self, replica: int, keys: Sequence[int]) -> None:
        """The replica is sent a text of these blocks."""
        blocks, holders = self._blocks[replica], self._holders
        renew, bit = blocks.move_to_end, 1 << replica
        for key in keys:
            if key in blocks:
                renew(key)
            else:
                blocks[key] = None
                holders[key] = holders.get(key, 0) | bit
        for _ in range(len(blocks) - self._most[replica]):
            self._clear(bit, blocks.popitem(last=False)[0])

    def _clear(self, bit: int, key: int) -> None:
        holders = self._holders[key] & ~bit
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
