"""Fairness between clients that send: who sends much waits, and nobody else."""

from __future__ import annotations

import pytest

from lmprog import wire
from lmprog.runtime.programs import clients, interpreter
from lmprog.runtime.programs.clients import Inbox
from lmprog.transport import Gone
from tests.runtime.talk import GREEDY, Talk, done, failed, text


def drained(inbox: Inbox, cost: dict[bytes, float]) -> list[tuple[bytes, object]]:
    """Every op in the order of handling; an op of a client takes what `cost` says."""
    order: list[tuple[bytes, object]] = []
    while (waiting := inbox.next()) is not None:
        order.append(waiting)
        inbox.done(waiting[0], cost.get(waiting[0], 0.0))
    return order


def test_ops_of_equal_cost_are_handled_in_the_order_of_arrival() -> None:
    inbox = Inbox()
    messages = [(b"ab"[n % 2 : n % 2 + 1], wire.Open(n)) for n in range(10)]
    inbox.add(messages)
    assert drained(inbox, {}) == messages
    assert inbox.num_ops == 0


def test_a_client_whose_ops_are_cheap_is_not_behind_fifty_whose_ops_are_costly() -> None:
    inbox = Inbox()
    floods = [b"flood %d" % n for n in range(50)]
    inbox.add([(flood, wire.Open(n)) for n in range(20) for flood in floods])
    cost = dict.fromkeys(floods, 0.05)
    for _ in range(500):
        waiting = inbox.next()
        assert waiting is not None
        inbox.done(waiting[0], cost[waiting[0]])
    inbox.add([(b"small", wire.Open(n)) for n in range(5)])
    order = [client for client, _ in drained(inbox, {**cost, b"small": 0.0001})]
    last = max(place for place, client in enumerate(order) if client == b"small")
    assert last < 60, "within one round of the others"


def test_a_client_that_was_silent_has_no_credit() -> None:
    inbox = Inbox()
    inbox.add([(b"a", wire.Open(0))])
    drained(inbox, {b"a": 0.1})
    inbox.add([(b"b", wire.Open(n)) for n in range(100)])
    for _ in range(50):
        waiting = inbox.next()
        assert waiting is not None
        inbox.done(b"b", 0.1)
    inbox.add([(b"a", wire.Open(n)) for n in range(50)])
    order = [client for client, _ in drained(inbox, {b"a": 0.1, b"b": 0.1})]
    assert order[:20].count(b"b") >= 9, "they take turns from now on"


def test_of_a_client_that_is_gone_nothing_but_that_is_handled_and_it_is_forgotten() -> None:
    inbox = Inbox()
    inbox.add([*((b"a", wire.Open(n)) for n in range(9)), (b"a", Gone()), (b"b", wire.Open(1))])
    assert inbox.num_ops == 2
    assert drained(inbox, {}) == [(b"a", Gone()), (b"b", wire.Open(1))]
    inbox.add([(b"b", Gone())])
    assert drained(inbox, {}) == [(b"b", Gone())]
    assert not inbox._clients


def test_a_step_handles_messages_for_a_bounded_time_and_the_rest_waits() -> None:
    talk = Talk()
    handle = talk.interpreter.handle
    handled: list[bytes] = []

    def slowly(client: bytes, op: object) -> None:
        talk.now += 0.002
        handled.append(client)
        handle(client, op)  # type: ignore[arg-type]

    talk.interpreter.handle = slowly  # type: ignore[method-assign,assignment]
    talk.say(*(wire.Open(number) for number in range(1000)), client=b"flood")
    talk.say(wire.Open(1), text(1, "ab"), wire.Generate(1, 1, GREEDY))
    replies: list[wire.Reply] = []
    num_steps = 0
    while not done(replies):
        replies += talk.step()
        num_steps += 1
    assert num_steps < 15, "the small client does not wait for a thousand ops"
    assert len(handled) <= 3 * num_steps


def test_a_client_with_too_many_branches_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_BRANCHES", 3)
    monkeypatch.setattr(interpreter, "MAX_BRANCHES", 3)
    talk = Talk()
    talk.ask(*(wire.Open(number) for number in range(1, 5)))
    replies = talk.ask(text(4, "ab"), wire.Generate(4, 1, GREEDY))
    assert failed(replies)[1].code == "overloaded"
    replies = talk.ask(wire.Close(1), wire.Open(5), text(5, "ab"), wire.Generate(5, 2, GREEDY))
    assert 2 in done(replies)


def test_a_client_with_too_many_calls_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "MAX_CALLS", 2)
    talk = Talk()
    reads = [wire.Read(1, number) for number in range(1, 4)]
    replies = talk.ask(wire.Open(1), text(1, "ab"), *reads)
    assert [failed(replies)[3].code, len(replies)] == ["overloaded", 3]
    talk.ask(wire.Close(1))
    assert not failed(talk.ask(wire.Open(2), text(2, "ab"), wire.Read(2, 4)))
