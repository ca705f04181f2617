"""A traced run as lanes, one a branch, and where its time went.

The runtime tells how long a call waited in the queue, computed its prompt and decoded; these end
with the call. What is left before them is the time in which it stood behind other calls of its
branch, or was on its way. Knows traces; draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from lmprog.lang.runs.trace_file import TracedCall, TracedRun

Phase: TypeAlias = Literal["asked", "queued", "prefill", "decode"]
PHASES: tuple[Phase, ...] = ("asked", "queued", "prefill", "decode")
"""What a call does, from its beginning on."""
PROGRAM = "program"
"""The name of the time in which no call is under way: the program's own."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a call's time."""

    phase: Phase
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Lane:
    """The calls of one branch of one run, in the order of their beginnings."""

    run: str
    branch: str
    depth: int
    """0 for the run itself, 1 for a run inside it."""
    calls: list[TracedCall] = field(default_factory=list)


def end_of(run: TracedRun) -> float:
    """When it ended; for one that has not, the last that is known of it."""
    ends = [run.end] if run.end is not None else [run.begin]
    ends += [call.begin if call.end is None else call.end for call in run.calls]
    return max([*ends, *(end_of(inner) for inner in run.inside)])


def stretches(call: TracedCall, until: float) -> list[Stretch]:
    """What the call did when, without what took no time; one that has not ended goes on `until`
    the end of its run.
    """
    end = until if call.end is None else call.end
    usage, found = call.usage, list[Stretch]()
    known: list[tuple[Phase, float]] = [
        ("decode", usage.decode_ms), ("prefill", usage.prefill_ms), ("queued", usage.queued_ms),
    ]  # fmt: skip
    for phase, milliseconds in known:
        begin = max(call.begin, end - milliseconds / 1000)
        if begin < end:
            found.append(Stretch(phase, begin, end))
        end = begin
    if call.begin < end:
        found.append(Stretch("asked", call.begin, end))
    return found[::-1]


def lanes(run: TracedRun, depth: int = 0) -> list[Lane]:
    """Of the run, and of the runs inside it behind its own."""
    found: dict[str, Lane] = {}
    for call in run.calls:
        lane = found.setdefault(call.branch, Lane(run.name, call.branch, depth))
        lane.calls.append(call)
    inner = [lane for one in run.inside for lane in lanes(one, depth + 1)]
    return [*found.values(), *inner]


def all_calls(run: TracedRun) -> Iterator[TracedCall]:
    """Those of the runs inside it, too."""
    for lane in lanes(run):
        yield from lane.calls


def shares(run: TracedRun) -> dict[str, float]:
    """Where the run's time went, in seconds that add up to it: of several calls at a time the one
    that is furthest counts.
    """
    until = end_of(run)
    changes: list[tuple[float, int, Phase]] = []
    for call in all_calls(run):
        for stretch in stretches(call, until):
            changes += [(stretch.begin, 1, stretch.phase), (stretch.end, -1, stretch.phase)]
    changes.sort(key=lambda change: change[0])
    found = dict.fromkeys((*PHASES, PROGRAM), 0.0)
    under_way = dict.fromkeys(PHASES, 0)
    at = run.begin
    for time, step, phase in [*changes, (until, 0, PHASES[0])]:
        furthest = next((one for one in reversed(PHASES) if under_way[one]), PROGRAM)
        found[furthest] += max(0.0, time - at)
        at = max(at, time)
        under_way[phase] += step
    return found
