"""`lmprog chat`: a conversation in the terminal, with a model started here, a runtime, or a server
given by its URL.

Ctrl-C stops the answer and keeps the part that was generated; Ctrl-D quits. Knows terminals; a
`ChatSession` makes the requests.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import sys
from collections.abc import Iterator
from typing import Any, Protocol

from lmprog import wire
from lmprog.backends import Backend
from lmprog.backends.connecting.embedded import Runtime, connect
from lmprog.cli.http_endpoint import Endpoint, is_url
from lmprog.errors import InvalidParameter, LmprogError

HELP = """/reset         forget the conversation
/system TEXT   forget it, and begin with this system prompt
/help          this
/quit          end (Ctrl-D too; Ctrl-C stops an answer)"""


class ChatSession(Protocol):
    """A conversation: its history, and how to continue it."""

    name: str

    def say(self, text: str) -> Iterator[str]:
        """Adds the user's turn and streams the answer. Closing the iterator early keeps what was
        streamed.
        """
        ...

    def reset(self, system: str | None) -> None:
        """Clears the conversation; begins with `system` if given."""
        ...


def run(given: argparse.Namespace) -> int:
    sampling = {
        "temperature": given.temperature,
        "max_tokens": given.max_tokens,
        "seed": given.seed,
    }
    with _conversation(
        given, {name: value for name, value in sampling.items() if value is not None}
    ) as talk:
        talk.reset(given.system)
        _loop(talk, given.system)
    return 0


@contextlib.contextmanager
def _conversation(given: argparse.Namespace, sampling: dict[str, Any]) -> Iterator[ChatSession]:
    if is_url(given.where):
        with Endpoint(given.where, given.api_key) as endpoint:
            yield OverHttp(endpoint, sampling, given.model)
        return
    if given.model is not None:
        says = f"--model chooses one of a server's models; {given.where!r} is no server's URL"
        raise InvalidParameter(says, name="model", value=given.model)
    is_address = given.where.startswith(("tcp://", "ipc://"))
    with connect(given.where) if is_address else Runtime(given.where) as backend:
        yield OnBranch(backend, sampling)


def _loop(talk: ChatSession, system: str | None) -> None:
    """Reads lines until end of input."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (edits lines and remembers them, by being there)
        print(f"{talk.name}: say something, or /help")
    while True:
        try:
            line = input("> " if is_terminal else "").strip()
        except EOFError:
            if is_terminal:
                print()
            return
        except KeyboardInterrupt:
            print()
            continue
        command, _, rest = line.partition(" ")
        match command:
            case "":
                continue
            case "/quit" | "/exit":
                return
            case "/help":
                print(HELP)
            case "/reset":
                talk.reset(system)
                print("forgotten")
            case "/system":
                system = rest.strip() or None
                talk.reset(system)
                print("forgotten; the system prompt is " + (repr(system) if system else "none"))
            case _ if command.startswith("/"):
                print(f"there is no {command}; there is:\n{HELP}")
            case _:
                _answer(talk, line)


def _answer(talk: ChatSession, line: str) -> None:
    """Prints an answer as it is streamed; Ctrl-C stops it."""
    pieces = talk.say(line)
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
        print()
    except KeyboardInterrupt:
        print(" (stopped)")
    except LmprogError as error:
        print(f"\nlmprog: {error}", file=sys.stderr)
    finally:
        pieces.close()  # type: ignore[attr-defined]


class OverHttp:
    """By `/v1/chat/completions`: the whole conversation is sent each time."""

    def __init__(
        self, endpoint: Endpoint, sampling: dict[str, Any], model: str | None = None
    ) -> None:
        """With the server's first model where none is named."""
        self._endpoint = endpoint
        self._sampling = sampling
        self._messages: list[dict[str, str]] = []
        self.name = endpoint.model_named(model)

    def reset(self, system: str | None) -> None:
        self._messages = [{"role": "system", "content": system}] if system else []

    def say(self, text: str) -> Iterator[str]:
        asked = [*self._messages, {"role": "user", "content": text}]
        body = {"model": self.name, "messages": asked, "stream": True, **self._sampling}
        said: list[str] = []
        try:
            for event in self._endpoint.events("/v1/chat/completions", body):
                for choice in event["choices"]:
                    piece = choice["delta"].get("content")
                    if piece:
                        said.append(piece)
                        yield piece
        finally:
            if said:
                self._messages = [*asked, {"role": "assistant", "content": "".join(said)}]


class OnBranch:
    """On one branch of a runtime: only new text is sent. An answer is generated on a fork, which
    becomes the conversation when it is complete; of a stopped answer, the generated part is
    appended as text.
    """

    def __init__(self, backend: Backend, sampling: dict[str, Any]) -> None:
        self._client = backend.client
        self.name = self._client.welcome.model
        self._sampling = wire.SamplingParams(**{"max_tokens": None, **sampling})
        self._branch: int | None = None

    def reset(self, system: str | None) -> None:
        if self._branch is not None:
            self._client.post(wire.Close(self._branch))
        self._branch = self._client.number()
        self._client.post(wire.Open(self._branch))
        if system:
            self._client.post(wire.Append(self._branch, _turn("system", system)))
        self._client.flush()

    def say(self, text: str) -> Iterator[str]:
        assert self._branch is not None
        client, before = self._client, self._branch
        answer = client.number()
        came: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        client.post(
            wire.Fork(before, (answer,)),
            wire.Append(answer, (*_turn("user", text), wire.RoleBegin("assistant"))),
        )
        call = client.call(
            wire.Generate(answer, client.number(), self._sampling, stream=True),
            lambda delta: came.put(delta.text),
        )
        call.when_done(lambda: came.put(None))
        said: list[str] = []
        try:
            while (piece := came.get()) is not None:
                said.append(piece)
                yield piece
            outcome = call.wait()
            if isinstance(outcome, LmprogError):
                raise outcome
            client.post(wire.Append(answer, (wire.RoleEnd("assistant"),)), wire.Close(before))
            self._branch = answer
        finally:
            if self._branch == before:
                client.post(wire.Close(answer))
                if said:
                    turns = (*_turn("user", text), *_turn("assistant", "".join(said)))
                    client.post(wire.Append(before, turns))
            client.flush()


def _turn(role: str, text: str) -> tuple[wire.Piece, ...]:
    return (wire.RoleBegin(role), wire.TextPiece(text), wire.RoleEnd(role))
