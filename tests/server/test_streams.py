"""Streams in silence, in trouble, and before readers that do not read; and rooms that are full."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.requests import Request

from lmprog import wire
from lmprog.errors import Cancelled, ModelError
from lmprog.server.app import build_app
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http.http_errors import ClientGone, HttpError
from lmprog.server.http.sse import KEEP_ALIVE, EventStream, event, until_gone
from lmprog.server.link import exchange as exchanges
from lmprog.server.link.runtime_link import RuntimeLink
from lmprog.server.options.server_settings import ServerSettings
from tests.server.fake_runtime import Asgi, Fake, asking

ENDLESS: dict[str, Any] = {
    "prompt": "Count on:",
    "max_tokens": 1500,
    "ignore_eos": True,
    "stream": True,
}
ROW = (wire.TokenLogprob(7, "x", -0.5, tuple((at, f"w{at}", -0.125 * at) for at in range(20))),)
SHORT: dict[str, Any] = {"prompt": "Count on:", "max_tokens": 5, "ignore_eos": True, "stream": True}


def serving(*parts: bytes | float | Exception, **settings: Any) -> Any:
    """An application that streams `parts`: bytes, pauses in seconds, and at last perhaps an
    exception.
    """

    async def events() -> AsyncGenerator[bytes, None]:
        for part in parts:
            if isinstance(part, bytes):
                yield part
            elif isinstance(part, float):
                await asyncio.sleep(part)
            else:
                raise part

    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        await request.body()
        response = await EventStream.begin(request, events(), ServerSettings(**settings))
        await response(scope, receive, send)

    return app


async def whole(app: Any) -> bytes:
    ask = Asgi(app, "GET", "/")
    await asyncio.wait({ask.task})
    ask.task.result()
    assert ask.ended
    return b"".join(ask.parts)


def test_a_silent_stream_says_that_it_lives() -> None:
    app = serving(b"one", 0.5, b"two", keep_alive=0.05)
    said = asyncio.run(whole(app))
    assert said.startswith(b"one" + KEEP_ALIVE)
    assert said.endswith(KEEP_ALIVE + b"two")
    assert said.replace(KEEP_ALIVE, b"") == b"onetwo"


def test_a_stream_that_is_long_in_coming_begins_all_the_same() -> None:
    async def run() -> None:
        ask = Asgi(serving(30.0, b"one", keep_alive=0.05, first_reply_wait=0.05), "GET", "/")
        assert await ask.started() == 200
        await ask.until(KEEP_ALIVE)
        await ask.leave()

    asyncio.run(run())


@pytest.mark.parametrize("error", [ModelError("no numbers."), RuntimeError("a bug")])
def test_a_failure_after_the_first_byte_is_the_last_event(error: Exception) -> None:
    said = asyncio.run(whole(serving(event({"a": 1}), error)))
    first, last, rest = said.split(b"\n\n")
    assert first == b'data: {"a":1}'
    assert rest == b""
    problem = json.loads(last.removeprefix(b"data: "))["error"]
    assert problem["type"] == ("model_error" if isinstance(error, ModelError) else "server_error")
    assert "bug" not in problem["message"]


def test_a_failure_before_the_first_byte_has_its_status() -> None:
    with pytest.raises(ModelError):
        asyncio.run(whole(serving(ModelError("no numbers."))))


def test_a_client_that_does_not_read_is_cut_off_and_holds_nobody_up() -> None:
    async def run() -> None:
        app = serving(*[b"x" * 1000] * 100, write_stall=0.2)
        slow, quick = Asgi(app, "GET", "/"), Asgi(app, "GET", "/")
        slow.reads.clear()
        await asyncio.wait({quick.task})
        assert quick.ended
        await asyncio.wait({slow.task})
        assert not slow.ended

    asyncio.run(run())


def test_a_reader_that_stalls_frees_the_runtime() -> None:
    async def run(fake: Fake) -> None:
        async with asking(fake, write_stall=0.2) as (client, gateway):
            ask = Asgi(build_app(gateway), "POST", "/v1/completions", body=ENDLESS)
            await ask.until(b"data: ")
            ask.reads.clear()
            other = await client.post("/v1/completions", json=SHORT)
            assert other.text.endswith("data: [DONE]\n\n")
            await asyncio.wait({ask.task})
            figures = await gateway.link.figures()
            assert figures["open_branches"] == 0
            assert gateway.open_results == 0

    with Fake(pace=0.002) as fake:
        asyncio.run(run(fake))


def test_more_than_may_wait_is_refused_at_once_with_a_time_to_come_back() -> None:
    async def run(fake: Fake) -> None:
        async with asking(fake, max_running=1, max_waiting=2) as (client, gateway):
            app = build_app(gateway)
            asks = [Asgi(app, "POST", "/v1/completions", body=ENDLESS) for _ in range(3)]
            await asks[0].until(b"data: ")
            assert gateway.open_results == 3
            for path, body in (
                ("completions", SHORT),
                ("chat/completions", {"messages": [{"role": "user", "content": ""}]}),
            ):
                reply = await client.post(f"/v1/{path}", json=body)
                assert reply.status_code == 429
                assert int(reply.headers["retry-after"]) >= 1
                assert reply.json()["error"]["code"] == "overloaded"
            unread = await client.post("/v1/completions", content=b"{")
            assert unread.status_code == 429, "a full server reads no bodies"
            for ask in asks:
                await ask.leave()
            assert (await client.post("/v1/completions", json=SHORT)).status_code == 200
            too_many = await client.post("/v1/completions", json={**SHORT, "n": 3})
            assert too_many.status_code == 400

    with Fake(pace=0.002) as fake:
        asyncio.run(run(fake))


def test_more_requests_than_may_be_open_are_refused() -> None:
    async def run(fake: Fake) -> None:
        async with asking(fake, max_requests=2) as (client, gateway):
            app = build_app(gateway)
            asks = [Asgi(app, "POST", "/v1/completions", body=ENDLESS) for _ in range(2)]
            await asks[0].until(b"data: ")
            reply = await client.get("/v1/models")
            assert reply.status_code == 503
            assert reply.headers["retry-after"]
            for ask in asks:
                await ask.leave()
            assert (await client.get("/v1/models")).status_code == 200

    with Fake(pace=0.002) as fake:
        asyncio.run(run(fake))


def test_a_call_that_takes_too_long_is_ended() -> None:
    async def run(fake: Fake) -> None:
        async with asking(fake, request_timeout=0.2) as (client, _):
            reply = await client.post("/v1/completions", json={**ENDLESS, "stream": False})
            assert reply.status_code == 504
            stream = await client.post("/v1/completions", json=ENDLESS)
            assert stream.status_code == 200
            assert json.loads(stream.text.split("data: ")[-1])["error"]["type"] == "timeout_error"

    with Fake(pace=0.002) as fake:
        asyncio.run(run(fake))


def test_when_the_runtime_dies_those_under_way_hear_of_it_and_the_next_one_serves_the_next() -> (
    None
):
    async def run() -> None:
        with Fake(pace=0.002) as first, Fake() as second:
            gateway = Gateway(ServerSettings(start_wait=0), RuntimeLink())
            app = build_app(gateway)
            assert await Asgi(app, "GET", "/ready").started() == 503
            gateway.link.replace(first.connect())
            stream = Asgi(app, "POST", "/v1/completions", body=ENDLESS)
            plain = Asgi(app, "POST", "/v1/completions", body={**ENDLESS, "stream": False})
            await stream.until(b"data: ")
            assert await Asgi(app, "GET", "/ready").started() == 200
            await asyncio.to_thread(first.end)
            await asyncio.wait({stream.task, plain.task})
            assert plain.status == 503
            assert plain.headers["retry-after"]
            last = json.loads(b"".join(stream.parts).split(b"data: ")[-1])
            assert last["error"]["type"] == "service_unavailable"
            assert await Asgi(app, "GET", "/ready").started() == 503
            assert await Asgi(app, "POST", "/v1/completions", body=SHORT).started() == 503
            gateway.link.replace(second.connect())
            assert await Asgi(app, "POST", "/v1/completions", body=SHORT).started() == 200
            assert gateway.open_results == 0 or await drained(gateway)
            gateway.link.close()

    asyncio.run(run())


def test_a_replaced_runtimes_calls_fail_as_restarted_and_its_late_replies_reach_nobody() -> None:
    async def run() -> None:
        with Fake(pace=0.002) as first, Fake() as second:
            gateway = Gateway(ServerSettings(), RuntimeLink())
            app = build_app(gateway)
            gateway.link.replace(first.connect())
            ask = Asgi(app, "POST", "/v1/completions", body={**ENDLESS, "stream": False})
            while (await gateway.link.figures())["running"] == 0:
                await asyncio.sleep(0.01)
            gateway.link.replace(second.connect())
            assert await ask.started() == 503
            await asyncio.wait({ask.task})
            assert json.loads(ask.parts[0])["error"]["code"] == "runtime_restarted"
            assert (await gateway.link.figures())["calls"] == 0
            gateway.link.close()

    asyncio.run(run())


async def drained(gateway: Gateway) -> bool:
    for _ in range(1000):
        if gateway.open_results == 0:
            return True
        await asyncio.sleep(0.01)
    return False


def test_a_server_that_stops_lets_nobody_in() -> None:
    async def run(fake: Fake) -> None:
        async with asking(fake) as (client, gateway):
            gateway.draining = True
            for path in ("/ready", "/v1/completions"):
                method = client.get if path == "/ready" else client.post
                reply = await (method(path) if path == "/ready" else client.post(path, json=SHORT))
                assert reply.status_code == 503
                assert reply.headers["retry-after"]
            assert (await client.get("/health")).status_code == 200

    with Fake() as fake:
        asyncio.run(run(fake))


@pytest.mark.parametrize("isolation", ["shared", "key", "strict"])
def test_who_shares_the_cache_is_the_operators_to_say(isolation: str) -> None:
    gateway = Gateway(
        ServerSettings(cache_isolation=isolation, allow_cache_salt=True), RuntimeLink()
    )  # type: ignore[arg-type]
    one, other = gateway.salt("one"), gateway.salt("other")
    assert (one == other) == (isolation == "shared")
    assert (one == gateway.salt("one")) == (isolation != "strict")
    assert gateway.salt("one", "x") != one
    assert (gateway.salt("one", "x") == gateway.salt("other", "x")) == (isolation == "shared")


def test_a_request_may_not_choose_its_cache_unless_the_operator_lets_it() -> None:
    with pytest.raises(HttpError, match="--allow-cache-salt"):
        Gateway(ServerSettings(), RuntimeLink()).salt("one", "x")


def test_what_gathers_before_a_slow_reader_is_one_piece_and_loses_nothing(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake) as (_, gateway):
            with gateway.link.exchange() as exchange:
                one, other = wire.TokenLogprob(1, "a", -0.5), wire.TokenLogprob(2, "b", -0.25)
                exchange.take(wire.Delta(7, 0, "a", 1, (one,), tags=(0,)))
                exchange.take(wire.Delta(7, 0, "b<t>", 2, (other,), tags=(1,)))
                exchange.take(wire.Delta(7, 1, "c", 1))
                both = wire.Delta(7, 0, "ab<t>", 3, (one, other), tags=(0, 2))
                assert await exchange.next() == both
                assert await exchange.next() == wire.Delta(7, 1, "c", 1)

    asyncio.run(run())


def test_what_waits_for_all_streams_is_bounded_and_who_reads_is_never_ended(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "QUEUES_SPARE", 0)

    async def run() -> None:
        async with asking(fake, memory_mb=1) as (_, gateway):
            link = gateway.link
            with contextlib.ExitStack() as stack:
                reader, *unread = [stack.enter_context(link.exchange()) for _ in range(9)]
                calls = {exchange: exchange.call() for exchange in (reader, *unread)}
                for _ in range(1000):
                    for exchange in [one for one in unread if one.open_calls]:
                        exchange.take(wire.Delta(calls[exchange], 0, "a", 1, ROW))
                    told = wire.Delta(calls[reader], 0, "b", 1, ROW)
                    reader.take(told)
                    assert await reader.next() == told
                    assert link.memory.held == sum(one.queued_bytes for one in unread)
                    assert link.memory.held <= 0.75 * (1 << 20)
                assert not any(one.open_calls for one in unread), "each has more than all may have"
                for exchange in unread:
                    with pytest.raises(Cancelled, match="reads too slowly"):
                        await exchange.next()
            assert link.memory.held == 0

    asyncio.run(run())


def test_what_is_written_for_a_reader_at_once_has_few_log_probabilities(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake) as (_, gateway):
            with gateway.link.exchange() as exchange:
                call = exchange.call()
                for _ in range(500):
                    exchange.take(wire.Delta(call, 0, "a", 1, ROW))
                found: list[wire.Delta] = []
                while exchange.queued_bytes:
                    reply = await exchange.next()
                    assert isinstance(reply, wire.Delta)
                    found.append(reply)
            assert [len(one.logprobs) for one in found] == [64] * 7 + [52]
            assert "".join(one.text for one in found) == "a" * 500

    asyncio.run(run())


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("turns", range(-3, 4))
def test_a_client_that_leaves_cancels_what_is_done_for_it_and_nothing_later(
    turns: int, fails: bool
) -> None:
    """It leaves so many turns of the loop after the work could end."""

    async def main() -> str:
        gone, done = asyncio.Event(), asyncio.Event()

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def work() -> str:
            await done.wait()
            if fails:
                raise ValueError
            return "all of it"

        async def end() -> None:
            order = [done, gone] if turns >= 0 else [gone, done]
            order[0].set()
            for _ in range(abs(turns)):
                await asyncio.sleep(0)
            order[1].set()

        ending = asyncio.ensure_future(end())
        try:
            found = await until_gone(Request({"type": "http"}, receive), work())
        except (ClientGone, ValueError) as error:
            found = type(error).__name__
        await ending
        for _ in range(5):  # raises where something comes late
            await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        return found

    found = asyncio.run(main())
    whole = "ValueError" if fails else "all of it"
    assert found in ("ClientGone", whole)
    if abs(turns) == 3:
        assert found == (whole if turns > 0 else "ClientGone")


def test_whoever_cancels_the_work_is_not_taken_for_the_client() -> None:
    async def main() -> None:
        async def receive() -> Any:
            await asyncio.Event().wait()

        work = until_gone(Request({"type": "http"}, receive), asyncio.Event().wait())
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
