"""Spans for OpenTelemetry: one for each request, and below it one for each generation or selection
it asks for.

The only door of OpenTelemetry. Without it, or where the environment names no place to send spans
to, nothing is done and nothing imported: `NoTraces`. Spans hold models, counts, times and endings;
never a text, a key or a caller.

The conventions for generative models are in development: their names (`gen_ai.*`) are written where
`OTEL_SEMCONV_STABILITY_OPT_IN` has `gen_ai_latest_experimental`, ours (`lmprog.*`) always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol, TypeAlias

from starlette.datastructures import Headers
from starlette.types import Scope

from lmprog import wire
from lmprog.errors import NotSupported
from lmprog.server.link.runtime_link import Observer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

Ended: TypeAlias = Callable[[str, int], None]
"""Called with the route and the status of a request, before its span ends."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
_QUIET = ("/health", "/ready", "/metrics")
"""Polled every few seconds: not traced."""


class Traces(Protocol):
    """Makes spans, or none."""

    def request(self, scope: Scope) -> AbstractContextManager[Ended]:
        """Around one HTTP request; the spans of its calls are children of its span."""
        ...

    def beside(self, observer: Observer) -> Observer:
        """An observer that tells `observer` everything, and makes spans of it."""
        ...

    def close(self) -> None:
        """Sends what is left."""
        ...


class NoTraces:
    """Makes no spans."""

    def request(self, scope: Scope) -> AbstractContextManager[Ended]:
        return _NO_SPAN

    def beside(self, observer: Observer) -> Observer:
        return observer

    def close(self) -> None:
        pass


def _nothing(route: str, status: int) -> None:
    pass


_NO_SPAN = nullcontext(_nothing)


def traces(environment: Mapping[str, str], model: Callable[[], str]) -> Traces:
    """As the environment says. Raises `NotSupported` where it asks for spans and the extra is not
    installed.
    """
    if not any(environment.get(name) for name in ENDPOINTS):
        return NoTraces()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        message = (
            f"{ENDPOINTS[0]} is set, and OpenTelemetry is not installed: "
            "pip install 'lmprog[otel]'."
        )
        raise NotSupported(message) from None
    return OtelTraces(
        OTLPSpanExporter(), model, conventional="gen_ai" in environment.get(OPT_IN, "")
    )


class OtelTraces:
    """Spans by OpenTelemetry's SDK, with a provider of its own: an application around us keeps its
    settings.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        model: Callable[[], str],
        *,
        conventional: bool,
        at_once: bool = False,
    ) -> None:
        """`conventional`: with `gen_ai.*` too; `at_once`: sends each span when it ends, for
        tests.
        """
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "lmprog"}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(
            SimpleSpanProcessor(exporter) if at_once else BatchSpanProcessor(exporter)
        )
        self._tracer = self._provider.get_tracer("lmprog")
        self._model = model
        self._conventional = conventional

    def request(self, scope: Scope) -> AbstractContextManager[Ended]:
        return nullcontext(_nothing) if scope["path"] in _QUIET else self._around(scope)

    def beside(self, observer: Observer) -> Observer:
        return _Calls(observer, self)

    def close(self) -> None:
        self._provider.shutdown()

    @contextmanager
    def _around(self, scope: Scope) -> Iterator[Ended]:
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, StatusCode

        method, parent = scope["method"], extract(dict(Headers(scope=scope)))
        known = {
            "http.request.method": method,
            "url.path": scope["path"],
            "url.scheme": scope.get("scheme", "http"),
            "lmprog.model": self._model(),
        }
        with self._tracer.start_as_current_span(
            method, context=parent, kind=SpanKind.SERVER, attributes=known
        ) as span:

            def ended(route: str, status: int) -> None:
                span.update_name(f"{method} {route}")
                span.set_attributes({"http.route": route, "http.response.status_code": status})
                if status >= 500:
                    span.set_status(StatusCode.ERROR)

            yield ended

    def begin(self, op: wire.Generate | wire.Select, served_name: str) -> Span:
        """A span of a call, below the request that is made in this context."""
        name = "select" if isinstance(op, wire.Select) else "gen"
        model = served_name or self._model()
        span = self._tracer.start_span(f"{name} {model}")
        span.set_attribute("lmprog.model", model)
        if isinstance(op, wire.Generate):
            span.set_attribute("lmprog.constrained", op.constraint is not None)
            span.set_attribute("lmprog.results", op.sampling.n)
        if self._conventional:
            span.set_attributes(
                {"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "lmprog"}
            )
            span.set_attribute("gen_ai.request.model", model)
        return span

    def end(self, span: Span, usage: wire.Usage, finishes: tuple[str, ...]) -> None:
        """The call was answered."""
        span.set_attributes(
            {
                "lmprog.prompt_tokens": usage.prompt,
                "lmprog.cached_tokens": usage.cached,
                "lmprog.generated_tokens": usage.generated,
                "lmprog.forced_tokens": usage.forced,
                "lmprog.computed_tokens": usage.computed,
                "lmprog.drafted_tokens": usage.drafted,
                "lmprog.accepted_tokens": usage.accepted,
                "lmprog.preemptions": usage.preemptions,
                "lmprog.queued_ms": usage.queued_ms,
                "lmprog.prefill_ms": usage.prefill_ms,
                "lmprog.decode_ms": usage.decode_ms,
                "lmprog.finish": finishes,
            }
        )
        if self._conventional:
            span.set_attributes(
                {
                    "gen_ai.usage.input_tokens": usage.prompt,
                    "gen_ai.usage.output_tokens": usage.generated,
                    "gen_ai.usage.cache_read.input_tokens": min(usage.cached, usage.prompt),
                    "gen_ai.response.finish_reasons": finishes,
                }
            )
        span.end()


class _Calls:
    """An observer with a span for every call under way."""

    def __init__(self, inner: Observer, traces: OtelTraces) -> None:
        self._inner = inner
        self._traces = traces
        self._spans: dict[int, Span] = {}

    def asked(self, op: wire.Generate | wire.Select, served_name: str) -> None:
        self._inner.asked(op, served_name)
        self._spans[op.call] = self._traces.begin(op, served_name)

    def replied(self, reply: wire.Reply) -> None:
        self._inner.replied(reply)
        match reply:
            case wire.CallDone(call=call, usage=usage, outputs=outputs) if call in self._spans:
                self._traces.end(
                    self._spans.pop(call), usage, tuple(output.finish for output in outputs)
                )
            case wire.Chosen(call=call, usage=usage) if call in self._spans:
                self._traces.end(self._spans.pop(call), usage, ("selected",))
            case wire.Failed(call=call, code=code) if call in self._spans:
                self._fail(self._spans.pop(call), code)

    def dropped(self, call: int) -> None:
        self._inner.dropped(call)
        span = self._spans.pop(call, None)
        if span is not None:
            self._fail(span, "left")

    def _fail(self, span: Span, code: str) -> None:
        from opentelemetry.trace import StatusCode

        span.set_attribute("error.type", code)
        span.set_status(StatusCode.ERROR)
        span.end()
