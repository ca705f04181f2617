"""Every failure through every dialect: the vendor's own client raises, whenever it happens.

A server on a socket before a runtime that begins to answer, and fails when the test says so.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import httpx2
import openai
import pytest

from lmprog import errors, wire
from lmprog.launch import greet
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http.http_errors import HttpError, Problem, problem_of
from lmprog.server.http.http_server import HttpServer, bind, url_of
from lmprog.server.link.exchange import Exchange
from lmprog.server.link.runtime_link import RuntimeLink
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.service import serve_gateway
from lmprog.transport import ClientId, Gone, LocalRuntimeChannel
from tests import javascript

anthropic = pytest.importorskip("anthropic")

PATIENCE = 60.0
Json = dict[str, Any]
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
CANCELLED = Problem(410, "The request was cancelled.", code="cancelled", type="request_cancelled")


class Stalling:
    """A runtime whose calls begin with one delta, and then wait for `fail`."""

    def __init__(self) -> None:
        self.channel = LocalRuntimeChannel()
        self._open: dict[int, ClientId] = {}
        self._codes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="stalling")
        self._thread.start()

    def fail(self, code: str) -> None:
        """Every open call fails so."""
        self._codes.put(code)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while not self._ended.is_set():
                for client, message in self.channel.receive(0.02):
                    self._hear(client, message)
                while not self._codes.empty():
                    code = self._codes.get()
                    failed = [
                        (client, wire.Failed(call, code, "it failed so."))
                        for call, client in self._open.items()
                    ]
                    self._open.clear()
                    self.channel.send(failed)
        finally:
            self.channel.close()

    def _hear(self, client: ClientId, message: wire.Op | Gone) -> None:
        match message:
            case wire.Hello():
                welcome = wire.Welcome(wire.PROTOCOL_VERSION, "m", 4096, 256, 4, 64, 0)
                self.channel.send([(client, welcome)])
            case wire.Generate(call=call):
                self._open[call] = client
                self.channel.send([(client, wire.Delta(call, 0, "begun", 1))])


class Serving:
    """A gateway before `runtime` on a socket, in a loop of its own thread."""

    def __init__(self, runtime: Stalling, settings: ServerSettings) -> None:
        self.runtime = runtime
        self._settings = settings
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="serving")
        self._thread.start()
        assert self._is_up.wait(PATIENCE)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.gateway = Gateway(self._settings, RuntimeLink())
        self.gateway.link.replace(greet(self.runtime.channel.connect(), client="test"))
        bound = bind(self._settings)
        self.url = url_of(bound)
        try:
            await serve_gateway(self.gateway, bound, self._ready)
        finally:
            self.gateway.link.close()

    def _ready(self, server: HttpServer) -> None:
        self._server = server
        self._is_up.set()

    def on_loop(self, action: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(action)

    def end(self) -> None:
        self.on_loop(self._server.stop_now)
        self._thread.join()


@contextmanager
def served(**settings: Any) -> Iterator[Serving]:
    runtime = Stalling()
    try:
        server = Serving(runtime, ServerSettings(port=0, **settings))
        try:
            yield server
        finally:
            server.end()
    finally:
        runtime.end()


# --- the clients --------------------------------------------------------------------------------


def openais(url: str, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=PATIENCE)


def anthropics(url: str, key: str = "none") -> Any:
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=PATIENCE)


class PlainError(Exception):
    """Of the dialects without a vendor's client here: what its own reader would raise."""

    def __init__(self, status: int, error: Json) -> None:
        super().__init__(error["message"])
        self.status_code = status
        self.code = error["code"]


def chat(url: str, more: Json, key: str = "none") -> Iterator[Any]:
    with openais(url, key) as client:
        yield from client.chat.completions.create(
            model="m", messages=HELLO, stream=True, extra_body=more
        )


def completion(url: str, more: Json, key: str = "none") -> Iterator[Any]:
    with openais(url, key) as client:
        yield from client.completions.create(model="m", prompt="x", stream=True, extra_body=more)


def response(url: str, more: Json, key: str = "none") -> Iterator[Any]:
    with openais(url, key) as client:
        yield from client.responses.create(model="m", input="x", stream=True, extra_body=more)


def response_helper(url: str, more: Json, key: str = "none") -> Iterator[Any]:
    with (
        openais(url, key) as client,
        client.responses.stream(model="m", input="x", extra_body=more) as stream,
    ):
        yield from stream
        stream.get_final_response()


