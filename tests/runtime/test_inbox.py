"""Fairness between clients that send: who sends much waits, and nobody else."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from lmprog import wire
from lmprog.runtime.programs import clients, delivery, interpreter
from lmprog.runtime.programs.clients import Inbox
from lmprog.simulation.fake_engine import LetterTokenizer
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
    monkeypatch.setattr(clients, "MAX_CALLS", 2)
    talk = Talk()
    reads = [wire.Read(1, number) for number in range(1, 4)]
    replies = talk.ask(wire.Open(1), text(1, "ab"), *reads)
    assert [failed(replies)[3].code, len(replies)] == ["overloaded", 3]
    talk.ask(wire.Close(1))
    assert not failed(talk.ask(wire.Open(2), text(2, "ab"), wire.Read(2, 4)))


class SlowTokenizer(LetterTokenizer):
    """Takes 3 ms for a prompt."""

    talk: Talk

    def encode(self, text: str, start: bool = True) -> list[int]:
        self.talk.now += 0.003
        return super().encode(text, start)


def slow_talk() -> Talk:
    tokenizer = SlowTokenizer()
    tokenizer.talk = talk = Talk(tokenizer=tokenizer, is_timed=True)
    return talk


def test_prompts_of_one_account_do_not_hold_up_those_of_another_on_the_same_connection() -> None:
    talk = slow_talk()
    for number in range(100):
        talk.say(wire.Open(number, account="flood"), text(number, "abcdefgh"))
        talk.say(wire.Generate(number, number, GREEDY))
    talk.step()
    talk.say(wire.Open(200, account="small"), text(200, "ab"), wire.Generate(200, 200, GREEDY))
    replies: list[wire.Reply] = []
    num_steps = 0
    while 200 not in done(replies):
        replies += talk.step()
        num_steps += 1
    assert num_steps <= 8, "five tokens, and the step under way"
    assert len(done(replies)) < 20
    assert len(done(replies + talk.until_idle())) == 100 + 1


def test_a_step_has_branches_carry_out_ops_for_a_bounded_time() -> None:
    talk = slow_talk()
    for number in range(50):
        talk.say(wire.Open(number), text(number, "abcdefgh"), wire.Generate(number, number, GREEDY))
    while not talk.scheduler.idle or not talk.scheduler.stats.steps:
        before = talk.now
        talk.step()
        assert talk.now - before <= 0.02


def test_prompts_of_one_account_are_carried_out_in_the_order_in_which_they_came() -> None:
    talk = slow_talk()
    for number in range(20):
        talk.say(wire.Open(number), text(number, "ab"), wire.Generate(number, number, GREEDY))
    assert list(done(talk.until_idle())) == list(range(20))


def test_what_others_want_of_a_branch_is_carried_out_before_it_is_closed() -> None:
    talk = Talk()
    talk.say(wire.Open(1), text(1, "ab"), wire.Read(1, 1), wire.Fork(1, (2,)))
    talk.say(wire.Open(3), wire.Append(3, (wire.Gained(1),)), wire.Close(1))
    talk.say(wire.Read(2, 4), wire.Read(3, 5))
    replies = {one.call: one.text for one in talk.until_idle() if isinstance(one, wire.TextIs)}
    assert replies == {1: "ab", 4: "ab", 5: "ab"}


def test_a_prompt_whose_branch_is_closed_at_once_is_not_looked_at() -> None:
    talk = slow_talk()
    for number in range(50):
        talk.say(wire.Open(number), text(number, "abcdefgh"), wire.Generate(number, number, GREEDY))
        talk.say(wire.Close(number))
    assert failed(talk.step()).keys() == set(range(50))
    assert talk.now < 0.003


def longest_turn(talk: Talk, until: int) -> float:
    """In seconds of work, until the call has a reply."""
    longest = 0.0
    for _ in range(3000):
        before = talk.now
        replies = talk.step()
        longest = max(longest, talk.now - before)
        if any(getattr(one, "call", None) == until for one in replies):
            return longest
    raise AssertionError("never answered")


def flood(talk: Talk, count: int) -> None:
    for number in range(1, count):
        talk.say(wire.Open(number, account="flood"), text(number, "abcdefgh"))
        talk.say(wire.Generate(number, number, GREEDY))


def test_a_cancel_takes_its_place_behind_what_its_account_has_sent() -> None:
    """All of that was carried out at once before: 0.6 s of work."""
    talk = slow_talk()
    flood(talk, 200)
    talk.say(wire.Cancel(199))
    talk.say(wire.Open(300, account="small"), text(300, "ab"), wire.Generate(300, 300, GREEDY))
    assert longest_turn(talk, until=300) <= 0.02
    replies = talk.until_idle()
    assert failed(replies)[199].code == "cancelled"
    assert len(done(replies)) >= 190


@pytest.mark.parametrize("is_slow", [False, True])
def test_what_waits_for_a_step_is_cancelled_however_many_turns_come_between(is_slow: bool) -> None:
    talk, pieces = Talk(), count()
    if is_slow:
        talk.interpreter._ready._clock = lambda: 2 * clients.TURN_SECONDS * next(pieces)
    one = wire.SamplingParams(temperature=0.0, max_tokens=1)
    talk.say(wire.Open(1), text(1, "ab"), wire.Generate(1, 1, one))
    for number in range(10, 30):
        talk.say(wire.Open(number), text(number, "ab"), wire.Read(number, number))
    talk.say(wire.Open(2), wire.Append(2, (wire.Ref(1),)), wire.Read(2, 2), wire.Cancel(2))
    talk.say(wire.Read(1, 3), wire.Cancel(3))
    replies = talk.until_idle()
    assert 1 in done(replies)
    assert [failed(replies)[call].code for call in (2, 3)] == ["cancelled", "cancelled"]


def test_a_close_takes_its_place_where_others_want_what_the_branch_gives() -> None:
    talk = slow_talk()
    flood(talk, 200)
    talk.say(wire.Open(200, account="flood"), text(200, "ab"), wire.Fork(200, (201,)))
    talk.say(wire.Close(200), wire.Read(201, 201))
    assert longest_turn(talk, until=201) <= 0.02
    assert 201 not in failed(talk.until_idle())


def test_a_client_that_leaves_is_forgotten_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(num_pages=4000)
    for number in range(1, 1000):
        talk.say(wire.Open(number), text(number, "ab"), wire.Generate(number, number, GREEDY))
    talk.step()
    end = delivery.CallCompletion.fail

    def slowly(self: delivery.CallCompletion, *given: Any) -> None:
        talk.now += 0.0001
        end(self, *given)

    monkeypatch.setattr(delivery.CallCompletion, "fail", slowly)
    talk.say(wire.Hello(wire.PROTOCOL_VERSION), wire.Open(1), client=b"other")
    talk.say(Gone())
    talk.say(text(1, "ab"), wire.Generate(1, 7, GREEDY), client=b"other")
    assert longest_turn(talk, until=7) <= 0.02
    assert not talk.until_idle(), "nobody hears of them"
    assert talk.scheduler.idle
    assert talk.interpreter.figures()["open_clients"] == 1


def test_many_ops_of_one_branch_are_carried_out_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk()
    carry_out = interpreter.BranchRunner._carry_out

    def slowly(self: interpreter.BranchRunner, *given: Any) -> None:
        talk.now += 0.0002
        carry_out(self, *given)

    monkeypatch.setattr(interpreter.BranchRunner, "_carry_out", slowly)
    talk.say(wire.Open(1), *(text(1, "ab") for _ in range(90)), wire.Read(1, 1))
    talk.say(wire.Open(2), *(wire.Append(2, ()) for _ in range(2000)), wire.Read(2, 2))
    assert longest_turn(talk, until=2) <= 0.02
    children = tuple(range(3, 1003))
    talk.say(wire.Fork(1, children), *(wire.Read(child, child) for child in children))
    replies = talk.until_idle()
    assert {one.text for one in replies if isinstance(one, wire.TextIs)} == {"ab" * 90}
    assert len(replies) == len(children)
