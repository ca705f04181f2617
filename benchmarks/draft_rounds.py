"""The same calls asked of several runtimes in turn, and what drafts saved: rounds and their table.

Each runtime of a comparison is asked in each round, in an order that changes from round to round, so
what else the machine does meanwhile meets all of them. What is told is the median of the rounds:
of processor time, which is the computing thread's, and of its ratio to the first runtime's in the
same round. All of them must say the same. Knows calls and figures; knows no workload.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from benchmarks.own_loop import OwnLoop
from lmprog import wire

HEAD = ("speculation", "steps", "fewer", "processor ms", "less", "drafted", "right")
"""Columns of a row; others may stand before."""

OpsOf = Callable[[int], tuple[wire.Op, ...]]
"""A call's ops, on the branch of its own number, which they open."""


@dataclass(frozen=True, slots=True)
class Round:
    """What the calls of one round took, and said."""

    steps: int
    seconds: float
    drafted: int
    accepted: int
    texts: list[str]


@dataclass(frozen=True, slots=True)
class Compared:
    """One runtime beside the first one of its comparison, over all rounds."""

    name: str
    steps: float
    fewer: float
    """Steps of the first one over its own."""
    seconds: float
    less: float
    """The same of processor time."""
    drafted: float
    accepted: float

    def cells(self) -> str:
        return (
            f"{self.name} | {self.steps:,.0f} | {self.fewer:.2f} | {1e3 * self.seconds:,.0f} "
            f"| {self.less:.2f} | {self.drafted:,.0f} | {self.accepted:,.0f} |"
        )


def head(*before: str) -> str:
    """The first two lines of a table, with columns of its own."""
    columns = [*before, *HEAD]
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def asked(own: OwnLoop, salt: str, ops_of: OpsOf, which: Iterable[int]) -> list[str]:
    """The texts of these calls, all asked at once."""
    numbers = list(which)
    for number in numbers:
        own.say(salt.encode(), *ops_of(number))
    found: dict[int, str] = {}
    while len(found) < len(numbers):
        for came in own.turn():
            if isinstance(came.reply, wire.CallDone):
                found[came.reply.call] = came.reply.outputs[0].text
    own.say(salt.encode(), *(wire.Close(number) for number in numbers))
    own.turn()
    return [found[number] for number in numbers]


def measured(own: OwnLoop, salt: str, ops_of: OpsOf, num_calls: int, at_once: int) -> Round:
    """All calls, so many at once."""
    stats = own.loop.scheduler.stats
    before = (stats.steps, stats.drafted_tokens, stats.accepted_tokens)
    began, texts = time.thread_time(), list[str]()
    for first in range(0, num_calls, at_once):
        texts += asked(own, salt, ops_of, range(first, min(first + at_once, num_calls)))
    seconds = time.thread_time() - began
    after = (stats.steps, stats.drafted_tokens, stats.accepted_tokens)
    steps, drafted, accepted = (b - a for a, b in zip(before, after, strict=True))
    return Round(steps, seconds, drafted, accepted, texts)


def in_turn(names: Iterable[str], number: int) -> list[str]:
    """The order of round `number`: forwards and backwards."""
    return list(names)[:: 1 if number % 2 else -1]


def compared(rounds: Mapping[str, list[Round]]) -> list[Compared]:
    """Beside the first one of `rounds`. Raises `RuntimeError` where one says something else."""
    first, *_ = rounds.values()
    found: list[Compared] = []
    for name, own in rounds.items():
        pairs = list(zip(first, own, strict=True))
        if any(a.texts != b.texts for a, b in pairs):
            raise RuntimeError(f"{name} says something else")
        fewer = sum(a.steps for a, _ in pairs) / sum(b.steps for _, b in pairs)
        less = median(a.seconds / b.seconds for a, b in pairs)
        steps, seconds, drafted, accepted = (
            median(getattr(one, figure) for one in own)
            for figure in ("steps", "seconds", "drafted", "accepted")
        )
        found.append(Compared(name, steps, fewer, seconds, less, drafted, accepted))
    return found
