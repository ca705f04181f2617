"""Honest clients get their part of a busy runtime, whatever another one does to get more.

Four of them always have calls waiting, beside one that lies; in virtual time each has at least nine
tenths of a fifth of all work in any ten seconds. Work is seconds of steps: each row has an equal
part of what a step takes by itself, and pays for its own tokens.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lmprog import wire
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.plan import Plan
from lmprog.simulation.fake_engine import FakeEngine, LetterTokenizer
from tests.runtime.talk import Talk, text

HONEST = [b"one", b"two", b"three", b"four"]
LIAR = b"liar"
SECONDS = 30
WINDOW = 10
MAX_WAITING = 48
STEP, TOKEN = 0.02, 0.0005
"""Seconds of a step and of each token."""


class Asker:
    """Keeps some calls open, each on a branch of its own that is closed at its end."""

    def __init__(self, name: bytes, num_open: int, num_prompt: int, num_tokens: int) -> None:
        self.name = name
        self.num_open, self.num_prompt, self.num_tokens = num_open, num_prompt, num_tokens
        self.close_after = float("inf")
        self.is_salted = self.is_streamed = False
        self.priority = 0
        self.expected: int | None = None
        self.account = ""
        self._dice = random.Random(name)
        self._asked_at: dict[int, float] = {}
        self._number = 0
        self._silent_until = 0.0
        self.num_refused = 0
        self.waits: list[float] = []
        """Seconds until each call that was answered was."""

    def hear(self, reply: wire.Reply, now: float) -> Iterator[wire.Op]:
        if isinstance(reply, wire.CallDone | wire.Failed) and reply.call in self._asked_at:
            if isinstance(reply, wire.Failed):
                assert reply.code == "overloaded"
                self.num_refused += 1
                self._silent_until = now + 1.0
            else:
                self.waits.append(now - self._asked_at[reply.call])
            yield from self._close(reply.call)

    def ask(self, now: float) -> Iterator[wire.Op]:
        if now < self._silent_until:
            return
        for number in [one for one, at in self._asked_at.items() if now - at >= self.close_after]:
            yield from self._close(number)
        while len(self._asked_at) < self.num_open:
            self._number += 1
            number = self._number
            self._asked_at[number] = now
            salt = f"salt {number}" if self.is_salted else ""
            yield wire.Open(number, salt, account=self.account)
            yield text(number, "".join(self._dice.choices("abcdefghij", k=self.num_prompt)))
            sampling = wire.SamplingParams(
                temperature=0.0, max_tokens=self.num_tokens, ignore_eos=True
            )
            yield wire.Generate(
                number,
                number,
                sampling,
                stream=self.is_streamed,
                priority=self.priority,
                expected=self.expected,
            )

    def _close(self, number: int) -> Iterator[wire.Op]:
        del self._asked_at[number]
        yield wire.Close(number)


class BusyRuntime:
    """Clients that ask as soon as they are answered, on a clock: 20 ms a step and 0.5 ms a token."""

    def __init__(self, askers: list[Asker], **changes: Any) -> None:
        self.askers = askers
        self.work: list[tuple[float, bytes, float]] = []
        """When so many seconds were computed, for whom."""
        config = {"page_size": 4, "num_pages": 512, "max_rows": 2, "token_budget": 64, **changes}
        self._engine = FakeEngine(config["num_pages"], 4, LetterTokenizer.vocab_size)
        self.talk = Talk(engine=self, context_len=600, is_timed=True, **config)
        commit = self.talk.scheduler.commit
        self.talk.scheduler.commit = self._counted(commit)  # type: ignore[method-assign]
        for asker in askers:
            self.talk.say(wire.Hello(wire.PROTOCOL_VERSION), client=asker.name)

    vocab_size = LetterTokenizer.vocab_size

    def forward(self, batch: Batch) -> Any:
        self.talk.now += STEP + TOKEN * batch.num_tokens
        return self._engine.forward(batch)

    def _counted(self, commit: Callable[..., Any]) -> Callable[..., Any]:
        def counting(plan: Plan, *given: Any) -> Any:
            for row in plan.rows:
                connection, account = row.sequence.group.client  # type: ignore[misc]
                name = account.encode() or connection
                seconds = STEP / len(plan.rows) + TOKEN * row.num_tokens
                self.work.append((self.talk.now, name, seconds))
            return commit(plan, *given)

        return counting

    def run(self, seconds: float) -> None:
        askers = {asker.name: asker for asker in self.askers}
        while self.talk.now < seconds:
            sent, self.talk.channel.sent = self.talk.channel.sent, []
            for name, reply in sent:
                self.talk.say(*askers[name].hear(reply, self.talk.now), client=name)
            for asker in self.askers:
                self.talk.say(*asker.ask(self.talk.now), client=asker.name)
            before = self.talk.now
            self.talk.loop.step()
            if self.talk.now == before:  # nothing was computed
                self.talk.now += 0.001

    def parts(self, begin: float) -> dict[bytes, float]:
        """Of all work of the window that begins then."""
        counts: Counter[bytes] = Counter()
        for at, name, count in self.work:
            if begin <= at < begin + WINDOW:
                counts[name] += count  # type: ignore[assignment]
        total = sum(counts.values())
        return {name: count / total for name, count in counts.items()}


def one_call_at_a_time() -> list[Asker]:
    return [Asker(LIAR, 1, 8, 100)]


def ask_close_ask() -> list[Asker]:
    liar = Asker(LIAR, 1, 400, 1)
    liar.close_after = 0.15
    return [liar]


def many_salts() -> list[Asker]:
    liar = Asker(LIAR, 8, 8, 16)
    liar.is_salted = True
    return [liar]


def a_full_queue() -> list[Asker]:
    return [Asker(LIAR, 2 * MAX_WAITING, 8, 16)]


def many_connections() -> list[Asker]:
    """Of one key."""
    liars = [Asker(b"liar %d" % number, 1, 8, 16) for number in range(8)]
    for liar in liars:
        liar.account = LIAR.decode()
    return liars


def the_highest_priority() -> list[Asker]:
    liar = Asker(LIAR, 8, 8, 16)
    liar.priority = 100
    return [liar]


def long_answers_in_all_rows() -> list[Asker]:
    return [Asker(LIAR, 4, 8, 500)]


LIES = [
    one_call_at_a_time,
    ask_close_ask,
    many_salts,
    a_full_queue,
    many_connections,
    the_highest_priority,
    long_answers_in_all_rows,
]


@pytest.mark.parametrize(
    ("lie", "num_tokens"),
    [*((lie, 8) for lie in LIES), (a_full_queue, 16), (long_answers_in_all_rows, 16)],
)
def test_a_client_gets_its_part_in_any_ten_seconds_beside_one_that_lies(
    lie: Callable[[], list[Asker]], num_tokens: int
) -> None:
    honest = [Asker(name, 4, 8, num_tokens) for name in HONEST]
    runtime = BusyRuntime([*lie(), *honest], max_waiting=MAX_WAITING)
    runtime.run(SECONDS)
    least = min(
        (runtime.parts(begin)[name], begin, name)
        for begin in range(SECONDS - WINDOW + 1)
        for name in HONEST
    )
    assert least[0] >= 0.9 / 5, least
    assert not any(asker.num_refused for asker in honest)


class Seldom(Asker):
    """One short call at a time, some time after the one before was answered."""

    def __init__(self) -> None:
        super().__init__(b"seldom", 1, 8, 2)
        self.is_streamed = True
        self.begins: dict[int, float] = {}
        """Seconds until the first token of each call."""

    def hear(self, reply: wire.Reply, now: float) -> Iterator[wire.Op]:
        if isinstance(reply, wire.Delta):
            self.begins.setdefault(reply.call, now - self._asked_at[reply.call])
        if isinstance(reply, wire.CallDone):
            self._silent_until = now + self._dice.uniform(0.15, 0.45)
        yield from super().hear(reply, now)


@pytest.mark.parametrize("max_rows", [2, 8])
@pytest.mark.parametrize("lie", [ask_close_ask, long_answers_in_all_rows])
def test_a_client_that_asks_little_begins_as_soon_as_a_step_has_ended(
    lie: Callable[[], list[Asker]], max_rows: int
) -> None:
    seldom, honest = Seldom(), [Asker(name, 4, 8, 8) for name in HONEST]
    runtime = BusyRuntime([*lie(), seldom, *honest], max_rows=max_rows, max_waiting=MAX_WAITING)
    runtime.run(20)
    begins = sorted([*seldom.begins.values()][1:])  # a new account has no credit
    assert len(begins) >= 40
    alone = STEP + TOKEN * 8
    assert begins[-2] <= 3 * alone, begins[-5:]