def message(url: str, more: Json, key: str = "none") -> Iterator[Any]:
    with anthropics(url, key) as client:
        yield from client.messages.create(
            model="m", messages=HELLO, max_tokens=9, stream=True, extra_body=more
        )


def message_helper(url: str, more: Json, key: str = "none") -> Iterator[Any]:
    with (
        anthropics(url, key) as client,
        client.messages.stream(model="m", messages=HELLO, max_tokens=9, extra_body=more) as stream,
    ):
        yield from stream
        stream.get_final_message()


def _plain(url: str, path: str, body: Json, key: str) -> Iterator[Any]:
    headers = {"authorization": f"Bearer {key}"}
    with (
        httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False, headers=headers) as http,
        http.stream("POST", path, json=body) as answer,
    ):
        if answer.status_code != 200:
            raise PlainError(answer.status_code, json.loads(answer.read())["error"])
        name = None
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            if not line.startswith("data: {"):
                continue
            value = json.loads(line.removeprefix("data: "))
            if "error" in value and name != "result":
                assert name == ("error" if path == "/v1/programs" else None)
                raise PlainError(200, value["error"])
            yield value


def generate(url: str, more: Json, key: str = "none") -> Iterator[Any]:
    params = {name: more.pop(name) for name in ("temperature",) if name in more}
    body = {"text": "x", "stream": True, "sampling_params": params, **more}
    yield from _plain(url, "/generate", body, key)


def program(url: str, more: Json, key: str = "none") -> Iterator[Any]:
    params = {name: more.pop(name) for name in ("temperature",) if name in more}
    gen = {"op": "gen", "branch": "b", "call": "c", **params}
    body = {"ops": [{"op": "open", "branch": "b"}, gen], "stream": True, **more}
    yield from _plain(url, "/v1/programs", body, key)


def llama_cpp(url: str, more: Json, key: str = "none") -> Iterator[Any]:
    yield from _plain(url, "/completion", {"prompt": "x", "stream": True, **more}, key)


def ollama(url: str, more: Json, key: str = "none") -> Iterator[Any]:
    headers = {"authorization": f"Bearer {key}"}
    options = {name: more.pop(name) for name in ("temperature",) if name in more}
    body = {"model": "m", "messages": HELLO, "options": options, **more}
    with (
        httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False, headers=headers) as http,
        http.stream("POST", "/api/chat", json=body) as answer,
    ):
        for line in answer.iter_lines():
            value = json.loads(line)
            if "error" in value:
                raise PlainError(answer.status_code, {**value, "message": value["error"]})
            yield value


Ask = Callable[..., Iterator[Any]]


def _javascript(dialect: str, url: str, more: Json, key: str = "none") -> Iterator[Any]:
    yield from javascript.events(dialect, url, more, key)


IN_JAVASCRIPT = {f"{one}, JavaScript": one for one in javascript.DIALECTS}
IN_PYTHON: dict[str, Ask] = {
    "chat": chat,
    "completion": completion,
    "response": response,
    "response helper": response_helper,
    "message": message,
    "message helper": message_helper,
    "generate": generate,
    "llama.cpp": llama_cpp,
    "ollama": ollama,
    "program": program,
}
DIALECTS: dict[str, Ask] = {
    **IN_PYTHON,
    **{name: partial(_javascript, one) for name, one in IN_JAVASCRIPT.items()},
}
_IS_THERE = pytest.mark.skipif(not javascript.IS_THERE, reason="`make test-javascript` has it")
NAMES = [*IN_PYTHON, *(pytest.param(name, marks=_IS_THERE) for name in IN_JAVASCRIPT)]
RAISED = {
    **dict.fromkeys(IN_JAVASCRIPT, javascript.JavaScriptError),
    **dict.fromkeys(("chat", "completion", "response", "response helper"), openai.APIError),
    **dict.fromkeys(("message", "message helper"), anthropic.APIStatusError),
    **dict.fromkeys(("generate", "llama.cpp", "ollama", "program"), PlainError),
}


def first_text(events: Iterator[Any]) -> None:
    """Reads until the runtime's first delta has come."""
    for event in events:
        shown = event if isinstance(event, dict) else event.to_dict()
        if "begun" in json.dumps(shown):
            return
    raise AssertionError("the stream ended without a text")


# --- failures in the middle -----------------------------------------------------------------------


