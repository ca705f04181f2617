"""What one request may make the gateway hold: log-probabilities, bodies, deltas that nobody reads.

Counted in entries and bytes; nothing here looks at a clock.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx2
import msgspec
import pytest

from lmprog import wire
from lmprog.errors import Cancelled
from lmprog.launch import greet
from lmprog.server.app import build_app
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http import large_answers
from lmprog.server.http.large_answers import IN_LOOP, ROWS, cut_to_entries, in_pieces
from lmprog.server.http.limits import LIMITS
from lmprog.server.link import exchange as exchanges
from lmprog.server.link.runtime_link import RuntimeLink
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.sglang.generate import GenerateStream
from lmprog.transport import ClientId, Gone, LocalRuntimeChannel
from tests.server.fake_runtime import Asgi

Json = dict[str, Any]
CONTEXT = 131_072
MOST = int(LIMITS["entries"].maximum)
CHAT: Json = {"messages": [{"role": "user", "content": "x"}]}


class Scoring:
    """A runtime whose tokens are words, and whose calls have as many log-probabilities as
    `rows` says.
    """

    def __init__(self) -> None:
        self.channel = LocalRuntimeChannel()
        self.rows: tuple[wire.TokenLogprob, ...] = ()
        self.generated = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="scoring")
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while not self._ended.is_set():
                for client, message in self.channel.receive(0.02):
                    self._hear(client, message)
        finally:
            self.channel.close()

    def _hear(self, client: ClientId, message: wire.Op | Gone) -> None:
        reply: wire.Reply
        match message:
            case wire.Hello():
                reply = wire.Welcome(wire.PROTOCOL_VERSION, "m", CONTEXT, 256, 4, 64, 0)
            case wire.Generate(call=call, sampling=sampling):
                self.generated += 1
                asked = sampling.prompt_logprobs is not None
                output = wire.Output("a text", (1,), "stop", logprobs=() if asked else self.rows)
                scored = self.rows if asked else ()
                reply = wire.CallDone(call, (output,), wire.Usage(prompt=1), scored)
            case wire.Read(call=call):
                reply = wire.TextIs(call, "x", 10, tokens=tuple(range(10)))
            case wire.Encode(call=call):
                reply = wire.TokensAre(call, tuple(range(10)))
            case wire.Decode(call=call):
                reply = wire.TextIs(call, "x", 1)
            case _:
                return
        self.channel.send([(client, reply)])


@pytest.fixture
def scoring() -> Iterator[Scoring]:
    runtime = Scoring()
    try:
        yield runtime
    finally:
        runtime.end()


def asking(
    runtime: Scoring, do: Callable[[httpx2.AsyncClient, Gateway], Awaitable[Any]], **settings: Any
) -> Any:
    async def run() -> Any:
        gateway = Gateway(ServerSettings(**settings), RuntimeLink())
        gateway.link.replace(greet(runtime.channel.connect(), client="test"))
        transport = httpx2.ASGITransport(app=build_app(gateway), raise_app_exceptions=False)
        try:
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:
                return await do(client, gateway)
        finally:
            gateway.link.close()

    return asyncio.run(run())


def post(runtime: Scoring, path: str, body: Json, **settings: Any) -> httpx2.Response:
    async def do(client: httpx2.AsyncClient, _: Gateway) -> httpx2.Response:
        return await client.post(path, json=body)

    answer: httpx2.Response = asking(runtime, do, **settings)
    return answer


def rows(count: int, likely: int = 20) -> tuple[wire.TokenLogprob, ...]:
    top = tuple((at, f" w{at}", -0.125 * at) for at in range(likely))
    return tuple(wire.TokenLogprob(at % 250, f" x{at}", -0.5 - at, top) for at in range(count))


# --- refused at the door --------------------------------------------------------------------------

IDS = [7] * 3900
OPEN: Json = {"op": "open", "branch": "b"}
APPEND: Json = {"op": "append", "branch": "b", "pieces": [{"tokens": IDS}]}
GEN: Json = {"op": "gen", "branch": "b", "max_tokens": 1, "prompt_logprobs": 20}
TOO_MANY: dict[str, tuple[str, Json, int]] = {
    "prompt_logprobs": (
        "/v1/completions",
        {"prompt": [IDS] * 20, "prompt_logprobs": 20, "max_tokens": 1},
        20 * 3900 * 21,
    ),
    "prompt_logprobs of each result": (
        "/v1/completions",
        {"prompt": IDS, "prompt_logprobs": 1, "n": 64, "max_tokens": 1},
        64 * 3900 * 2,
    ),
    "echo": (
        "/v1/completions",
        {"prompt": [IDS] * 20, "echo": True, "logprobs": 5, "max_tokens": 1},
        20 * 3901 * 6,
    ),
    "echoed ids": (
        "/v1/completions",
        {"prompt": [IDS] * 10, "return_token_ids": True, "n": 128, "max_tokens": 1},
        10 * (10 * 128 // 8),  # this runtime says that every prompt has ten tokens
    ),
    "logprobs": (
        "/v1/completions",
        {"prompt": "x", "logprobs": 20, "n": 16, "max_tokens": 1000},
        16 * 1000 * 21,
    ),
    "a chat's top_logprobs": (
        "/v1/chat/completions",
        {**CHAT, "logprobs": True, "top_logprobs": 20, "n": 4, "max_tokens": 3000},
        4 * 3000 * 21,
    ),
    "a stream's": (
        "/v1/chat/completions",
        {
            **CHAT,
            "logprobs": True,
            "top_logprobs": 20,
            "n": 4,
            "max_tokens": 3000,
            "stream": True,
        },
        4 * 3000 * 21,
    ),
    "no max_tokens, and short texts": (
        "/v1/chat/completions",
        {**CHAT, "logprobs": True, "top_logprobs": 20, "n": 8},
        8 * CONTEXT * 21,
    ),
    "a response's": (
        "/v1/responses",
        {"input": "x", "top_logprobs": 20, "max_output_tokens": 12_000},
        12_000 * 21,
    ),
    "generate's": (
        "/generate",
        {
            "input_ids": [IDS] * 20,
            "return_logprob": True,
            "top_logprobs_num": 20,
            "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 1},
        },
        20 * 3901 * 21,
    ),
    "generate's stream": (
        "/generate",
        {
            "text": "x",
            "return_logprob": True,
            "top_logprobs_num": 20,
            "stream": True,
            "sampling_params": {"max_new_tokens": 15_000},
        },
        15_000 * 21,
    ),
    "a program's": (
        "/v1/programs",
        {"ops": [OPEN, APPEND, *({**GEN, "call": f"c{at}"} for at in range(20))]},
        sum((3900 + at) * 21 for at in range(20)),
    ),
    "a program's reads": (
        "/v1/programs",
        {
            "ops": [
                OPEN,
                APPEND,
                *({"op": "read", "branch": "b", "call": f"c{at}"} for at in range(1000)),
            ]
        },
        1000 * (3900 // 8),
    ),
    "a program's selections": (
        "/v1/programs",
        {
            "ops": [
                OPEN,
                *(
                    {"op": "select", "branch": "b", "call": f"c{at}", "choices": ["x" * 1000] * 9}
                    for at in range(30)
                ),
            ]
        },
        30 * 9000,
    ),
}


@pytest.mark.parametrize("name", [name for name in TOO_MANY if name != "echoed ids"])
def test_more_log_probabilities_than_an_answer_may_have_are_refused_at_the_door(
    scoring: Scoring, name: str
) -> None:
    path, body, count = TOO_MANY[name]
    assert count > MOST
    answer = post(scoring, path, body)
    assert answer.status_code == 400, answer.text[:300]
    error = answer.json()["error"]
    assert error["code"] == "too_many_logprobs"
    assert f"{count:,}" in error["message"]
    assert f"{MOST:,}" in error["message"]
    assert scoring.generated == 0


def test_ids_that_are_repeated_with_every_result_count(scoring: Scoring) -> None:
    path, body, count = TOO_MANY["echoed ids"]
    assert count <= MOST
    assert post(scoring, path, body, max_waiting=10_000).status_code == 200
    wide = {**body, "prompt": [IDS] * 20}
    assert post(scoring, path, wide, max_waiting=10_000).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_texts_are_counted_as_tokens_where_their_bytes_would_be_too_many(
    scoring: Scoring, path: str
) -> None:
    text = "word " * 10_000
    body: Json = {"prompt": text, "prompt_logprobs": 20, "max_tokens": 1}
    if path == "/v1/chat/completions":
        body = {"messages": [{"role": "user", "content": text}], "prompt_logprobs": 20}
    elif path == "/generate":
        body = {"text": text, "return_logprob": True, "top_logprobs_num": 20}
        body |= {"logprob_start_len": 0}
    assert len(text) * 21 > MOST
    assert post(scoring, path, body).status_code == 200
    assert scoring.generated == 1


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (
            {"prompt": [[7] * 2048] * 32, "echo": True, "logprobs": 1, "max_tokens": 1},
            "completions",
        ),
        ({**CHAT, "logprobs": True, "top_logprobs": 20}, "chat/completions"),
        ({**CHAT, "max_tokens": 100_000, "n": 128}, "chat/completions"),
        ({"prompt": [[7] * 100] * 1000, "max_tokens": 100_000}, "completions"),
    ],
    ids=["an evaluation's batch", "a long chat", "many texts", "many prompts"],
)
def test_what_is_usual_is_let_in(scoring: Scoring, body: Json, path: str) -> None:
    assert post(scoring, f"/v1/{path}", body).status_code == 200


def test_a_text_without_max_tokens_ends_where_its_answer_may_have_no_more() -> None:
    asked = wire.SamplingParams(max_tokens=None, logprobs=20)
    assert cut_to_entries(asked, CONTEXT).max_tokens == MOST // 21
    assert cut_to_entries(asked, 4096) == asked
    plain = wire.SamplingParams(max_tokens=None)
    assert cut_to_entries(plain, CONTEXT) == plain


# --- large answers --------------------------------------------------------------------------------

LARGE: dict[str, tuple[str, Json]] = {
    "completion": ("/v1/completions", {"prompt": IDS, "prompt_logprobs": 20, "max_tokens": 1}),
    "echo": ("/v1/completions", {"prompt": IDS, "logprobs": 20, "echo": True, "max_tokens": 1}),
    "echoed stream": (
        "/v1/completions",
        {"prompt": IDS, "logprobs": 20, "echo": True, "max_tokens": 1, "stream": True},
    ),
    "chat": (
        "/v1/chat/completions",
        {**CHAT, "logprobs": True, "top_logprobs": 20, "max_tokens": 3000},
    ),
    "response": ("/v1/responses", {"input": "x", "top_logprobs": 20, "max_output_tokens": 3000}),
    "response stream": (
        "/v1/responses",
        {"input": "x", "top_logprobs": 20, "max_output_tokens": 3000, "stream": True},
    ),
    "generate": (
        "/generate",
        {"text": "x", "return_logprob": True, "top_logprobs_num": 20},
    ),
    "generate stream": (
        "/generate",
        {"text": "x", "return_logprob": True, "top_logprobs_num": 20, "stream": True},
    ),
    "program": ("/v1/programs", {"ops": [OPEN, APPEND, {**GEN, "call": "c"}]}),
    "program stream": (
        "/v1/programs",
        {"ops": [OPEN, APPEND, {**GEN, "call": "c"}], "stream": True},
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_answer_is_the_same_and_never_encoded_on_the_loop_or_at_once(
    scoring: Scoring, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with the same answer made at once, as small ones are."""
    path, body = LARGE[name]
    scoring.rows = rows(3000)
    seen: list[tuple[str, int]] = []

    def encode(value: Any) -> bytes:
        made = msgspec.json.encode(value)
        seen.append((threading.current_thread().name, len(made)))
        return made

    class Json_:  # what `large_answers` sees of msgspec
        json = type("json", (), {"encode": staticmethod(encode)})
        Struct, UNSET = msgspec.Struct, msgspec.UNSET

    with monkeypatch.context() as patch:
        patch.setattr(large_answers, "msgspec", Json_)
        aside = post(scoring, path, body)
    assert aside.status_code == 200, aside.text[:300]
    assert seen
    assert all(thread.startswith("lmprog-encode") for thread, _ in seen)
    assert max(size for _, size in seen) < 600_000
    assert sum(size for _, size in seen) > 700_000
    monkeypatch.setattr(large_answers, "IN_LOOP", 10**9)
    assert _steady(aside.text) == _steady(post(scoring, path, body).text)


