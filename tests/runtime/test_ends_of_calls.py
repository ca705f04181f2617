"""How calls end: at stops inside of tokens, at stops of many tokens, out of time."""

from __future__ import annotations

from pathlib import Path

import lmprog
from lmprog import wire
from lmprog.runtime.text.tokenizer import HfTokenizer

from .talk import ME, Talk, done, failed, text

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
