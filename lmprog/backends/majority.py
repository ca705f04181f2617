"""Chooses which of several results is kept, if no runtime does. Knows texts and keys."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from lmprog import wire


def majority(keys: Mapping[int, Hashable], left: int) -> int | None:
    """The earliest index with the most frequent key, once `left` more results cannot change that
    key; else None.
    """
    groups: dict[Hashable, list[int]] = {}
    for place in sorted(keys):
        groups.setdefault(keys[place], []).append(place)
    sizes = sorted(map(len, groups.values()), reverse=True)
    if not sizes or (left and sizes[0] <= sum(sizes[1:2]) + left):
        return None
    return max(groups.values(), key=len)[0]


def kept_first(op: wire.Generate, texts: Sequence[str]) -> list[int]:
    """The indices of the `n` results of a call, the kept one first."""
    winner = (
        majority({at: wire.compared(text, op.constraint) for at, text in enumerate(texts)}, 0)
        if op.keep == "majority"
        else 0
    )
    return sorted(range(len(texts)), key=lambda index: (index != winner, index))
