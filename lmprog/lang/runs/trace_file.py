"""Traces: `lmprog.tracing`, which names who is told about the runs of a block, and the files that
`lmprog trace` reads. The language's door to OpenTelemetry.

A file has a line of JSON for each event, in the order in which they happened. A last line that is
torn counts as absent, and a call without an end has not ended. Files and spans hold models, counts,
times and endings, and never a text; the fields of spans are named as those of the gateway's.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lmprog import wire
from lmprog.errors import InvalidParameter, NotSupported, ProtocolError, RequestRejected
from lmprog.lang.streaming import callbacks
from lmprog.lang.streaming.trace_events import TraceCallback, TraceEvent

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

FORMAT = "lmprog trace 1"


@contextmanager
def tracing(to: TraceCallback | TracerProvider | str | Path | None = None) -> Iterator[None]:
    """Tells of every run that begins inside the block, and of its calls: `to` is a function of a
    `TraceEvent`, the path of a file that `lmprog trace` shows, or OpenTelemetry's tracer provider;
    without it, OpenTelemetry's global one.

    Blocks nest, and all of their callbacks are told.
    """
    token = callbacks.set((*callbacks.get(), _callback(to)))
    try:
        yield
    finally:
        callbacks.reset(token)


def _callback(to: object) -> TraceCallback:
    if to is None or hasattr(to, "get_tracer"):
        return SpanMaker(to)
    if callable(to):
        return to
    allowed, problem = "a function, the path of a file, or a tracer provider", ""
    if isinstance(to, str | Path):
        try:
            return TraceWriter(Path(to).expanduser().absolute())
        except OSError as error:
            problem = f" ({error})"
    raise InvalidParameter(
        f"tracing({to!r}) is not allowed; give {allowed}{problem}",
        name="to",
        value=repr(to),
        allowed=allowed,
    )


class SpanMaker:
    """Makes a span of each run, and below it one of each call."""

    def __init__(self, provider: Any = None) -> None:
        """Raises `NotSupported` without OpenTelemetry."""
        try:
            self._api = importlib.import_module("opentelemetry.trace")
        except ImportError:
            raise NotSupported("tracing to OpenTelemetry needs lmprog[otel]") from None
        make: Callable[[str], Any] = (provider or self._api).get_tracer
        self._tracer = make("lmprog")
        self._open: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, event: TraceEvent) -> None:
        if event.phase == "begin":
            self._begin(event)
        else:
            self._end(event)

    def _begin(self, event: TraceEvent) -> None:
        with self._lock:
            parent = self._open.get(event.parent or "")
        context = None if parent is None else self._api.set_span_in_context(parent)
        name = f"lmprog {event.kind} {event.name}"
        span = self._tracer.start_span(name, context, start_time=event.time_ns)
        span.set_attribute("gen_ai.request.model", event.model)
        if event.kind == "call":
            span.set_attribute("lmprog.branch", event.branch)
            span.set_attribute("lmprog.site", event.site)
        with self._lock:
            self._open[event.id] = span

    def _end(self, event: TraceEvent) -> None:
        with self._lock:
            span = self._open.pop(event.id)
        usage = event.usage
        if usage is not None:
            span.set_attribute("gen_ai.usage.input_tokens", usage.prompt)
            span.set_attribute("gen_ai.usage.output_tokens", usage.generated)
            for name in ("cached", "computed", "forced", "drafted", "accepted"):
                span.set_attribute(f"lmprog.{name}_tokens", getattr(usage, name))
        if event.error is not None:
            span.set_attribute("error.type", event.error)
            span.set_status(self._api.StatusCode.ERROR)
        span.end(event.time_ns)


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


Phase: TypeAlias = Literal["asked", "queued", "again", "prefill", "decode"]
PHASES: tuple[Phase, ...] = ("asked", "queued", "again", "prefill", "decode")
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
    end lasts `until` the end of its run. Of the time before its first token, tokens that are
    computed again have the part that they are of all that are computed then.
    """
    end = until if call.end is None else call.end
    usage, found = call.usage, list[Stretch]()
    before = max(1, usage.recomputed, usage.computed - usage.generated + 1)
    again = usage.prefill_ms * usage.recomputed / before
    known: list[tuple[Phase, float]] = [
        ("decode", usage.decode_ms), ("prefill", usage.prefill_ms - again), ("again", again),
        ("queued", usage.queued_ms),
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
