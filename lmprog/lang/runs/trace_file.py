"""Traces in files: what `lmprog.tracing("run.jsonl")` writes, and `lmprog trace` reads.

A line of JSON for each event, in the order in which they happened. No texts are in it. A last line
that is torn counts as absent, and a call without an end has not ended.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from lmprog import wire
from lmprog.errors import ProtocolError, RequestRejected
from lmprog.lang.streaming.trace_events import TraceEvent

FORMAT = "lmprog trace 1"


class TraceWriter:
    """A callback of `lmprog.tracing` that begins a new file."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError` where it cannot be written."""
        self._path = path
        self._lock = threading.Lock()
        path.write_text(json.dumps({"format": FORMAT}) + "\n")

    def __call__(self, event: TraceEvent) -> None:
        said = {
            member.name: getattr(event, member.name)
            for member in dataclasses.fields(event)
            if getattr(event, member.name) not in (None, "")
        }
        if event.usage is not None:
            used = {name: getattr(event.usage, name) for name in event.usage.__struct_fields__}
            said["usage"] = {name: value for name, value in used.items() if value}
        line = json.dumps(said, ensure_ascii=False) + "\n"
        # opened each time: runs that began inside the block may end after it
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(line)


@dataclass(slots=True)
class TracedCall:
    """A generation or selection. Times are in seconds since the beginning of the trace."""

    name: str
    model: str
    branch: str
    site: str
    begin: float
    end: float | None = None
    """None if the file does not have its end."""
    usage: wire.Usage = field(default_factory=wire.Usage)
    error: str | None = None


@dataclass(slots=True)
class TracedRun:
    """A run of a program, with the runs inside it."""

    name: str
    model: str
    begin: float
    end: float | None = None
    usage: wire.Usage = field(default_factory=wire.Usage)
    error: str | None = None
    calls: list[TracedCall] = field(default_factory=list)
    inside: list[TracedRun] = field(default_factory=list)


def read_trace(path: Path) -> list[TracedRun]:
    """The runs that are inside of no other, in the order of their beginnings. Raises
    `RequestRejected` for a file that is no trace, `ProtocolError` for one of another version.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        _check_format(lines[:1], path)
        events = [json.loads(line) for line in lines[1:] if line.endswith("\n")]
        return _runs(events)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestRejected(
            f"{str(path)!r} is no trace ({type(error).__name__}: {error}); "
            "lmprog.tracing(path) writes one"
        ) from None


def _check_format(first: list[str], path: Path) -> None:
    if not first:
        raise ValueError("it is empty")
    try:
        found = json.loads(first[0])["format"]
    except (ValueError, KeyError, TypeError):
        raise ValueError("its first line names no format") from None
    if found != FORMAT:
        raise ProtocolError(f"{str(path)!r} is of format {found!r}; this version reads {FORMAT!r}")


def _runs(events: list[dict[str, Any]]) -> list[TracedRun]:
    outer: list[TracedRun] = []
    known: dict[str, TracedRun | TracedCall] = {}
    begin_ns = events[0]["time_ns"] if events else 0
    for event in events:
        at = (event["time_ns"] - begin_ns) / 1e9
        if event["phase"] == "end":
            one = known[event["id"]]
            one.end, one.error = at, event.get("error")
            one.usage = wire.Usage(**event.get("usage", {}))
        elif event["kind"] == "call":
            call = TracedCall(
                event["name"], event["model"], event["branch"], event.get("site", ""), at
            )
            known[event["id"]] = call
            run = known[event["parent"]]
            assert isinstance(run, TracedRun)
            run.calls.append(call)
        else:
            run = TracedRun(event["name"], event["model"], at)
            known[event["id"]] = run
            around = known.get(event.get("parent", ""))
            (around.inside if isinstance(around, TracedRun) else outer).append(run)
    return outer


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
    """The phases of the call with their times; phases of no length are left out. A call without an
    end lasts `until` the end of its run.
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
