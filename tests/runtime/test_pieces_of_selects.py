"""A select with many options is worked at in pieces: others go on meanwhile, and it can be cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from lmprog import wire
from lmprog.runtime.programs import clients, delivery
from lmprog.runtime.programs.clients import TURN_SECONDS, HostWork, Pieces
from lmprog.runtime.scheduling.sequence import SequenceGroup
from lmprog.runtime.scheduling.waiting_queue import ClientShares
from lmprog.simulation.fake_engine import LetterTokenizer
from tests.runtime.talk import ME, Talk, done, failed, text

PER_LETTER = 0.0001
OTHER = b"other"


class SlowTokenizer(LetterTokenizer):
    """Each letter that it encodes or names takes a tenth of a millisecond."""

    talk: Talk

    def encode(self, text: str, start: bool = True) -> list[int]:
        self.talk.now += PER_LETTER * len(text)
        return super().encode(text, start)

    def token_text(self, token: int) -> str:
        self.talk.now += PER_LETTER
        return super().token_text(token)


def options(count: int, length: int = 20) -> tuple[str, ...]:
    letters = "abcdefghij"
    return tuple(
        "".join(letters[(number // 10 ** (place % 4) + place) % 10] for place in range(length))
        for number in range(count)
    )


def slow_talk(**changes: Any) -> Talk:
    tokenizer = SlowTokenizer()
    tokenizer.talk = talk = Talk(
        tokenizer=tokenizer, is_timed=True, **{"num_pages": 4000, **changes}
    )
    talk.say(wire.Hello(wire.PROTOCOL_VERSION), client=OTHER)
    talk.say(wire.Open(1), text(1, "ab"))
    talk.step()
    return talk


def until(talk: Talk, call: int, most: int = 4000) -> tuple[wire.Reply, list[float]]:
    """The last reply of a call, and the seconds of each turn until then."""
    seconds: list[float] = []
    for _ in range(most):
        before = talk.now
        replies = talk.step()
        seconds.append(talk.now - before)
        for reply in replies:
            if isinstance(reply, wire.Chosen | wire.Failed) and reply.call == call:
                return reply, seconds
    raise AssertionError("never answered")


METHODS = (
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
)


@pytest.mark.parametrize("method", METHODS)
def test_a_select_in_pieces_is_the_same_select(
    method: wire.SelectMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for at_once in (10**9, 0):
        monkeypatch.setattr(delivery, "AT_ONCE", at_once)
        talk = slow_talk()
        talk.say(wire.Select(1, 1, options(70, 6), method))
        reply, _ = until(talk, 1)
        assert isinstance(reply, wire.Chosen)
        found.append((reply.index, reply.options))
    assert found[0] == found[1]


def test_no_piece_of_a_select_takes_longer_than_a_turn_and_an_option() -> None:
    talk = slow_talk()
    talk.say(wire.Select(1, 1, options(400)))
    reply, seconds = until(talk, 1)
    assert isinstance(reply, wire.Chosen)
    assert sum(seconds) >= 2 * 400 * 20 * PER_LETTER, "it is tokenised, and its tokens are named"
    assert max(seconds) <= TURN_SECONDS + 22 * PER_LETTER + 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_each_stage_of_a_select_has_a_piece_for_each_option(
    method: wire.SelectMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "AT_ONCE", 0)
    counts, queued = list[int](), list[int]()
    talk, begin = slow_talk(), HostWork.begin
    add = talk.scheduler.add

    def counting(self: HostWork, payer: Any, pieces: Pieces, is_wanted: Any) -> None:
        def counted() -> Pieces:
            counts.append(0)
            for _ in pieces:
                counts[-1] += 1
                queued.append(0)
                yield

        begin(self, payer, counted(), is_wanted)

    def adding(group: SequenceGroup, sequences: Any) -> None:
        queued[-1] += len(sequences)
        add(group, sequences)

    monkeypatch.setattr(HostWork, "begin", counting)
    monkeypatch.setattr(talk.scheduler, "add", adding)
    talk.say(wire.Select(1, 1, options(200), method))
    assert isinstance(until(talk, 1)[0], wire.Chosen)
    assert max(queued) == clients.MOST_AT_ONCE
    making, choosing = counts
    more = method == "unconditional_likelihood_normalized"
    assert making >= (3 + more) * 200
    assert choosing >= (2 + (method != "token_length_normalized")) * 200


def test_another_clients_call_goes_on_while_a_select_is_made() -> None:
    talk = slow_talk()
    talk.say(wire.Select(1, 1, options(1000)))
    talk.step()
    talk.say(wire.Open(1), text(1, "cd"), client=OTHER)
    talk.say(wire.Generate(1, 7, wire.SamplingParams(max_tokens=2)), client=OTHER)
    replies: list[wire.Reply] = []
    for _ in range(6):
        replies += talk.step()
    assert done(replies).keys() == {7}
    assert talk.interpreter.is_working


@pytest.mark.parametrize("op", [wire.Cancel(1), wire.Close(1)])
def test_a_select_is_cancelled_between_two_pieces(op: wire.Op) -> None:
    talk = slow_talk()
    talk.say(wire.Select(1, 1, options(1000)))
    for _ in range(3):
        talk.step()
    talk.say(op)
    replies = talk.step()
    assert failed(replies)[1].code == "cancelled"
    before = talk.now
    talk.step()
    assert talk.now == before, "nothing more of it is done"
    assert not talk.interpreter.is_working
    assert talk.scheduler.idle
    talk.say(wire.Open(2), text(2, "ab"), wire.Select(2, 2, ("a", "b")))
    assert isinstance(until(talk, 2)[0], wire.Chosen)


def test_a_select_for_which_the_queue_has_no_room_is_refused_as_a_whole() -> None:
    talk = slow_talk(max_waiting=100)
    talk.say(wire.Select(1, 1, options(400)))
    refused, _ = until(talk, 1)
    assert isinstance(refused, wire.Failed)
    assert refused.code == "overloaded"
    assert talk.scheduler.idle
    talk.say(wire.Open(2), text(2, "ab"), wire.Select(2, 2, ("a", "b")))
    assert isinstance(until(talk, 2)[0], wire.Chosen)


def test_work_of_the_host_is_for_whoever_was_served_least_and_is_paid() -> None:
    shares, now, did = ClientShares(), [0.0], list[str]()

    def pieces(name: str, seconds: float, count: int) -> Pieces:
        for _ in range(count):
            did.append(name)
            now[0] += seconds
            yield

    work = HostWork(shares, lambda: now[0])
    work.begin("a", pieces("a", 0.002, 9), lambda: True)
    work.begin("b", pieces("b", 0.001, 9), lambda: True)
    for _ in range(3):
        began = now[0]
        work.turn()
        assert now[0] - began < TURN_SECONDS + 0.002
    assert did.count("b") == pytest.approx(2 * did.count("a"), abs=2)
    assert shares.served("a") == pytest.approx(0.002 * did.count("a"))


def test_a_select_is_on_the_account_of_its_branch() -> None:
    talk = slow_talk()
    talk.say(wire.Select(1, 1, options(200)))
    until(talk, 1)
    assert talk.scheduler.shares.served((ME, "")) >= 2 * 200 * 20 * PER_LETTER
