"""Traces in files: what `lmprog.tracing("run.jsonl")` writes, and `lmprog trace` reads.

A line of JSON for each event, in the order in which they happened. No texts are in it. A last line
that is torn counts as absent, and a call without an end has not ended.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    """None: it has not ended, as far as the file goes."""
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
