"""The loop's own rules: it goes on, whatever a step or the books say."""

from __future__ import annotations

import logging
import random

import pytest

from lmprog import wire
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.sampling_requests import StepResults
from lmprog.runtime.steps import MAX_FAILED_STEPS, EngineLost
from lmprog.simulation.fake_engine import FakeDevice, FakeEngine, Floats
from lmprog.simulation.letters import LetterTokenizer
from lmprog.simulation.plain_sampler import PlainSampler
from tests.runtime.talk import GREEDY, Talk, done, failed, text


def test_the_books_are_looked_at_once_after_work(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk()
    looked: list[int] = []
    monkeypatch.setattr(talk.loop.scheduler, "check", lambda: looked.append(1))
    talk.channel.inbox += [
        (b"me", wire.Open(1)),
        (b"me", text(1, "abc")),
        (b"me", wire.Generate(1, 1, GREEDY)),
    ]
    for _ in range(20):
        talk.loop.step()
    assert looked == [1]


def test_books_that_do_not_balance_are_counted_and_logged_and_the_runtime_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk()
    check = talk.scheduler.check

    def broken() -> None:
        raise AssertionError("a page is in two places")

    monkeypatch.setattr(talk.scheduler, "check", broken)
    talk.channel.inbox += [
        (b"me", wire.Open(1)),
        (b"me", text(1, "abc")),
        (b"me", wire.Generate(1, 1, GREEDY)),
    ]
    with caplog.at_level(logging.ERROR, logger="lmprog"):
        for _ in range(20):
            talk.loop.step()
    monkeypatch.setattr(talk.scheduler, "check", check)
    assert talk.scheduler.stats.invariant_failures == 1
    assert "a page is in two places" in caplog.text
    assert done(talk.ask(wire.Open(2), text(2, "abc"), wire.Generate(2, 2, GREEDY)))


class Unwell(FakeEngine):
    """Fails while `is_unwell`, and says then whether it is lost."""

    def __init__(self, is_lost: bool = False) -> None:
        super().__init__(64, 4, LetterTokenizer().vocab_size)
        self.is_unwell, self._is_lost = True, is_lost
        self.vocab_size = LetterTokenizer().vocab_size

    def forward(self, batch: Batch) -> Floats:
        if self.is_unwell:
            raise RuntimeError("told to fail")
        return super().forward(batch)

    def is_lost(self, error: Exception) -> bool:
        assert str(error) == "told to fail"
        return self._is_lost


def ask_once(talk: Talk, number: int) -> list[wire.Reply]:
    return talk.ask(wire.Open(number), text(number, "abc"), wire.Generate(number, number, GREEDY))


def test_several_failed_steps_without_a_good_one_end_the_runtime() -> None:
    talk = Talk(engine=Unwell())
    for number in range(1, MAX_FAILED_STEPS):
        assert failed(ask_once(talk, number))
    with pytest.raises(EngineLost, match=f"{MAX_FAILED_STEPS} steps .* RuntimeError: told to fail"):
        ask_once(talk, MAX_FAILED_STEPS)
    assert talk.scheduler.stats.failed_steps == MAX_FAILED_STEPS


def test_failed_steps_with_good_ones_between_them_end_their_calls_only() -> None:
    engine = Unwell()
    talk = Talk(engine=engine)
    for number in range(1, 5 * MAX_FAILED_STEPS):
        engine.is_unwell = number % MAX_FAILED_STEPS > 0
        replies = ask_once(talk, number)
        assert failed(replies) if engine.is_unwell else done(replies)


class Unable(FakeEngine):
    """Computes everything but batches with one token."""

    def __init__(self, token: int) -> None:
        super().__init__(64, 4, LetterTokenizer().vocab_size)
        self.vocab_size = LetterTokenizer().vocab_size
        self._token = token

    def forward(self, batch: Batch) -> Floats:
        if self._token in batch.tokens.tolist():
            raise MemoryError("told to fail")
        return super().forward(batch)


class AheadOf(FakeDevice):
    """An engine whose steps are begun ahead."""

    def __init__(self, engine: FakeEngine) -> None:
        super().__init__(engine.forward, PlainSampler(), random.Random(1))
        self.vocab_size = LetterTokenizer().vocab_size


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("prompt", ["z", "abcz", "abcdabcdabcdz"])
def test_a_request_that_fails_its_step_does_not_end_the_runtime_however_often_it_comes(
    prompt: str, is_ahead: bool, caplog: pytest.LogCaptureFixture
) -> None:
    [token] = LetterTokenizer().encode("z")
    engine = Unable(token)
    device = AheadOf(engine) if is_ahead else None
    talk, plain = Talk(engine=device or engine, sampler=device), Talk()
    for number in range(1, 4 * MAX_FAILED_STEPS):
        replies = talk.ask(
            wire.Open(number), text(number, prompt), wire.Generate(number, number, GREEDY)
        )
        assert failed(replies)
    assert "one without any request succeeds" in caplog.text
    for number in range(100, 104):  # what was tried has left nothing behind
        one = (wire.Open(number), text(number, prompt[:-1] + "ab"))
        ask = (*one, wire.Generate(number, number, GREEDY))
        assert done(talk.ask(*ask)) == done(plain.ask(*ask))


def test_a_sampler_that_always_fails_ends_the_runtime() -> None:
    class Failing(PlainSampler):
        def sample(self, *given: object) -> StepResults:
            raise RuntimeError("told to fail")

    talk = Talk(sampler=Failing())
    for number in range(1, MAX_FAILED_STEPS):
        assert failed(ask_once(talk, number))
    with pytest.raises(EngineLost, match="RuntimeError: told to fail"):
        ask_once(talk, MAX_FAILED_STEPS)
    assert talk.scheduler.stats.failed_steps == MAX_FAILED_STEPS


def test_an_engine_that_is_lost_ends_the_runtime_at_once_and_no_call_is_answered() -> None:
    talk = Talk(engine=Unwell(is_lost=True))
    with pytest.raises(EngineLost, match="the device has failed"):
        ask_once(talk, 1)
    assert not talk.channel.sent
