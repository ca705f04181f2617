"""Traces in files: what was written is read again, and where a run's time went adds up to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import InvalidParameter, ProtocolError, RequestRejected
from lmprog.lang.runs.trace_file import (
    PROGRAM,
    Stretch,
    TracedCall,
    TracedRun,
    end_of,
    lanes,
    read_trace,
    shares,
    stretches,
)
from lmprog.testing import Scripted
from tests.lang.test_tracing import outer


def test_a_trace_is_read_as_it_happened(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("of an earlier trace")
    with Scripted(["one", "two", "three words here"]) as backend, lmprog.tracing(str(path)):
        run = outer.using(backend=backend).run()
    (traced,) = read_trace(path)
    assert (traced.name, traced.model, traced.error, traced.usage) == (
        "outer", "scripted", None, run.usage,
    )  # fmt: skip
    assert [(call.name, call.branch) for call in traced.calls] == [
        ("side", "fork0[0]"),
        ("side", "fork0[1]"),
    ]
    assert [one.name for one in traced.inside] == ["inner"]
    assert traced.inside[0].calls[0].usage.generated == 3
    assert traced.begin == 0.0
    assert traced.end is not None
    assert all(call.end is not None and call.end <= traced.end for call in traced.calls)
    assert "three" not in path.read_text(), "no texts"


def test_a_torn_line_is_absent_and_other_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Scripted(["a", "b", "c"]) as backend, lmprog.tracing(path):
        outer.using(backend=backend).run()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:20])
    (torn,) = read_trace(path)
    assert torn.end is None
    assert end_of(torn) == max(call.end or 0 for call in torn.inside[0].calls) or torn.inside[0].end
    path.write_text("".join([*lines[:2], "{\n", *lines[2:]]))
    with pytest.raises(RequestRejected, match="no trace"):
        read_trace(path)
    path.write_text(json.dumps({"format": "lmprog trace 9"}) + "\n")
    with pytest.raises(ProtocolError, match="trace 9"):
        read_trace(path)
    path.write_text(json.dumps({"format": "lmprog trace 1"}) + "\n")
    assert read_trace(path) == []
    with pytest.raises(InvalidParameter, match="path of a file"):
        lmprog.tracing(tmp_path / "no" / "file").__enter__()


def call(begin: float, end: float | None, **usage: float) -> TracedCall:
    return TracedCall("gen", "m", "root", "", begin, end, wire.Usage(**usage))  # type: ignore[arg-type]


def test_the_phases_of_a_call_end_with_it() -> None:
    one = call(1.0, 2.0, queued_ms=125, prefill_ms=250, decode_ms=250)
    assert stretches(one, 9.0) == [
        Stretch("asked", 1.0, 1.375),
        Stretch("queued", 1.375, 1.5),
        Stretch("prefill", 1.5, 1.75),
        Stretch("decode", 1.75, 2.0),
    ]
    assert stretches(call(1.0, 2.0, decode_ms=5000), 9.0) == [Stretch("decode", 1.0, 2.0)]
    assert stretches(call(1.0, None), 9.0) == [Stretch("asked", 1.0, 9.0)]


def test_time_that_evicted_tokens_take_again_is_told_apart() -> None:
    usage = wire.Usage(
        prompt=100, cached=20, generated=11, computed=90, recomputed=60, prefill_ms=800.0
    )
    call = TracedCall("a", "m", "root", "", 0.0, 1.0, usage)
    assert [(one.phase, round(one.end - one.begin, 6)) for one in stretches(call, 1.0)] == [
        ("asked", 0.2),
        ("again", 0.6),
        ("prefill", 0.2),
    ]
    assert shares(TracedRun("r", "m", 0.0, 1.0, calls=[call]))["again"] == pytest.approx(0.6)


def test_shares_add_up_and_the_furthest_phase_counts() -> None:
    calls = [
        call(1.0, 3.0, decode_ms=1000),  # asked 1-2, decode 2-3
        call(1.0, 4.0, prefill_ms=2500),  # asked 1-1.5, prefill 1.5-4
    ]
    run = TracedRun("p", "m", 0.0, 5.0, calls=calls)
    found = shares(run)
    assert found == {
        "asked": pytest.approx(0.5),
        "queued": 0.0,
        "again": 0.0,
        "prefill": pytest.approx(1.5),
        "decode": pytest.approx(1.0),
        PROGRAM: pytest.approx(2.0),
    }
    assert [lane.branch for lane in lanes(run)] == ["root"]
