"""An OpenAI-compatible server for tests, on this machine, whose model is a function of the text
before it.

It counts requests and tokens, tells failures that it was given first, and can hold answers back.
The model is asked for all that it would write after a text; the server cuts that at stop strings
and `max_tokens`, as real ones do, token by token. Its tokens are words with the space before them,
line ends, and single other characters.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Model = Callable[[str], str]
WORDS = re.compile(r"\n| ?\w+|[\s\S]")
LETTERS = re.compile(r"[\s\S]")


@dataclass(frozen=True)
class Fault:
    """Told instead of an answer."""

    status: int
    message: str = "scripted"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    breaks_after: int | None = None
    """A stream tells so many pieces, and then this error."""


@dataclass(frozen=True)
class Written:
    tokens: list[str]
    finish: str
    num_tokens: int
    """Written in all, with those that a stop string cut off."""

    @property
    def text(self) -> str:
        return "".join(self.tokens)


class ScriptedApi:
    """The server; `base_url` is where. A context manager: leaving it stops the server."""

    def __init__(
        self, model: Model, *, tokens: re.Pattern[str] = WORDS, prefills: bool = False
    ) -> None:
        self.model = model
        self.tokens = tokens
        self.prefills = prefills
        self.owner = "scripted"
        self.faults: list[Fault] = []
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.looks: list[str] = []
        """What was asked for by GET."""
        self.is_deaf = False
        """Every GET fails."""
        self.headers: list[dict[str, str]] = []
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.hold = threading.Event()
        self.hold.set()
        self.num_held = 0
        """Requests whose answers are held back, or were until their client went away."""
        self.left = 0
        """Requests whose client went away while they were held."""
        self.extra: dict[str, Callable[[dict[str, Any]], object]] = {}
        """Further routes. What gives a tuple tells it as a stream."""
        self._lock = threading.Lock()
        owner = self

        class Handler(_Handler):
            api = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def base_url(self) -> str:
        return self.url + "/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # --- what it writes

    def count(self, text: str) -> int:
        return len(self.tokens.findall(text))

    def write(self, prompt: str, body: Mapping[str, Any]) -> Written:
        """The model's text, cut as the request says."""
        limit = body.get(
            "max_completion_tokens", body.get("max_tokens", body.get("max_new_tokens"))
        )
        stops = body.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        written: list[str] = []
        for token in self.tokens.findall(self.model(prompt)):
            if limit is not None and len(written) == limit:
                return self._counted(written, "length")
            written.append(token)
            text = "".join(written)
            ends = [
                (text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text
            ]
            if ends:
                kept = text[: min(ends)[1]]
                return self._counted(self.tokens.findall(kept), "stop", len(written))
        return self._counted(written, "stop")

    def _counted(self, written: list[str], finish: str, num_tokens: int | None = None) -> Written:
        num_tokens = len(written) if num_tokens is None else num_tokens
        with self._lock:
            self.completion_tokens += num_tokens
        return Written(written, finish, num_tokens)

    def prompt_of(self, path: str, body: Mapping[str, Any]) -> str:
        if path != "/v1/chat/completions":
            return str(body.get("prompt", body.get("text")))
        messages = list(body["messages"])
        goes_on = bool(body.get("continue_final_message"))
        assert not goes_on or self.prefills, "this server knows no continue_final_message"
        parts = [f"<{message['role']}>{message['content']}</>" for message in messages]
        if goes_on:
            return "".join(parts).removesuffix("</>")
        return "".join([*parts, "<assistant>"])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ScriptedApi

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.api.looks.append(self.path)
        if self.api.is_deaf:
            self._send(503, {"error": {"message": "not now"}})
        elif self.path == "/v1/models":
            card = {
                "id": "scripted-1",
                "object": "model",
                "owned_by": self.api.owner,
                "max_model_len": 4096,
            }
            self._send(200, {"object": "list", "data": [card]})
        elif self.path in self.api.extra:
            self._send(200, self.api.extra[self.path]({}))
        else:
            self._send(404, {"error": {"message": f"no route {self.path}"}})

    def do_POST(self) -> None:
        api = self.api
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        with api._lock:
            api.requests.append(body)
            api.paths.append(self.path)
            api.headers.append({name.lower(): value for name, value in self.headers.items()})
            fault = api.faults.pop(0) if api.faults else None
        if not self._wait():
            return
        if fault is not None and fault.breaks_after is None:
            self._send(fault.status, _error(fault), fault.headers)
        elif self.path in api.extra:
            told = api.extra[self.path](body)
            if isinstance(told, tuple):
                self._stream(iter(told), fault)
            else:
                self._send(200, told)
        elif self.path not in ("/v1/chat/completions", "/v1/completions"):
            self._send(404, {"error": {"message": f"no route {self.path}"}})
        else:
            self._answer(body, fault)

    def _wait(self) -> bool:
        """Waits while answers are held; False when the client has gone meanwhile."""
        api = self.api
        if api.hold.is_set():
            return True
        with api._lock:
            api.num_held += 1
        self.connection.setblocking(False)
        while not api.hold.wait(0.01):
            try:
                if self.connection.recv(1) == b"":
                    with api._lock:
                        api.left += 1
                    self.close_connection = True
                    return False
            except BlockingIOError:
                pass
        self.connection.setblocking(True)
        return True

    def _answer(self, body: dict[str, Any], fault: Fault | None) -> None:
        api = self.api
        is_chat = self.path == "/v1/chat/completions"
        if body.get("echo"):
            self._send(200, _echo(api, body))
            return
        prompt = api.prompt_of(self.path, body)
        with api._lock:
            api.prompt_tokens += api.count(prompt)
        written = [api.write(prompt, body) for _ in range(body.get("n", 1))]
        generated = sum(one.num_tokens for one in written)
        usage = {"prompt_tokens": api.count(prompt), "completion_tokens": generated}
        if not body.get("stream"):
            choices = [_choice(index, one, body, is_chat) for index, one in enumerate(written)]
            self._send(200, {"id": "x", "choices": choices, "usage": usage})
            return
        self._stream(_chunks(written, is_chat, usage), fault)

    def _stream(self, chunks: Iterator[dict[str, Any]], fault: Fault | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for count, chunk in enumerate(chunks):
            if fault is not None and count == fault.breaks_after:
                self._event(_error(fault))
                break
            self._event(chunk)
        else:
            self.wfile.write(b": a comment\n\ndata: [DONE]\n\n")
        self.close_connection = True

    def _event(self, chunk: object) -> None:
        if isinstance(chunk, dict) and "type" in chunk:
            self.wfile.write(f"event: {chunk['type']}\n".encode())
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()

    def _send(self, status: int, body: object, headers: Mapping[str, str] = {}) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _error(fault: Fault) -> dict[str, Any]:
    return {
        "error": {"message": fault.message, "type": "scripted", "param": None, "code": fault.code}
    }


def _choice(index: int, written: Written, body: Mapping[str, Any], is_chat: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "finish_reason": written.finish}
    if is_chat:
        choice["message"] = {"role": "assistant", "content": written.text}
        if body.get("logprobs"):
            choice["logprobs"] = {
                "content": [{"token": token, "logprob": -0.5} for token in written.tokens]
            }
    else:
        choice["text"] = written.text
        if body.get("logprobs") is not None:
            choice["logprobs"] = {
                "tokens": written.tokens,
                "token_logprobs": [-0.5] * len(written.tokens),
            }
    return choice


def _chunks(
    written: list[Written], is_chat: bool, usage: dict[str, int]
) -> Iterator[dict[str, Any]]:
    for index, one in enumerate(written):
        for token in one.tokens:
            piece = {"delta": {"content": token}} if is_chat else {"text": token}
            yield {"choices": [{"index": index, "finish_reason": None, **piece}]}
        end: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
        yield {"choices": [{"index": index, "finish_reason": one.finish, **end}]}
    yield {"choices": [], "usage": usage}


def _echo(api: ScriptedApi, body: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens that the model would write are likely, all others are not."""
    choices = []
    for index, prompt in enumerate(body["prompt"]):
        tokens = api.tokens.findall(prompt)
        numbers: list[float | None] = []
        for end, token in enumerate(tokens):
            likely = api.model("".join(tokens[:end])).startswith(token)
            numbers.append(None if end == 0 else -0.1 if likely else -4.0)
        choices.append(
            {
                "index": index,
                "text": prompt,
                "logprobs": {"tokens": tokens, "token_logprobs": numbers},
            }
        )
    prompt_tokens = sum(api.count(prompt) for prompt in body["prompt"])
    with api._lock:
        api.prompt_tokens += prompt_tokens
    return {"choices": choices, "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 0}}


def document(*texts: str) -> Model:
    """A model that knows some texts by heart: it goes on with the first that begins as the prompt
    does.
    """

    def model(prompt: str) -> str:
        return next((text[len(prompt) :] for text in texts if text.startswith(prompt)), "")

    return model


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits for something that other threads do."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
