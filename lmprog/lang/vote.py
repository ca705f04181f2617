"""Majority among values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from lmprog.errors import ProgramError

T = TypeVar("T")


def vote(values: Iterable[T], key: Callable[[T], Hashable] | None = None) -> T:
    """The first of the values that most agree with; `key` says what agreeing means. Ties go to the earliest."""
    groups: dict[Hashable, list[T]] = {}
    for value in values:
        groups.setdefault(value if key is None else key(value), []).append(value)
    if not groups:
        raise ProgramError("there is nothing to vote on")
    return max(groups.values(), key=len)[0]
