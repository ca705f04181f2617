"""The list of requests: who sees which, what is told of each, texts while they come, cancelling."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from lmprog import wire
from lmprog.runtime.programs.call_builder import ServedModel
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.link.exchange import KEPT, KEPT_SECONDS, RecordKeeper, RequestOrigin
from lmprog.server.observability.runtime_metrics import HISTORY_EVERY, HISTORY_SPAN, FigureHistory
from tests.server.fake_runtime import Asgi, Fake, asking
from tests.server.test_page import app_of, first, viewer

KEYS: dict[str, Any] = {"api_keys": ("one", "two"), "admin_key": "admin"}
SECRET = "a sentence that nobody else should read"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


@asynccontextmanager
async def running(app: Any, key: str = "", prompt: str = SECRET) -> AsyncIterator[Asgi]:
    """A stream that writes until the block ends, or it is cancelled."""
    body = {"model": "fake", "prompt": prompt, "max_tokens": 1500, "stream": True}
    body |= {"ignore_eos": True, "temperature": 0}
    ask = Asgi(app, "POST", "/v1/completions", bearer(key), body)
    try:
        await ask.until(b"data: ")
        yield ask
    finally:
        await ask.leave()


async def rows(client: httpx2.AsyncClient, key: str = "") -> dict[str, Any]:
    async with viewer(app_of(client), **bearer(key)) as found:
        seen: dict[str, Any] = await first(found, "requests")
        return seen


def with_slow_runtime(
    run: Callable[[httpx2.AsyncClient, Gateway], Coroutine[Any, Any, None]], **settings: Any
) -> None:
    async def main() -> None:
        async with asking(fake, **settings) as (client, gateway):
            await run(client, gateway)

    with Fake(pace=0.01) as fake:
        asyncio.run(main())


def test_a_request_is_listed_while_it_runs_and_for_a_while_after() -> None:
    async def run(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        async with running(app_of(client), "one"):
            (row,) = (await rows(client, "admin"))["open"]
            told = {name: row[name] for name in ("route", "key", "branches", "calls", "done")}
            assert told == {
                "route": "/v1/completions", "key": "key-1", "branches": 1, "calls": 1, "done": 0,
            }  # fmt: skip
            assert row["state"] in ("prefill", "decode")
            assert row["prompt"] == 1 + len(SECRET)
            assert row["generated"] > 0
            assert row["mayCancel"]
        reply = await client.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3},
            headers=bearer("two"),
        )
        assert reply.status_code == 200
        seen = await rows(client, "admin")
        assert seen["open"] == []
        told = [(row["route"], row["key"], row["state"]) for row in seen["ended"]]
        assert told == [
            ("/v1/chat/completions", "key-2", "done"),
            ("/v1/completions", "key-1", "left"),
        ]
        assert seen["ended"][0]["generated"] == 3
        assert SECRET not in json.dumps(seen)

    with_slow_runtime(run, **KEYS)


def test_a_key_sees_its_own_requests_and_of_others_counts_alone() -> None:
    async def run(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        app = app_of(client)
        async with running(app, "one"), running(app, "two"):
            seen = await rows(client, "one")
            assert [row["route"] for row in seen["open"]] == ["/v1/completions", "another key"]
            own, other = seen["open"]
            assert (own["key"], other["key"]) == ("key-1", "")
            assert (own["mayCancel"], other["mayCancel"], other["number"]) == (True, False, 0)
            assert [row["key"] for row in (await rows(client, "admin"))["open"]] == [
                "key-1", "key-2",
            ]  # fmt: skip
        assert [row["key"] for row in (await rows(client, "two"))["ended"]] == ["key-2"]

    with_slow_runtime(run, **KEYS)


@pytest.mark.parametrize(
    ("shows", "key", "status"),
    [(False, "one", 200), (False, "admin", 403), (True, "admin", 200), (True, "two", 404)],
)
def test_texts_are_for_the_key_that_asked_and_for_the_administrator_where_texts_are_shown(
    shows: bool, key: str, status: int
) -> None:
    async def run(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        async with running(app_of(client), "one"):
            (row,) = (await rows(client, "one"))["open"]
            reply = await client.get(f"/ui/requests/{row['number']}/texts", headers=bearer(key))
            assert reply.status_code == status
            assert (SECRET in reply.text) == (status == 200)
            if status == 200:
                (one,) = reply.json()["sequences"]
                assert one["text"][: one["promptChars"]].endswith(SECRET)
                assert len(one["text"]) > one["promptChars"]

    with_slow_runtime(run, ui_show_text=shows, **KEYS)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_of_an_ended_request_is_told_what_it_cost_how_long_it_took_and_why_it_ended(
    is_streamed: bool,
) -> None:
    async def run(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        body = {"prompt": SECRET, "max_tokens": 3, "n": 2, "ignore_eos": True}
        body |= {"temperature": 1, "stream": is_streamed}
        reply = await client.post("/v1/completions", json=body, headers=bearer("one"))
        assert reply.status_code == 200
        (row,) = (await rows(client, "one"))["ended"]
        assert (row["finishes"], row["generated"]) == ({"length": 2}, 6)
        assert row["computed"] == row["prompt"] - 1 - row["cached"] + 6
        assert row["prefill"] > 0
        assert row["decode"] > 0
        assert row["texts"] == 0, "they are kept where the server shows texts only"
        where = f"/ui/requests/{row['number']}/texts"
        assert (await client.get(where, headers=bearer("one"))).json()["answers"] == []

    with_slow_runtime(run, **KEYS)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_where_texts_are_shown_answers_are_kept_a_while_for_who_may_read_them(
    is_streamed: bool,
) -> None:
    async def run(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        body = {"prompt": SECRET, "max_tokens": 4, "ignore_eos": True, "stream": is_streamed}
        reply = await client.post("/v1/completions", json=body, headers=bearer("one"))
        (row,) = (await rows(client, "admin"))["ended"]
        where = f"/ui/requests/{row['number']}/texts"
        for key, is_told in (("one", True), ("admin", True)):
            (text,) = (await client.get(where, headers=bearer(key))).json()["answers"]
            assert is_told == (text != "")
            if not is_streamed:
                assert text == reply.json()["choices"][0]["text"]
        other = await client.get(where, headers=bearer("two"))
        assert other.status_code == 404
        seen = json.dumps(await rows(client, "admin"))
        assert text not in seen, "the rows themselves have none"

    with_slow_runtime(run, ui_show_text=True, **KEYS)


def test_of_answers_so_many_characters_are_kept_and_no_more() -> None:
    keeper = RecordKeeper(time.monotonic, 10)
    record = keeper.begin(RequestOrigin())
    outputs = tuple(wire.Output(text, (), "length") for text in ("abcdef", "ghijkl", "mn"))
    record.take(wire.CallDone(1, outputs, wire.Usage(5, 4)))
    assert record.texts == ["abcdef", "ghi"]
    none = RecordKeeper(time.monotonic).begin(RequestOrigin())
    none.take(wire.CallDone(1, outputs, wire.Usage(5, 4)))
    assert none.texts == []
    assert none.finishes == {"length": 3}


def test_the_administrator_sees_what_each_key_costs_holds_and_waits_for() -> None:
    async def run(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        body = {"prompt": "abcd", "max_tokens": 3, "ignore_eos": True}
        await client.post("/v1/completions", json=body, headers=bearer("one"))
        async with running(app_of(client), "two"):
            seen = await rows(client, "admin")
            found = {row["name"]: row for row in seen["keys"]}
            assert {"key-1", "key-2"} <= found.keys()
            one, two = found["key-1"], found["key-2"]
            assert (one["results"], two["results"]) == (0, 1)
            assert one["cost"] > 0
            assert set(one["waited"]) == {"memory", "place", "load", "step"}
            assert one["waitedFor"] == {}
            assert (one["held"], one["heldBy"]) == (0, {})
            assert (await rows(client, "one"))["keys"] == [], "what others use is not for a key"

    with_slow_runtime(run, **KEYS)


@pytest.mark.parametrize(("key", "status"), [("two", 404), ("one", 200), ("admin", 200)])
def test_who_may_cancel_ends_the_request_and_its_client_is_told(key: str, status: int) -> None:
    async def run(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        async with running(app_of(client), "one") as ask:
            (row,) = (await rows(client, "one"))["open"]
            where = f"/ui/requests/{row['number']}/cancel"
            assert (await client.get(where, headers=bearer(key))).status_code == 405
            assert (await client.post(where, headers=bearer(key))).status_code == status
            assert (await client.post(where)).status_code == 401
            if status != 200:
                assert gateway.open_results == 1
                return
            await ask.until(b"request_cancelled")
            assert "cancelled from outside" in ask.parts[-2].decode() + ask.parts[-1].decode()
            await ask.leave()
            async with asyncio.timeout(30):
                while (await gateway.link.figures())["running"]:
                    await asyncio.sleep(0.02)
            assert [row["state"] for row in (await rows(client, "one"))["ended"]] == ["cancelled"]
            texts = where.replace("cancel", "texts")
            nothing = await client.get(texts, headers=bearer(key))
            assert nothing.json() == {"ended": True, "sequences": [], "answers": []}
            again = await client.post(where, headers=bearer(key))
            assert again.status_code == 404

    with_slow_runtime(run, **KEYS)


def test_a_whole_answer_that_is_cancelled_is_no_error_that_clients_repeat() -> None:
    async def run(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        body = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True}
        asked = asyncio.create_task(client.post("/v1/completions", json=body))
        seen: dict[str, Any] = {"open": []}
        while not seen["open"]:
            seen = await rows(client)
        number = seen["open"][0]["number"]
        assert (await client.post(f"/ui/requests/{number}/cancel")).status_code == 200
        reply = await asked
        assert (reply.status_code, reply.json()["error"]["code"]) == (410, "cancelled")

    with_slow_runtime(run)


def test_a_request_that_waits_for_its_turn_can_be_cancelled() -> None:
    async def run(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        app = app_of(client)
        async with running(app, "one"):
            body = {"prompt": "later", "max_tokens": 5}
            asked = asyncio.create_task(
                client.post("/v1/completions", json=body, headers=bearer("one"))
            )
            seen: dict[str, Any] = {"open": []}
            while len(seen["open"]) < 2:
                seen = await rows(client, "admin")
            assert [row["state"] for row in seen["open"]][1] == "queued"
            number = seen["open"][1]["number"]
            await client.post(f"/ui/requests/{number}/cancel", headers=bearer("admin"))
            assert (await asked).status_code == 410
        done = await client.post("/v1/completions", json=body, headers=bearer("one"))
        assert done.status_code == 200

    with_slow_runtime(run, max_running=1, **KEYS)


def test_programs_that_come_by_the_wire_are_listed_without_texts() -> None:
    async def run(client: httpx2.AsyncClient, gateway: Gateway, fake: Fake) -> None:
        other = fake.connect("python")
        sampling = wire.SamplingParams(max_tokens=1500, ignore_eos=True)
        other.send([wire.Open(1), wire.Append(1, (wire.TextPiece(SECRET),))])
        other.send([wire.Fork(1, (2, 3)), wire.Generate(2, 4, sampling)])
        other.send([wire.Generate(3, 5, sampling)])
        seen: dict[str, Any] = {"open": []}
        while not seen["open"] or seen["open"][0]["calls"] < 2:
            seen = await rows(client)
        (row,) = seen["open"]
        assert (row["route"], row["branches"], row["mayCancel"], row["mayRead"]) == (
            "wire", 2, False, False,
        )  # fmt: skip
        other.close()

    async def main() -> None:
        async with asking(fake, ui_show_text=True) as (client, gateway):
            await run(client, gateway, fake)

    with Fake(pace=0.01) as fake:
        asyncio.run(main())


def test_only_the_last_records_are_kept_and_not_for_ever() -> None:
    now = 0.0
    keeper = RecordKeeper(lambda: now)
    for _ in range(3 * KEPT):
        record = keeper.begin(RequestOrigin(route="/x"))
        record.calls = 1
        now += 1.0
        keeper.end(record)
    numbers = [one.number for one in keeper.ended()]
    assert numbers == list(range(3 * KEPT, 2 * KEPT, -1))
    now += KEPT_SECONDS + 1
    assert list(keeper.ended()) == []


def test_a_request_whose_page_is_closed_costs_the_gateway_little() -> None:
    """What is kept of a request is made in a few microseconds of a request's hundreds."""
    keeper, origin = RecordKeeper(time.monotonic), RequestOrigin()
    done = wire.CallDone(1, (), wire.Usage(5, 4))
    times = 2000
    began = time.process_time()
    for _ in range(times):
        record = keeper.begin(origin)
        record.branches, record.calls = 1, 1
        record.take(done)
        keeper.end(record)
    assert (time.process_time() - began) / times < 100e-6


