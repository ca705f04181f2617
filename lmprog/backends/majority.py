"""Which of several results is kept, where no runtime decides it. Knows texts and keys."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from lmprog import wire


def majority(keys: Mapping[int, Hashable], left: int) -> int | None:
    """The earliest place with the key that most have, once `left` more cannot change which key that
    is.
    """
    groups: dict[Hashable, list[int]] = {}
    for place in sorted(keys):
        groups.setdefault(keys[place], []).append(place)
    sizes = sorted(map(len, groups.values()), reverse=True)
    if not sizes or (left and sizes[0] <= sum(sizes[1:2]) + left):
        return None
    return max(groups.values(), key=len)[0]


def kept_first(keep: wire.Keep, texts: Sequence[str]) -> list[int]:
    """The places of `n` results, the one that is kept first."""
    winner = (
        majority({index: text.strip() for index, text in enumerate(texts)}, 0)
        if keep == "majority"
        else 0
    )
    return sorted(range(len(texts)), key=lambda index: (index != winner, index))
