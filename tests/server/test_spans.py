"""Spans where they are asked for, nothing where they are not, and never a text in them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from lmprog.errors import NotSupported
from lmprog.server.observability import spans
from lmprog.server.observability.spans import ENDPOINTS, NoTraces, OtelTraces
from tests.server.fake_runtime import Fake, asking

ASK = {"prompt": "secret words", "max_tokens": 3, "ignore_eos": True}
TRACE = "0af7651916cd43dd8448eb211c80319c"


def spans_of(
    fake: Fake, asks: list[tuple[str, dict[str, Any]]], conventional: bool = False
) -> list[Any]:
    """The spans of these requests, in the order of their ends."""
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()

    async def run() -> None:
        async with asking(fake) as (client, gateway):
            gateway.trace(
                OtelTraces(exporter, gateway.model_label, conventional=conventional, at_once=True)
            )
            for path, body in asks:
                await client.post(
                    path, json=body, headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
                )
            await client.get("/ready")
            gateway.traces.close()

    asyncio.run(run())
    return list(exporter.get_finished_spans())


def test_a_call_is_below_its_request_and_that_below_its_client(fake: Fake) -> None:
    call, request = spans_of(fake, [("/v1/completions", {**ASK, "stream": True})])
    assert call.name == "gen fake"
    assert request.name == "POST /v1/completions"
    assert call.parent.span_id == request.context.span_id
    assert f"{request.context.trace_id:032x}" == TRACE
    assert call.attributes["lmprog.generated_tokens"] == 3
    assert call.attributes["lmprog.finish"] == ("length",)
    assert dict(request.attributes) == {
        "http.request.method": "POST",
        "url.path": "/v1/completions",
        "url.scheme": "http",
        "lmprog.model": "fake",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
    }
    assert not any(name.startswith("gen_ai") for name in call.attributes)


def test_the_conventions_that_may_change_are_written_when_asked_for(fake: Fake) -> None:
    call, _ = spans_of(fake, [("/v1/completions", ASK)], conventional=True)
    assert call.attributes["gen_ai.usage.output_tokens"] == 3
    assert call.attributes["gen_ai.request.model"] == "fake"
    assert call.attributes["gen_ai.response.finish_reasons"] == ("length",)


def test_failures_are_marked_and_texts_are_nowhere(fake: Fake) -> None:
    spans = spans_of(
        fake, [("/v1/completions", {**ASK, "prompt": "secret " * 1000}), ("/v1/completions", ASK)]
    )
    failed = spans[0]
    assert failed.attributes["error.type"] == "context_overflow"
    assert not failed.status.is_ok
    assert "secret" not in "".join(span.to_json() for span in spans)


def test_without_a_place_to_send_them_nothing_is_imported() -> None:
    assert isinstance(spans.traces({}, lambda: "m"), NoTraces)
    code = (
        "import sys, lmprog.server.service, lmprog.server.observability.spans as t; "
        "t.traces({}, str);"
        "parts = ('opentelemetry.sdk', 'opentelemetry.exporter');"
        "print([name for name in sys.modules if name.startswith(parts)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(NotSupported, match=r"lmprog\[otel\]"):
        spans.traces({ENDPOINTS[0]: "http://localhost:4318"}, lambda: "m")
