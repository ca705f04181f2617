"""Which prefixes were sent to which replica, forgotten as the replica itself forgets.

A text is a chain of blocks; the key of a block stands for all text up to its end. Per replica the
least recently used blocks go when there are more than its pages can hold. Knows texts and numbers
of replicas; knows neither tokens nor what became of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

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
