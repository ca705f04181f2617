"""What a judge reads is tokenised in a thread where it is long: others go on, the verdict is the
same.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import LmprogError
from lmprog.runtime.programs import judging
from lmprog.runtime.programs.branch import RuntimeBranch
from lmprog.runtime.programs.judging import Ballots, Judging
from lmprog.runtime.programs.result_selection import FinishedResult, ResultSelector
from lmprog.runtime.text.stream import TextEnd
from lmprog.runtime.text.text_service import TextService
from lmprog.runtime.text.tokenizer import (
    ByteTokenizer,
    ChunkedEncoder,
    Cutter,
    HfTokenizer,
    Tokenizer,
)
from tests.runtime.talk import GREEDY, Talk, done, failed, text

NANO = Path(lmprog.__file__).parent / "nano"
JUDGE = wire.Judge(" is that so?", ("yes", "no", "or not"))
SAMPLED = wire.SamplingParams(temperature=1.0, seed=7, max_tokens=6, stop=("a",), n=4)
ASKED = (
    wire.Open(1),
    text(1, "once upon a time"),
    wire.Generate(1, 2, SAMPLED, keep="best", judge=JUDGE),
)


class HeldThread(Executor):
    """Does what was asked when `run` is called."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **named))
            except LmprogError as error:
                future.set_exception(error)

        self.held.append(run)
        return future

    def run(self) -> None:
        for one in self.held:
            one()
        self.held.clear()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldThread:
    """A few characters are a long text."""
    monkeypatch.setattr(judging, "LONG", 20)
    return HeldThread()


def until_asked(talk: Talk, held: HeldThread) -> list[wire.Reply]:
    replies: list[wire.Reply] = []
    for _ in range(100):
        if held.held:
            return replies
        replies += talk.step()
    raise AssertionError("the judge was never asked")


def test_others_go_on_while_what_a_judge_reads_is_tokenised(held: HeldThread) -> None:
    expected = done(Talk().ask(*ASKED))[2].outputs
    talk = Talk(tokenising=held)
    talk.say(*ASKED)
    assert not until_asked(talk, held)
    assert talk.interpreter.awaits_thread
    other = talk.ask(wire.Open(9), text(9, "abc"), wire.Generate(9, 10, GREEDY))
    assert list(done(other)) == [10]
    held.run()
    assert done(talk.until_idle())[2].outputs == expected
    assert not talk.interpreter.awaits_thread


def test_a_call_that_is_cancelled_meanwhile_gets_no_second_reply(held: HeldThread) -> None:
    talk = Talk(tokenising=held)
    talk.say(*ASKED)
    until_asked(talk, held)
    assert list(failed(talk.ask(wire.Cancel(2), wire.Close(1)))) == [2]
    held.run()
    assert talk.until_idle() == []
    tree, pages = talk.scheduler.tree, talk.scheduler.pages
    assert pages.num_free + tree.num_evictable == pages.num_pages


def test_a_judge_that_does_not_fit_fails_its_call(held: HeldThread) -> None:
    talk = Talk(tokenising=held)
    long = wire.Judge("x" * 190, ("yes", "no"))
    talk.say(*ASKED[:2], wire.Generate(1, 2, SAMPLED, keep="best", judge=long))
    until_asked(talk, held)
    held.run()
    assert failed(talk.until_idle())[2].code == "context_overflow"


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), HfTokenizer(NANO)], ids=["bytes", "nano"])
def test_the_thread_finds_the_tokens_that_the_loop_finds(tokenizer: Tokenizer) -> None:
    dice = random.Random(3)
    words = "".join(
        dice.choice(["the fox", " lives", "\n\n", " 12", " in a", "…"]) for _ in range(900)
    )
    judge = wire.Judge(words, (" yes", " no", "\nnever. " * 40))
    selector = ResultSelector("best", 5, 8, judge=judge)
    for index, rest in enumerate(["", "wor", " th", "\n", "a b"]):
        tokens = array("i", tokenizer.encode("once upon"))
        selector.finished[index] = FinishedResult(tokens, TextEnd("", 0, rest, ""))
    found: list[object] = []
    for thread in (None, HeldThread()):
        made = Judging(
            tokenizer,
            ChunkedEncoder(tokenizer, Cutter(tokenizer)),
            TextService(tokenizer, tokenizer.vocab_size, 10**6),
            lambda *_: None,
            thread,
        )
        made.ask(RuntimeBranch(1, ""), selector, found.append)
        if thread is not None:
            assert len(found) == 1, "it is long enough for the thread"
            thread.run()
            made.turn()
    here, there = (_tokens(one) for one in found)
    assert here == there


def _tokens(ballots: object) -> dict[int, list[list[int]]]:
    assert isinstance(ballots, dict)
    known: Ballots = ballots
    return {at: [one.tokens.tolist() for one in ballot.sequences] for at, ballot in known.items()}
