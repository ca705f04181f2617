"""`lmprog.tracing`: who is told about the runs of a block. The language's door to OpenTelemetry.

Spans hold models, counts, times and endings, and never a text. Their names of fields are those of
the gateway's spans.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmprog.errors import InvalidParameter, NotSupported
from lmprog.lang.runs.trace_file import TraceWriter
from lmprog.lang.streaming import callbacks
from lmprog.lang.streaming.trace_events import TraceCallback, TraceEvent

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


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