def _cancel_all(server: Serving) -> None:
    for exchange in list(server.gateway.link.open_exchanges()):
        exchange.cancel(HttpError(CANCELLED))


def _drain(server: Serving) -> None:
    """What SIGTERM comes to when the time to drain is over; see `ServerService`."""
    server.gateway.drain()
    server.gateway.link.close()


BREAKS: dict[str, tuple[Callable[[Serving], None], Problem]] = {
    **{
        code: (
            lambda server, code=code: server.runtime.fail(code),
            problem_of(errors.from_wire(code, "it failed so.", {})),
        )
        for code in errors.BY_CODE
    },
    "the runtime dies": (
        lambda server: server.runtime.end(),
        Problem(503, "", code="runtime_gone"),
    ),
    "the runtime is replaced": (
        lambda server: server.on_loop(lambda: server.gateway.link.replace(None)),
        Problem(503, "", code="runtime_restarted"),
    ),
    "cancelled on the page": (
        lambda server: server.on_loop(lambda: _cancel_all(server)),
        CANCELLED,
    ),
    "the server stops": (
        lambda server: server.on_loop(lambda: _drain(server)),
        Problem(503, "", code="runtime_gone"),
    ),
}
ANTHROPICS = {503: "overloaded_error", 500: "api_error", 504: "timeout_error"}
ANTHROPICS |= {429: "rate_limit_error", 400: "invalid_request_error", 410: "invalid_request_error"}


def is_of(raised: Any, problem: Problem, name: str) -> bool:
    """Whether the client's exception says what `problem` says."""
    if name.startswith("message"):
        kind_is_right = raised.type == ANTHROPICS[problem.status]
        return kind_is_right and raised.error_code == problem.error()["code"]
    code: str | None = raised.code
    return code == problem.error()["code"]


def check_break(server: Serving, name: str, failure: str) -> None:
    break_off, problem = BREAKS[failure]
    events = DIALECTS[name](server.url, {})
    first_text(events)
    break_off(server)
    with pytest.raises(RAISED[name]) as raised:
        list(events)
    assert is_of(raised.value, problem, name), (failure, raised.value)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "program"])
def test_a_call_that_fails_in_the_runtime_makes_the_vendors_client_raise(name: str) -> None:
    with served() as server:
        for code in errors.BY_CODE:
            check_break(server, name, code)


