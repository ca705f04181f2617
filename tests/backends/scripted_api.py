"""An OpenAI-compatible server for tests, on this machine, whose model is a function of the text
before it.

It counts requests and tokens, tells failures that it was given first, and can hold answers back.
The model is asked for all that it would write after a text; the server cuts that at stop strings
and `max_tokens`, as real ones do, token by token. Its tokens are words with the space before them,
line ends, and single other characters.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from lmprog.testing import ServiceDouble
from lmprog.testing import ServiceFailure as Fault
from lmprog.testing.services import ServiceRefusal

__all__ = ["LETTERS", "WORDS", "Fault", "Model", "ScriptedApi", "Written", "document", "until"]

Model = Callable[[str], str]
WORDS = re.compile(r"\n| ?\w+|[\s\S]")
LETTERS = re.compile(r"[\s\S]")


@dataclass(frozen=True)
class Written:
    tokens: list[str]
    finish: str
    num_tokens: int
    """Written in all, with those that a stop string cut off."""

    @property
    def text(self) -> str:
        return "".join(self.tokens)


class ScriptedApi(ServiceDouble):
    """The server; `base_url` is where. A context manager: leaving it stops the server."""

    def __init__(
        self, model: Model, *, tokens: re.Pattern[str] = WORDS, prefills: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.tokens = tokens
        self.prefills = prefills
        self.owner = "scripted"
        self.looks: list[str] = []
        """What was asked for by GET."""
        self.is_deaf = False
        """Every GET fails."""
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

    @property
    def base_url(self) -> str:
        return self.url + "/v1"

    def __exit__(self, *error: Any) -> None:
        self.hold.set()
        super().__exit__(*error)

    # --- what it answers

    def looked_up(self, path: str) -> dict[str, Any]:
        self.looks.append(path)
        if self.is_deaf:
            raise ServiceRefusal("not now", status=503)
        if path == "/v1/models":
            card = {
                "id": "scripted-1",
                "object": "model",
                "owned_by": self.owner,
                "max_model_len": 4096,
            }
            return {"object": "list", "data": [card]}
        if path in self.extra:
            return cast("dict[str, Any]", self.extra[path]({}))
        raise ServiceRefusal(f"no route {path}", status=404)

    def told(self, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> Any:
        if path in self.extra:
            told = self.extra[path](body)
            return iter(told) if isinstance(told, tuple) else told
        if path not in ("/v1/chat/completions", "/v1/completions"):
            raise ServiceRefusal(f"no route {path}", status=404)
        if body.get("echo"):
            return _echo(self, body)
        is_chat = path == "/v1/chat/completions"
        prompt = self.prompt_of(path, body)
        with self.lock:
            self.prompt_tokens += self.count(prompt)
        written = [self.write(prompt, body) for _ in range(body.get("n", 1))]
        generated = sum(one.num_tokens for one in written)
        usage = {"prompt_tokens": self.count(prompt), "completion_tokens": generated}
        if body.get("stream"):
            return _chunks(written, is_chat, usage)
        choices = [_choice(index, one, body, is_chat) for index, one in enumerate(written)]
        return {"id": "x", "choices": choices, "usage": usage}

    class handler(ServiceDouble.handler):
        """Holds answers back."""

        service: ScriptedApi

        def waited(self) -> bool:
            api = self.service
            if api.hold.is_set():
                return True
            with api.lock:
                api.num_held += 1
            self.connection.setblocking(False)
            while not api.hold.wait(0.01):
                try:
                    if self.connection.recv(1) == b"":
                        with api.lock:
                            api.left += 1
                        self.close_connection = True
                        return False
                except BlockingIOError:
                    pass
            self.connection.setblocking(True)
            return True

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
        with self.lock:
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
    with api.lock:
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
