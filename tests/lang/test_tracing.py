"""`lmprog.tracing`: callbacks, or OpenTelemetry, are told of runs and calls."""

from __future__ import annotations

import logging

import pytest

import lmprog
from lmprog.errors import InvalidParameter, NotSupported
from lmprog.testing import Scripted


@lmprog.function
async def inner(s: lmprog.Branch) -> str:
    s.append("In")
    return await s.gen(name="deep")


@lmprog.function
async def outer(s: lmprog.Branch) -> str:
    s.append("Out")
    async with s.fork(2) as branches:
        await branches.map(lambda b: b.gen(name="side"))
    return (await inner.arun()).value


def shown(events: list[lmprog.TraceEvent]) -> list[str]:
    names = {event.id: event.name for event in events if event.kind == "run"}
    return [
        f"{event.phase} {names.get(event.parent or '', '-')}/{event.name}@{event.branch}"
        for event in events
    ]


def test_runs_and_calls_are_told_at_their_beginning_and_their_end() -> None:
    events: list[lmprog.TraceEvent] = []
    with Scripted(["a", "b", "c"]) as backend, lmprog.tracing(events.append):
        run = outer.using(backend=backend).run()
    begun = [line for line in shown(events) if line.startswith("begin")]
    assert begun == [
        "begin -/outer@root",
        "begin outer/side@fork0[0]",
        "begin outer/side@fork0[1]",
        "begin outer/inner@root",
        "begin inner/deep@root",
    ]
    ended = [event for event in events if event.phase == "end"]
    assert [event.name for event in ended][-2:] == ["inner", "outer"]
    assert {event.id for event in ended} == {event.id for event in events}
    assert ended[-1].usage == run.usage
    assert all(event.model == "scripted" for event in events)
    assert events[1].site.endswith("in <lambda>")
    times = {event.id: event.time_ns for event in events if event.phase == "begin"}
    assert all(times[event.id] <= event.time_ns for event in ended)


def test_failures_are_told_by_their_class() -> None:
    events: list[lmprog.TraceEvent] = []
    with (
        Scripted([NotSupported("no")]) as backend,
        lmprog.tracing(events.append),
        pytest.raises(NotSupported),
    ):
        inner.using(backend=backend).run()
    assert [event.error for event in events if event.phase == "end"] == ["NotSupported"] * 2


def test_only_runs_that_begin_inside_the_block_are_told_of() -> None:
    outside: list[lmprog.TraceEvent] = []
    inside: list[lmprog.TraceEvent] = []
    with Scripted(["a", "b", "c"]) as backend:
        program = inner.using(backend=backend)
        with lmprog.tracing(outside.append):
            program.run()
            with lmprog.tracing(inside.append):
                program.run()
        program.run()
    assert (len(outside), len(inside)) == (8, 4)


def test_a_batch_and_a_rehearsal() -> None:
    events: list[lmprog.TraceEvent] = []
    with Scripted(lambda prompt: "a") as backend, lmprog.tracing(events.append):
        program = inner.using(backend=backend)
        program.explain()
        assert events == []
        program.run_batch([{}, {}, {}])
    assert sum(event.kind == "run" for event in events) == 6


def test_a_callback_that_fails_ends_no_run(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: lmprog.TraceEvent) -> None:
        raise LookupError("mine")

    told = caplog.at_level(logging.ERROR, "lmprog")
    with Scripted(["a"]) as backend, lmprog.tracing(broken), told:
        assert inner.using(backend=backend).run().value == "a"
    assert "a callback of lmprog.tracing failed" in caplog.text


def test_opentelemetry_has_a_span_of_each_run_and_call() -> None:
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    kept = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(kept))
    with (
        Scripted(["a", "b", NotSupported("no")]) as backend,
        lmprog.tracing(provider),
        pytest.raises(NotSupported),
    ):
        outer.using(backend=backend).run()
    spans = {span.name: span for span in kept.get_finished_spans()}
    run, side = spans["lmprog run outer"], spans["lmprog call side"]
    assert side.parent.span_id == run.context.span_id
    assert spans["lmprog run inner"].parent.span_id == run.context.span_id
    assert side.attributes["gen_ai.usage.output_tokens"] == 1
    assert side.attributes["gen_ai.request.model"] == "scripted"
    assert run.attributes["error.type"] == "NotSupported"
    assert not run.status.is_ok
    assert run.start_time <= side.start_time <= side.end_time <= run.end_time


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(InvalidParameter), lmprog.tracing(3):  # type: ignore[arg-type]
        pass