@pytest.mark.parametrize("failure", [one for one in BREAKS if one not in errors.BY_CODE])
@pytest.mark.parametrize("name", NAMES)
def test_a_stream_that_is_broken_off_makes_the_vendors_client_raise(
    name: str, failure: str
) -> None:
    with served() as server:
        check_break(server, name, failure)


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_that_the_gateway_cannot_write_makes_the_client_raise(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Exchange.answer
    asked = 0

    async def answer(self: Exchange) -> wire.Reply:
        nonlocal asked
        asked += 1
        if asked == 1:
            return await taken(self)
        raise ValueError("a bug of ours")

    with served() as server:
        monkeypatch.setattr(Exchange, "answer", answer)
        with pytest.raises(RAISED[name], match="its log says more"):
            list(DIALECTS[name](server.url, {}))


def test_a_call_that_fails_is_a_value_of_its_program() -> None:
    with served() as server:
        events = program(server.url, {})
        first_text(events)
        server.runtime.fail("deadline")
        result, done = list(events)
    assert result["error"]["code"] == "deadline"
    assert done["status"] == "failed"


def test_a_response_that_fails_says_so_in_its_last_events_and_when_it_is_asked_for() -> None:
    with served() as server, openais(server.url) as client:
        events = client.responses.create(model="m", input="x", stream=True)
        seen: list[Any] = []

        def read() -> None:
            for event in events:
                seen.append(event)
                if event.type == "response.output_text.delta":
                    server.runtime.fail("model")

        with pytest.raises(openai.APIError):
            read()
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        last = seen[-1]
        assert last.type == "response.failed"
        assert (last.response.status, last.response.error.code) == ("failed", "model")
        assert client.responses.retrieve(last.response.id).error == last.response.error


# --- refusals before a stream ---------------------------------------------------------------------

REFUSALS: dict[str, tuple[int, Json, Json, str]] = {
    "a wrong value": (400, {}, {"temperature": 99}, "right"),
    "no such model": (404, {}, {"model": "other"}, "right"),
    "a wrong key": (401, {}, {}, "wrong"),
    "too large": (413, {"max_body_bytes": 1000}, {"user": "x" * 2000}, "right"),
    "too many": (429, {"max_running": 1, "max_waiting": 1}, {}, "right"),
    "too many requests": (503, {"max_requests": 1}, {}, "right"),
    "stopping": (503, {}, {}, "right"),
    "no runtime": (503, {"start_wait": 0.0}, {}, "right"),
}
"""Status, settings, what is added to the request, key."""
ANTHROPICS_OF_REFUSALS = ANTHROPICS | {404: "not_found_error", 401: "authentication_error"}
ANTHROPICS_OF_REFUSALS |= {413: "request_too_large"}


def _prepare(server: Serving, refusal: str) -> None:
    """Makes the next request fail so."""
    done = threading.Event()

    def prepare() -> None:
        if refusal == "too many":
            server.gateway.open_results = 2
        elif refusal == "too many requests":
            server.gateway.open_requests = 1
        elif refusal == "stopping":
            server.gateway.drain()
        elif refusal == "no runtime":
            server.gateway.link.replace(None)
        done.set()

    server.on_loop(prepare)
    assert done.wait(PATIENCE)


@pytest.fixture(scope="module")
def refusing() -> Iterator[dict[str, Serving]]:
    """A server for each refusal, which serves no request."""
    with ExitStack() as stack:
        yield {
            refusal: stack.enter_context(served(api_keys=("right",), **settings))
            for refusal, (_, settings, _, _) in REFUSALS.items()
        }


@pytest.mark.parametrize("is_streamed", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("name", NAMES)
def test_a_refused_request_makes_the_vendors_client_raise_with_its_status(
    refusing: dict[str, Serving], name: str, is_streamed: bool
) -> None:
    for refusal, (status, _, more, key) in REFUSALS.items():
        more = {**more, **({} if is_streamed else {"stream": False})}
        server = refusing[refusal]
        _prepare(server, refusal)
        with pytest.raises(RAISED[name]) as raised:
            list(DIALECTS[name](server.url, more, key))
        error: Any = raised.value
        assert error.status_code == status, (refusal, error)
        if name.startswith("message"):
            assert error.type == ANTHROPICS_OF_REFUSALS[status], refusal
            assert error.request_id == error.body["request_id"] != ""
        else:
            assert error.code, refusal


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_anthropics_paths_have_anthropics_errors_also_where_no_route_answers(path: str) -> None:
    with served() as server, httpx2.Client(base_url=server.url, trust_env=False) as http:
        for answer in (http.get(path), http.post(f"{path}/no"), http.post(path, content=b"{")):
            said = answer.json()
            assert (said["type"], said["error"]["type"][-6:]) == ("error", "_error")
            assert said["request_id"] == answer.headers["request-id"]
            assert answer.headers["x-request-id"] == said["request_id"]


def test_a_full_server_refuses_messages_in_their_form_also_before_they_are_parsed() -> None:
    with served(max_running=1, max_waiting=1) as server:
        _prepare(server, "too many")
        for _ in range(2):  # the second is refused from its first bytes
            with pytest.raises(anthropic.RateLimitError) as raised:
                list(message(server.url, {}))
            assert raised.value.type == "rate_limit_error"
            assert raised.value.request_id == raised.value.body["request_id"]


def test_a_messages_stream_says_what_failed_in_details() -> None:
    with served() as server, anthropics(server.url) as client:
        events = iter(client.messages.create(model="m", messages=HELLO, max_tokens=9, stream=True))
        first_text(events)
        server.runtime.fail("deadline")
        with pytest.raises(anthropic.APIStatusError) as raised:
            list(events)
        assert raised.value.body["error"]["message"] == "It failed so."
        assert raised.value.error_code == "deadline"
        assert raised.value.request_id


@pytest.mark.parametrize("is_streamed", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("name", NAMES)
def test_a_fault_of_the_gateway_before_the_first_text_is_a_500_in_the_form_of_its_dialect(
    name: str, is_streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(self: Exchange) -> wire.Reply:
        raise ValueError("a bug of ours")

    with served() as server:
        monkeypatch.setattr(Exchange, "answer", answer)
        more = {} if is_streamed else {"stream": False}
        with pytest.raises(RAISED[name], match="its log says more") as raised:
            list(DIALECTS[name](server.url, more))
        error: Any = raised.value
        assert error.status_code == (200 if name == "program" and is_streamed else 500)
        if name.startswith("message"):
            assert error.type == "api_error"
            assert error.request_id == error.body["request_id"]
