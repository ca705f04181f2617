"""Which of several results is kept, where the runtime does not decide it. Knows texts and keys, and
no results.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from lmprog import wire
from lmprog.errors import InvalidParameter

Judge = wire.Judge
By: TypeAlias = "Literal['logprob'] | Judge"
"""What is best: what is likeliest, or what a judge finds best."""


def best_options(k: int, by: By, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a gen that keeps the best of `k`. Raises `InvalidParameter`."""
    if by != "logprob" and not isinstance(by, Judge):
        allowed = "'logprob', or lmprog.Judge(question)"
        raise InvalidParameter(
            f"by={by!r} is not allowed; give {allowed}", name="by", value=repr(by), allowed=allowed
        )
    return {"keep": "best", **options, "n": k, "judge": by if isinstance(by, Judge) else None}


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
    """For backends without lanes: the places of `n` results, the one that is kept first."""
    winner = (
        majority({index: text.strip() for index, text in enumerate(texts)}, 0)
        if keep == "majority"
        else 0
    )
    return sorted(range(len(texts)), key=lambda index: (index != winner, index))
