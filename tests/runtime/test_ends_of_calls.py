"""How calls end: at stops inside of tokens, at stops of many tokens, out of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog import wire
from lmprog.runtime.text.tokenizer import HfTokenizer
from lmprog.transport import Gone

from .talk import GREEDY, ME, Talk, done, failed, text

LONG = wire.SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)


def test_a_stop_of_many_tokens_leaves_no_page_behind() -> None:
    told = done(Talk().ask(wire.Open(1), text(1, "abc"), wire.Generate(1, 1, LONG)))[1]
    whole = told.outputs[0].text
    for begin in range(1, 6):
        stop = whole[begin : begin + 9]
        sampling = wire.SamplingParams(
            temperature=0.0, max_tokens=16, ignore_eos=True, stop=(stop,)
        )
        talk = Talk()  # checks every page after every step
        replies = talk.ask(wire.Open(1), text(1, "abc"), wire.Generate(1, 1, sampling))
        assert done(replies)[1].outputs[0].text == whole[:begin]
        talk.ask(wire.Close(1))
        talk.scheduler.tree.clear()
        assert talk.scheduler.pages.num_free == talk.scheduler.pages.num_pages


def test_what_precedes_a_stop_inside_a_token_is_still_in_the_branch() -> None:
    tokenizer = HfTokenizer(Path(lmprog.__file__).parent / "nano")
    told = done(
        Talk(tokenizer).ask(wire.Open(1), text(1, "Once"), wire.Generate(1, 1, LONG, heal=False))
    )[1].outputs[0]
    pieces = [tokenizer.decode([token]) for token in told.tokens]
    at, piece = next(
        (at, piece)
        for at, piece in enumerate(pieces)
        if at and len(piece) > 3 and piece.isascii() and told.text.count(piece[2:]) == 1
    )
    sampling = wire.SamplingParams(
        temperature=0.0, max_tokens=16, ignore_eos=True, stop=(piece[2:],)
    )
    talk = Talk(tokenizer)
    replies = talk.ask(wire.Open(1), text(1, "Once"), wire.Generate(1, 1, sampling, heal=False))
    kept = done(replies)[1].outputs[0].text
    assert kept == "".join(pieces[:at]) + piece[:2]
    branch = talk.interpreter.clients[ME].branches[1]
    assert tokenizer.decode(branch.tokens) + branch.pending == "Once" + kept


def test_a_select_ends_when_its_time_is_up() -> None:
    talk = Talk(token_budget=1)
    talk.say(wire.Open(1), text(1, "abc"), wire.Select(1, 1, ("defgh", "ijklm"), timeout=2.0))
    replies = talk.step()
    talk.now = 3.0
    replies += talk.step()
    assert failed(replies)[1].code == "deadline"
    assert talk.scheduler.idle


def test_a_failed_branch_keeps_no_frames_of_the_calls_that_it_refuses() -> None:
    """Else each call of it would leave its frames, and all that these hold, behind."""
    talk = Talk()
    talk.engine.fail_next = True
    replies = talk.ask(wire.Open(1), text(1, "abc"), wire.Generate(1, 1, LONG))
    assert failed(replies)[1].code == "model"
    replies = talk.ask(*(wire.Read(1, call) for call in range(2, 20)))
    assert {one.code for one in failed(replies).values()} == {"model"}
    failure = talk.interpreter.clients[ME].branches[1].failure
    assert failure is not None
    assert failure.__traceback__ is None


def test_a_refused_call_keeps_no_frames() -> None:
    talk = Talk(context_len=8)
    replies = talk.ask(wire.Open(1), text(1, "abcdefghi"), wire.Generate(1, 1, LONG))
    assert failed(replies)[1].code == "context_overflow"
    error = talk.interpreter.clients[ME].calls[1].error
    assert error is not None
    assert error.__traceback__ is None


def suspended_talk(n: int = 3) -> Talk:
    """A gen of some results that was suspended after a few tokens, and is asked for 30."""
    talk = Talk(max_rows=4)
    sampling = wire.SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, n=n)
    talk.say(wire.Open(1), text(1, "tell"), wire.Generate(1, 1, sampling, stream=True))
    for _ in range(4):
        talk.step()
    talk.say(wire.Suspend(1))
    talk.until_idle()
    return talk


def test_a_suspended_call_makes_no_tokens_and_keeps_nobody_waiting() -> None:
    talk = suspended_talk()
    made = talk.scheduler.stats.generated_tokens
    assert (len(talk.scheduler.suspended), talk.scheduler.idle) == (3, True)
    replies = talk.ask(wire.Open(2), text(2, "other"), wire.Generate(2, 2, GREEDY))
    assert set(done(replies)) == {2}
    assert talk.scheduler.stats.generated_tokens == made + 5


def test_a_call_that_goes_on_gives_what_it_would_have_given() -> None:
    plain = Talk(max_rows=4)
    sampling = wire.SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, n=3)
    asked = plain.ask(wire.Open(1), text(1, "tell"), wire.Generate(1, 1, sampling, stream=True))
    talk = suspended_talk()
    talk.say(wire.Suspend(1), wire.Suspend(1, is_on=False))  # what is suspended stays so once
    replies = talk.until_idle()
    texts = [one.text for one in done(replies)[1].outputs]
    assert texts == [one.text for one in done(asked)[1].outputs]
    assert talk.scheduler.stats.preemptions == 0
    talk.ask(wire.Close(1))
    talk.scheduler.check()


@pytest.mark.parametrize("end", [wire.Cancel(1), wire.Close(1), Gone()])
def test_a_suspended_call_can_end(end: Any) -> None:
    talk = suspended_talk()
    talk.ask(end)
    assert len(talk.scheduler.suspended) == 0
    assert talk.scheduler.pages.num_free + talk.scheduler.tree.num_evictable == 64


def test_who_waits_for_a_row_can_be_suspended_too() -> None:
    talk = suspended_talk(n=9)
    assert (len(talk.scheduler.suspended), talk.scheduler.idle) == (9, True)
    talk.ask(wire.Open(2), wire.Append(2, (wire.Ref(1, 0),)), wire.Generate(2, 2, GREEDY))
    replies = talk.ask(wire.Suspend(1, is_on=False), wire.Suspend(77))
    assert set(done(replies)) == {1, 2}, "and whoever waits for its text goes on then"