def _steady(text: str) -> list[Any]:
    """An answer or its events without what differs from request to request."""
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("{")]

    def steady(value: Any) -> Any:
        if isinstance(value, dict):
            changing = ("id", "item_id", "created", "created_at", "e2e_latency")
            return {key: steady(one) for key, one in value.items() if key not in changing}
        return [steady(one) for one in value] if isinstance(value, list) else value

    return [steady(one) for one in found]


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"a": [], "b": {}, "c": None, "d": [1, "\u2028é", 0.5, True]},
        list(range(ROWS)),
        list(range(ROWS + 1)),
        {"x": [{"y": tuple(range(3 * ROWS))}, {"y": ()}]},
        [[[[[[[[[list(range(ROWS + 7))]]]]]]]]],
    ],
    ids=str,
)
def test_what_is_encoded_in_pieces_is_the_same_json(value: Any) -> None:
    assert in_pieces(value) == msgspec.json.encode(value)


def test_the_loop_goes_on_while_a_large_answer_is_made(scoring: Scoring) -> None:
    scoring.rows = rows(11_000)
    assert 21 * len(scoring.rows) > 20 * IN_LOOP
    turns = 0

    async def do(client: httpx2.AsyncClient, _: Gateway) -> None:
        nonlocal turns
        body = {"prompt": [7] * 11_000, "prompt_logprobs": 20, "max_tokens": 1}
        asked = asyncio.ensure_future(client.post("/v1/completions", json=body))
        working = large_answers.in_pieces
        is_made = threading.Event()

        def pieces(value: Any) -> bytes:
            try:
                return working(value)
            finally:
                is_made.set()

        large_answers.in_pieces = pieces
        try:
            while not is_made.is_set():
                turns += 1
                await asyncio.sleep(0)
        finally:
            large_answers.in_pieces = working
        assert (await asked).status_code == 200

    asking(scoring, do)
    assert turns > 20


