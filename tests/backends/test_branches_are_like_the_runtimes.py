"""Ops drawn at random, many of them mistakes, end in the same texts and the same errors on the real
interpreter and on every backend that keeps branches in the client's process: the double, a service,
and both behind a cache.

Each generation is confined to one text, so that all say the same. Ops of a frame arrive while the
calls before them in it are under way; between frames, everything ends.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest

from lmprog import wire
from lmprog.backends.blackbox.api import ApiAnswer, ApiRequest, JsonBody, TextListener
from lmprog.backends.blackbox.api_backend import ApiBackend, BlackBox
from lmprog.backends.blackbox.call_answers import CallAnswers
from lmprog.backends.blackbox.programs_api import ProgramsApi
from lmprog.backends.blackbox.retry_policy import RetryPolicy
from lmprog.backends.blackbox.transcript import Prompt
from lmprog.backends.caching import CachingBackend
from lmprog.backends.client import Client, ClientCall
from lmprog.backends.textual import TextAnswer, TextRuntime
from lmprog.errors import InvalidParameter, LmprogError
from lmprog.runtime.programs.clients import TURN_SECONDS
from lmprog.testing import Hold, Scripted
from tests.backends.test_speculation_is_exact import LetterModel
from tests.runtime.talk import Talk

Outcomes = dict[int, object]
WRONG = wire.SamplingParams(max_tokens=10**6)
"""More than anybody has room for."""


def said_by(call: int) -> str:
    """The only text that the generation of that number may be."""
    return " " + "".join(chr(ord("a") + int(digit)) for digit in str(call))


def of(reply: object) -> object:
    """What is compared: the text of a result, or the error. Why a call was refused, each says in
    its own words.
    """
    if isinstance(reply, wire.Failed | LmprogError):
        return "refused" if reply.code in REFUSED else (reply.code, reply.message)
    if isinstance(reply, wire.CallDone):
        return [output.text for output in reply.outputs]
    return reply.text if isinstance(reply, wire.TextIs) else type(reply).__name__


KINDS = ("open", "fork", "append", "append", "gained", "gen", "gen", "read", "cancel", "close")
REFUSED = ("context_overflow", "invalid_parameter")


# --- ops


class Ops:
    """Draws frames. Numbers of branches and calls are used once, but for mistakes."""

    def __init__(self, rng: random.Random, *, refused_at_once: bool) -> None:
        """`refused_at_once`: in the frame itself. A runtime says later what a constraint is worth."""
        self.rng = rng
        self.refused_at_once = refused_at_once
        self.num_branches = 0
        self.num_calls = 100
        self.branches: list[int] = []
        self.calls: list[int] = []

    def opened(self) -> list[wire.Op]:
        """With a text: a runtime goes on from nothing only where the model has a first token."""
        branch = self.new_branch()
        return [wire.Open(branch), wire.Append(branch, (wire.TextPiece("begin"),))]

    def frame(self) -> list[wire.Op]:
        return [op for _ in range(self.rng.randint(1, 8)) for op in self.some()]

    def some(self) -> list[wire.Op]:
        rng, branch = self.rng, self.one_of(self.branches)
        kind = rng.choice(KINDS)
        if kind == "open":
            return self.opened()
        if kind == "fork":
            return [wire.Fork(branch, tuple(self.new_branch() for _ in range(rng.randint(1, 3))))]
        if kind == "append":
            ref = wire.Ref(self.one_of(self.calls), rng.choice([0, 0, 0, 1]))
            return [wire.Append(branch, (wire.TextPiece(" so"), *rng.choice([(), (ref,)])))]
        if kind == "gained":
            return [wire.Append(branch, (wire.Gained(self.one_of(self.branches)),))]
        if kind == "cancel":
            return [wire.Cancel(self.one_of(self.calls))]
        if kind == "close":
            return [wire.Close(branch)]
        return [self.call(branch, is_read=kind == "read")]

    def call(self, branch: int, *, is_read: bool) -> wire.Generate | wire.Read:
        self.num_calls += 1
        call = self.num_calls
        self.calls.append(call)
        if is_read:
            return wire.Read(branch, call)
        if self.rng.random() < 0.1:
            unseen = None if self.refused_at_once else wire.Choices(("x",))
            return wire.Generate(branch, call, WRONG, unseen)
        sampling = wire.SamplingParams(max_tokens=20, temperature=0, n=self.rng.choice([1, 1, 2]))
        return wire.Generate(branch, call, sampling, wire.Choices((said_by(call),)))

    def new_branch(self) -> int:
        self.num_branches += 1
        self.branches.append(self.num_branches)
        return self.num_branches

    def one_of(self, numbers: list[int]) -> int:
        """Of the last ones; now and then one that nobody has."""
        return self.rng.choice([*numbers[-6:], *numbers[-3:], 99])


# --- those who run them


class OnRuntime:
    """The real interpreter, on a fake model."""

    def __init__(self) -> None:
        self._talk = Talk(num_pages=2048, context_len=2000)

    def run(self, frames: Sequence[Sequence[wire.Op]]) -> Outcomes:
        found: Outcomes = {}
        for ops in frames:
            for reply in self._talk.ask(*ops):
                call = getattr(reply, "call", None)
                if call is not None:
                    assert call not in found, "a call has one final reply"
                    found[call] = of(reply)
        return found


class OnSlowRuntime(OnRuntime):
    """One whose turns end after each piece of work of a branch: steps come between."""

    def __init__(self) -> None:
        super().__init__()
        pieces = count()
        ready = self._talk.interpreter._ready
        ready._clock = lambda: 2 * TURN_SECONDS * next(pieces)


class OnBackend:
    """A backend, whose calls wait until `go_on`."""

    def __init__(self, client: Client, go_on: Callable[[bool], None]) -> None:
        self._client = client
        self._go_on = go_on

    def run(self, frames: Sequence[Sequence[wire.Op]]) -> Outcomes:
        calls: list[ClientCall] = []
        for ops in frames:
            self._go_on(False)
            with self._client.together():
                for op in ops:
                    if isinstance(op, wire.Generate | wire.Read):
                        calls.append(self._client.call(op))
                    else:
                        self._client.post(op)
            deadline = time.monotonic() + 30
            while not all(call.done() for call in calls):
                self._go_on(True)
                assert time.monotonic() < deadline, "calls hang"
                time.sleep(0.001)
        return {call.id: of(call.wait(0)) for call in calls}


def answer_of(sampling: wire.SamplingParams, constraint: wire.Constraint | None) -> tuple[str, ...]:
    if sampling == WRONG:
        raise InvalidParameter("too many", name="max_tokens")
    if not isinstance(constraint, wire.Choices):
        return ("x",)
    return (constraint.texts[0],) * sampling.n


class Doubled(Scripted):
    """A double that holds every answer until it is let go on."""

    def __init__(self) -> None:
        super().__init__(lambda _: Hold())

    def answer(self, prompt: str, op: wire.Generate | wire.Select) -> object:
        assert isinstance(op, wire.Generate)
        try:
            answer_of(op.sampling, op.constraint)
        except LmprogError as error:
            return error
        return super().answer(prompt, op)

    def go_on(self, goes: bool) -> None:
        while goes and self.runtime.held():
            call = self.runtime.held()[0]
            asked = next(one.op for one in self.asked if one.op.call == call)
            assert isinstance(asked, wire.Generate)
            self.release(answer_of(asked.sampling, asked.constraint))


class Gated(LetterModel):
    """A service that answers while its gate is open."""

    def __init__(self) -> None:
        super().__init__(0)
        self._gate = threading.Event()

    def go_on(self, goes: bool) -> None:
        if goes:
            self._gate.set()
        else:
            self._gate.clear()

    def enforces(self, constraint: wire.Constraint, prompt: Prompt) -> bool:
        return True

    async def generate(self, request: ApiRequest, on_text: TextListener | None) -> ApiAnswer:
        texts = answer_of(request.sampling, request.constraint)
        while not self._gate.is_set():
            await asyncio.sleep(0.0005)
        return ApiAnswer(tuple(wire.Output(one, (), "stop") for one in texts), wire.Usage())


@contextmanager
def backend(kind: str, folder: Path) -> Iterator[OnBackend]:
    double, service = Doubled(), Gated()
    with double, ApiBackend(service, RetryPolicy(), {}) as api:
        made = double if "double" in kind else api
        go_on = double.go_on if "double" in kind else service.go_on
        if not kind.startswith("cached"):
            yield OnBackend(made.client, go_on)
            return
        cached = CachingBackend(made, folder, seeded=True)
        yield OnBackend(cached.client, go_on)
        cached.close()


@pytest.mark.parametrize("kind", ["double", "service", "cached double", "cached service"])
def test_the_same_texts_and_the_same_errors(kind: str, seed: int, tmp_path: Path) -> None:
    num_failed = 0
    for number in range(seed, seed + 60):
        ops = Ops(random.Random(number), refused_at_once=kind == "double")
        frames = [ops.opened(), *(ops.frame() for _ in range(4))]
        with backend(kind, tmp_path / str(number)) as ours:
            found = ours.run(frames)
        expected = OnRuntime().run(frames)
        assert found == expected, f"seed {number}: {frames}"
        num_failed += sum(isinstance(one, tuple) for one in expected.values())
    assert num_failed > 60


def test_when_turns_end_changes_nothing(seed: int) -> None:
    """What is cancelled or closed ends where it did, with all that followed from what came before."""
    num_failed = 0
    for number in range(seed, seed + 150):
        ops = Ops(random.Random(number), refused_at_once=True)
        frames = [[*ops.opened(), *(op for _ in range(3) for op in ops.frame())] for _ in range(3)]
        expected = OnRuntime().run(frames)
        assert OnSlowRuntime().run(frames) == expected, f"seed {number}"
        num_failed += sum(isinstance(one, tuple) for one in expected.values())
    assert num_failed > 150


def test_numbers_that_are_used_twice() -> None:
    """A client has each once; whoever writes to the wire may err."""
    gen = wire.Generate(1, 2, wire.SamplingParams(max_tokens=3))
    opened: list[wire.Op] = [wire.Open(1), wire.Append(1, (wire.TextPiece("begin"),))]
    gen = wire.Generate(1, 2, wire.SamplingParams(max_tokens=3))
    again: list[wire.Op] = [wire.Read(1, 2), wire.Open(1), wire.Read(1, 3)]
    talk = Talk()
    assert [type(one) for one in talk.ask(*opened, gen)] == [wire.CallDone]
    expected = [of(reply) for reply in talk.ask(*again)]
    assert [str(one).partition(",")[0] for one in expected] == ["('protocol'"] * 2
    service = Gated()
    service.go_on(True)
    box = BlackBox(CallAnswers(service, RetryPolicy().counters))
    for channel in (TextRuntime(Says(" x")), box):
        found: list[wire.Reply] = []
        for ops, num_replies in ([*opened, gen], 1), (again, 3):
            channel.send(ops)
            while len(found) < num_replies:
                found += channel.receive(0.1)
        channel.close()
        assert [of(reply) for reply in found[1:]] == expected


def test_calls_that_a_foreign_result_carried_in_fields() -> None:
    """Where branches are tokens there are no fields, and a text without its calls is another."""
    call = wire.SentCall("add", '{"a": 2}', "x")
    foreign = wire.TextPiece("begin", quoted=True, calls=(call,))
    ops = wire.Open(1), wire.Append(1, (foreign,)), wire.Read(1, 2)
    expected = [of(reply) for reply in Talk().ask(*ops)]
    assert expected == [("not_supported", "a runtime has no fields for calls; append them as text")]
    server = ProgramsApi("m", 2000, NeverAsked(), RetryPolicy())
    box = BlackBox(CallAnswers(server, RetryPolicy().counters))
    box.send(ops)
    assert [of(reply) for reply in box.receive(10)] == expected
    box.close()


class NeverAsked:
    """A transport to a server that gets no request."""

    async def post(self, path: str, body: JsonBody) -> NoReturn:
        raise AssertionError(path)

    open = post

    async def close(self) -> None: ...


class Says:
    def __init__(self, text: str) -> None:
        self._text = text

    def answer(self, prompt: str, op: wire.Generate | wire.Select) -> TextAnswer:
        return TextAnswer((self._text,))
