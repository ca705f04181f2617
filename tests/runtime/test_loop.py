"""The loop's own rules: it goes on, whatever a step or the books say."""

from __future__ import annotations

import logging

import pytest

from lmprog import wire
from tests.runtime.talk import GREEDY, Talk, done, text


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