# --- looking closer at the tree -------------------------------------------------------------------


async def grown(client: httpx2.AsyncClient, key: str) -> dict[str, Any]:
    for prompt in (SECRET + " aloud", SECRET + " again", "something else"):
        body = {"prompt": prompt, "max_tokens": 1}
        reply = await client.post("/v1/completions", json=body, headers=bearer(key))
        assert reply.status_code == 200
    async with viewer(app_of(client), **bearer(key)) as found:
        seen: dict[str, Any] = await first(found, "snapshot")
        return seen


def test_a_block_is_opened_into_all_its_text_and_what_is_below_it() -> None:
    async def run(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        seen = await grown(client, "")
        stem = max(seen["nodes"], key=lambda node: node[3])
        assert len(stem[10]) < len(SECRET), "the picture has first words only"
        block = (await client.get(f"/ui/blocks/{stem[0]}")).json()
        assert SECRET in block["text"]
        below = (await client.get(f"/ui/blocks/{stem[0]}/below")).json()
        assert below["nodes"][0][0] == stem[0]
        assert sum(node[1] == 0 for node in below["nodes"]) == 2
        assert (await client.get("/ui/blocks/999999")).status_code == 404
        wrong = await client.get("/ui/blocks/nonsense")
        assert wrong.status_code == 422
        assert wrong.json()["error"]["message"].startswith("path.number: Input should be a valid")
        assert "lmprog" not in wrong.text, "no path of a file"

    with_slow_runtime(run, ui_show_text=True)


def test_a_text_is_found_across_the_border_of_blocks() -> None:
    async def run(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        await grown(client, "")
        reply = await client.post("/ui/search", json={"text": "READ AGAIN"})
        (found,) = reply.json()["found"]
        assert found["match"] == "read again"
        assert found["before"].endswith("nobody else should ")
        nothing = await client.post("/ui/search", json={"text": "read nothing"})
        assert nothing.json()["found"] == []
        for wrong in ("", "x" * 201):
            reply = await client.post("/ui/search", json={"text": wrong})
            assert reply.status_code == 400

    with_slow_runtime(run, ui_show_text=True)


@pytest.mark.parametrize(("shows", "key"), [(False, "admin"), (True, "one")])
def test_texts_of_blocks_are_the_administrators_where_they_are_shown(shows: bool, key: str) -> None:
    async def run(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        seen = await grown(client, key)
        number = max(seen["nodes"], key=lambda node: node[3])[0]
        for where in (f"/ui/blocks/{number}", f"/ui/blocks/{number}/below"):
            reply = await client.get(where, headers=bearer(key))
            assert reply.status_code == 200
            assert "sentence" not in reply.text
        reply = await client.post("/ui/search", json={"text": "a"}, headers=bearer(key))
        assert reply.status_code == 403

    with_slow_runtime(run, ui_show_text=shows, **KEYS)


def test_a_viewer_is_told_the_last_hour_first() -> None:
    async def run(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        gateway.meters.history.see({"cached_tokens": 5.0, "pages": 7.0})
        async with viewer(app_of(client)) as found:
            history = await first(found, "history")
            row = dict(zip(["ago", *history["names"]], history["rows"][0], strict=True))
            assert (row["cached_tokens"], row["pages"], row["running"]) == (5.0, 7.0, 0.0)

    with_slow_runtime(run)


def test_the_history_is_thinned_and_ends_after_an_hour() -> None:
    now = 0.0
    history = FigureHistory(lambda: now)
    for _ in range(3000):
        history.see({"generated_tokens": now})
        now += 2.0
    rows = history.rows()
    assert HISTORY_SPAN / HISTORY_EVERY - 2 <= len(rows) <= HISTORY_SPAN / HISTORY_EVERY
    assert all(ago <= HISTORY_SPAN for ago, *_ in rows)
    gaps = {round(a[0] - b[0], 3) for a, b in itertools.pairwise(rows)}
    assert gaps == {HISTORY_EVERY}


@pytest.mark.parametrize("shows_text", [True, False])
def test_a_session_between_two_requests_is_listed_for_its_key_and_counted_for_others(
    monkeypatch: pytest.MonkeyPatch, shows_text: bool
) -> None:
    monkeypatch.setattr(ServedModel, "called_tool", lambda self, text: "make")
    ask = {"role": "user", "content": SECRET}

    async def run(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        for messages in ([ask], [ask] * 3):
            body = {"messages": messages, "max_tokens": 3, "ignore_eos": True}
            reply = await client.post("/v1/chat/completions", json=body, headers=bearer("one"))
            assert reply.status_code == 200
        tool = "make" if shows_text else ""
        for key, name, told in (
            ("one", "key-1", tool),
            ("two", "another key", ""),
            ("admin", "key-1", tool),
        ):
            (row,) = (await rows(client, key))["sessions"]
            assert (row["key"], row["tool"], row["state"]) == (name, told, "in a tool")
            assert (row["turn"], row["pages"]) == (2, "in memory")
            assert row["tokens"] == row["inMemory"] > 3 * len(SECRET)

    async def main() -> None:
        async with asking(fake, **KEYS, ui_show_text=shows_text) as (client, gateway):
            await run(client, gateway)

    with Fake() as fake:
        asyncio.run(main())
