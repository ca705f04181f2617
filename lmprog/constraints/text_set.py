"""A set of texts as a value, and the limit of its exploration. Knows expressions only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lmprog.constraints.expression import Expression
from lmprog.constraints.net import Node

MAX_STEPS = 3_000_000
"""Derivatives that are asked for in one exploration; more are refused."""


@dataclass(frozen=True, slots=True)
class TextSet:
    """The texts that match all of `within`, none of `outside`, are not in `excluded`, and have
    `low` to `high` characters (None: unbounded).
    """

    within: tuple[Expression, ...] = ()
    outside: tuple[Expression, ...] = ()
    low: int = 0
    high: int | None = None
    excluded: tuple[str, ...] = ()

    def and_also(self, other: TextSet) -> TextSet:
        highs = [high for high in (self.high, other.high) if high is not None]
        return TextSet(
            self.within + other.within,
            self.outside + other.outside,
            max(self.low, other.low),
            min(highs) if highs else None,
            tuple(dict.fromkeys(self.excluded + other.excluded)),
        )


Lower = Callable[[TextSet], Node]