def test_all_results_that_wait_for_their_answers_have_a_limit_together(
    scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    scoring.rows = rows(300)
    body: Json = {"prompt": IDS[:300], "prompt_logprobs": 20, "max_tokens": 1}

    async def do(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        refused = await client.post("/v1/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert "may hold 1,048,576, 786,432 of them" in refused.json()["error"]["message"]
        gateway.memory.most *= 2
        for _ in range(3):
            assert (await client.post("/v1/completions", json=body)).status_code == 200
        assert gateway.memory.held == 0

    asking(scoring, do, memory_mb=1)


# --- streams that nobody reads --------------------------------------------------------------------


def held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_what_waits_for_a_stream_is_bounded_by_its_bytes(scoring: Scoring) -> None:
    async def do(_: httpx2.AsyncClient, gateway: Gateway) -> int:
        with gateway.link.exchange() as exchange:
            call = exchange.call()
            before = most = held()
            taken = 0
            while exchange.open_calls:
                delta = wire.Delta(call, taken % 2, f"word{taken}", 1, _fresh(taken))
                exchange.take(delta)
                taken += 1
                if taken % 500 == 0:
                    most = max(most, held())
            assert taken > 1000
            assert most - before < 1.3 * exchanges.MOST_QUEUED
            assert held() - before < 300_000, "what was queued is gone"
            with pytest.raises(Cancelled, match="reads too slowly"):
                await exchange.next()
        return taken

    tracemalloc.start()
    try:
        asking(scoring, do)
    finally:
        tracemalloc.stop()


def _fresh(seed: int) -> tuple[wire.TokenLogprob, ...]:
    """As it comes from the wire: nothing is shared."""
    made = wire.TokenLogprob(
        seed, f" x{seed}", -0.5 - seed, tuple((at, f" w{at}.{seed}", -0.1 * at) for at in range(20))
    )
    return (msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=wire.TokenLogprob),)


def test_a_reader_that_keeps_up_is_never_ended_however_much_it_reads(scoring: Scoring) -> None:
    async def do(_: httpx2.AsyncClient, gateway: Gateway) -> None:
        with gateway.link.exchange() as exchange:
            call = exchange.call()
            one = rows(1)
            size = 21 * 160
            for _ in range(3 * exchanges.MOST_QUEUED // size):
                exchange.take(wire.Delta(call, 0, "a", 1, one))
                exchange.take(wire.Delta(call, 1, "b", 1, one))
                exchange.take(wire.Delta(call, 1, "c", 1))
                assert await exchange.next() == wire.Delta(call, 0, "a", 1, one)
                assert await exchange.next() == wire.Delta(call, 1, "bc", 2, one)
            assert exchange.open_calls

    asking(scoring, do)


def test_a_streams_chunks_have_few_log_probabilities_together() -> None:
    """Each has all so far: without a rule they would have half of the square."""
    stream, told = GenerateStream(), 0
    (row,) = rows(1)
    for _ in range(5000):
        if stream.take(wire.Delta(1, 0, "a", 1, (row,))):
            told += stream.entries
    assert stream.entries == 5000 * 21
    assert told < 12 * stream.entries
    plain = GenerateStream()
    assert all(plain.take(wire.Delta(1, 0, "a", 1)) for _ in range(5000))


# --- bodies under way -----------------------------------------------------------------------------


def test_the_bodies_of_all_requests_under_way_have_a_limit_together(scoring: Scoring) -> None:
    large: Json = {"prompt": "x" * 300_000, "max_tokens": 1}

    async def do(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        room = gateway.memory
        app = build_app(gateway)
        waiting = [Half(app, 300_000) for _ in range(2)]
        while room.held < 600_000:
            await asyncio.sleep(0)
        refused = await client.post("/v1/completions", json=large)
        assert refused.status_code == 429
        assert refused.headers["retry-after"]
        assert "786,432 of them for one client" in refused.json()["error"]["message"]
        small = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
        assert small.status_code == 200
        await waiting.pop().leave()
        assert (await client.post("/v1/completions", json=large)).status_code == 200
        await waiting.pop().leave()
        assert room.held == 0

    asking(scoring, do, memory_mb=1)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/generate", "/tokenize"])
def test_a_body_is_counted_until_its_request_ends_however_it_ends(
    scoring: Scoring, path: str
) -> None:
    bodies: list[Json] = [
        {"prompt": "x", "text": "x", "input": "x"},
        {"nonsense": True},
        {"prompt": "x", "text": "x", "input": "x", "stream": True},
        {"input": "x", "background": True},
    ]

    async def do(client: httpx2.AsyncClient, gateway: Gateway) -> None:
        for body in bodies:
            await client.post(path, json=body)
        while len(asyncio.all_tasks()) > 1:  # of those in the background
            await asyncio.sleep(0.01)
        for _ in range(1000):  # what a task held is given back behind its end
            if not gateway.memory.held:
                break
            await asyncio.sleep(0.01)
        assert gateway.memory.held == 0

    asking(scoring, do, max_stored_bytes=1)


class Half(Asgi):
    """A request of which only the first part of the body comes."""

    def __init__(self, app: Any, size: int) -> None:
        super().__init__(app, "POST", "/v1/completions")
        part = {"type": "http.request", "body": b"x" * size, "more_body": True}
        self._messages: list[Any] = [part]
