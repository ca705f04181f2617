"""`lmprog top`: one picture over HTTP and over the wire, and what it says where there is none."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from rich.console import Console

from lmprog import wire
from lmprog.cli import main
from lmprog.cli.top import drawn, picture_of, pictures
from lmprog.wire.snapshot_json import session_json
from tests.runtime.talk import Talk, text
from tests.server.conftest import Served
from tests.server.live import Live


def words(now: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    out = io.StringIO()
    Console(file=out, width=110, highlight=False).print(drawn(now, before))
    return out.getvalue()


def seen_of(talk: Talk) -> wire.Snapshot:
    talk.say(wire.Inspect(999))
    return next(reply for reply in talk.step() if isinstance(reply, wire.Snapshot))


def look(talk: Talk) -> dict[str, Any]:
    return {"about": {"model": "fake", "context": 200}, **picture_of(seen_of(talk))}


@pytest.mark.parametrize("way", ["http", "wire"])
def test_one_picture_is_printed_over_either_way(
    server: Served, way: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    assert main(["top", "--once", server.url if way == "http" else server.runtime]) == 0
    out = capsys.readouterr().out
    assert "nano · 4,096 tokens of context" in out
    assert ("under way" in out) == (way == "http")
    assert ("running:" in out) == (way == "wire")
    assert "memory " in out
    assert "tree: " in out


def test_an_empty_runtime_says_that_it_is() -> None:
    said = words(look(Talk()))
    assert "running: nothing runs" in said
    assert "waiting: nobody waits" in said
    assert "tree: nothing is kept yet" in said


def test_who_runs_and_who_waits_and_how_fast_it_goes_is_told() -> None:
    talk = Talk(max_rows=1, policy="fcfs")
    sampling = wire.SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    for number in (1, 2):
        talk.say(
            wire.Open(number),
            text(number, "abcdefgh"),
            wire.Generate(number, 10 + number, sampling),
        )
    talk.step()
    before = look(talk)
    talk.now += 2.0
    for _ in range(9):
        talk.step()
    said = words(look(talk), before)
    assert "5 tokens/s" in said
    assert "1 running" in said
    assert "1 waiting" in said
    assert "gen 1.11" in said
    assert "decode" in said
    assert "gen 2.12" in said


def test_a_tree_is_drawn_heaviest_first_and_what_is_left_out_is_counted() -> None:
    talk = Talk(num_pages=400)
    for number in range(1, 21):
        letter = "abcdefghijklmnopqrst"[number - 1]
        sampling = wire.SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        talk.ask(
            wire.Open(number),
            text(number, letter * (4 * number)),
            wire.Generate(number, 100 + number, sampling),
        )
    said = words(look(talk))
    lengths = [
        int(line.split(" token")[0].split()[-1]) for line in said.splitlines() if " used " in line
    ]
    assert lengths == [4 * number for number in range(20, 6, -1)]
    assert "and 6 more" in said


def row(number: int, **more: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("branches", "calls", "done", "prompt", "cached", "generated"), 3)
    named = {"number": number, "route": "/v1/programs", "key": "alice", "state": "decode"}
    return {**counts, **named, "seconds": 2.0, **more}


def test_requests_are_listed_with_route_key_and_state() -> None:
    program = row(0, route="wire", key="", program=7)
    requests = {"open": [row(12), program], "openLeftOut": 2, "ended": [row(9, state="done")]}
    said = words({**look(Talk()), "requests": requests})
    lines = {line.split()[0]: line for line in said.splitlines() if line}
    assert "under way" in said
    assert "alice" in lines["decode"] or "wire, program 7" in lines["decode"]
    assert "wire, program 7" in said
    assert "and 2 more" in said
    assert lines["done"].split()[1:3] == ["/v1/programs", "alice"]
    assert "running:" not in said


def test_all_columns_of_requests_fit_into_80() -> None:
    open_row = row(123, route="/v1/chat/completions", state="waiting", prompt=4096)
    requests = {"open": [open_row], "openLeftOut": 0, "ended": []}
    out = io.StringIO()
    Console(file=out, width=80, highlight=False).print(
        drawn({**look(Talk()), "requests": requests}, None)
    )
    said = out.getvalue()
    assert "…" not in said
    line = next(line for line in said.splitlines() if line.startswith("waiting"))
    assert line.split() == [
        "waiting",
        "/v1/chat/completions",
        "alice",
        *("3", "4,096", "3", "3", "123", "2.0", "s"),
    ]


def account(name: str, **more: Any) -> dict[str, Any]:
    zeros = dict.fromkeys(("results", "held", "prompt", "generated", "refused"), 0)
    nothing: dict[str, Any] = {"heldBy": {}, "cost": 0.0, "waited": {}, "waitedFor": {}}
    return {"name": name, "isKey": True, **zeros, **nothing, **more}


def test_accounts_say_what_they_cost_and_for_whom_they_wait_and_fit_into_80() -> None:
    waited = {"memory": 1.0, "place": 0.0, "load": 0.0, "step": 41.5}
    alice = account("alice", waited=waited, waitedFor={"bob": 30.0, "": 2.0}, refused=12)
    bob = account("bob", cost=3712.0, held=15 << 20, results=128)
    requests = {"open": [], "openLeftOut": 0, "ended": [], "keys": [alice, bob, account("")]}
    names = [
        f"{name}_{what}" for name in ("first", "queued", "between") for what in ("count", "seconds")
    ]
    served = dict.fromkeys((*names, "refused", "failed", "bytes_held"), 0)
    out = io.StringIO()
    now = {**look(Talk()), "requests": requests, "served": served}
    Console(file=out, width=80, highlight=False).print(drawn(now, None))
    lines = {line.split()[0]: line.split() for line in out.getvalue().splitlines() if line.strip()}
    assert "…" not in out.getvalue()
    assert lines["alice"][1:] == ["0", "0.0", "s", "42", "s", "step", "bob", "0.0", "MiB", "12"]
    assert lines["bob"][1:] == ["128", "62", "min", "0.0", "s", "15.0", "MiB", "0"]
    assert "no key" in out.getvalue()


def test_rates_are_told_by_kind() -> None:
    before = look(Talk())
    now = {**before, "clock": before["clock"] + 2.0, "figures": dict(before["figures"])}
    now["figures"] |= {"cached_tokens": 40.0, "prefill_tokens": 20.0, "forced_tokens": 6.0}
    said = words(now, before)
    assert "20 cached/s" in said
    assert "10 computed/s" in said
    assert "3 forced/s" in said


def test_a_request_is_cancelled_by_its_number(
    server: Served, live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        body = {"prompt": "x", "max_tokens": 3500, "ignore_eos": True}
        asked = pool.submit(lambda: live.http.post("/v1/completions", json=body))
        number = None
        while number is None:
            opened = next(pictures(server.url, None))["requests"]["open"]
            number = next((one["number"] for one in opened if one["number"]), None)
        assert main(["top", server.url, "--cancel", str(number)]) == 0
        assert asked.result().status_code == 410
    assert f"Request {number} is cancelled" in capsys.readouterr().out
    assert main(["top", server.url, "--cancel", str(number)]) == 1
    assert "No request" in capsys.readouterr().err
    assert main(["top", server.runtime, "--cancel", "1"]) == 2


@pytest.mark.parametrize(
    ("where", "code", "says"),
    [
        ("http://127.0.0.1:1", 1, "No lmprog server answers at http://127.0.0.1:1"),
        ("localhost", 2, "neither a URL nor an address"),
        ("http://127.0.0.1:nonsense", 2, "is no URL"),
    ],
)
def test_where_nothing_can_be_watched_one_sentence_says_why(
    where: str, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--once", where]) == code
    assert says in capsys.readouterr().err


def test_sessions_are_told_with_where_their_pages_are_and_when_they_are_expected() -> None:
    seen = wire.SessionSeen(7, "", True, 3, True, "", 42.0, 8.0, 1, 900, 900, 0)
    late = msgspec.structs.replace(seen, program=8, expected=-3.0, in_memory=100, stored=900)
    lost = msgspec.structs.replace(late, program=9, turn=0, in_tool=False, stored=0)
    snapshot = msgspec.structs.replace(
        seen_of(Talk()), sessions=(seen, late, lost), sessions_left_out=4
    )
    said = words({"about": {}, **picture_of(snapshot)})
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "in a tool 7 42 s in 8.0 s 900 in memory" in lines
    assert "in a tool 8 42 s 3.0 s late 900 on disk" in lines
    assert "paused 9 42 s 3.0 s late 900 evicted" in lines
    assert "and 4 more" in lines
    assert "sessions" not in words(look(Talk()))


def test_over_http_it_is_the_viewers_sessions_that_are_told() -> None:
    row = session_json(wire.SessionSeen(7, "a", True, 3, True, "make", 1.0, 8.0, 1, 9, 9, 0))
    requests = {"open": [], "openLeftOut": 0, "ended": [], "sessions": [{**row, "key": "alice"}]}
    said = words({**look(Talk()), "requests": requests})
    assert any(line.split()[:4] == ["in", "make", "alice", "7"] for line in said.splitlines())
