"""Long texts that cannot be cut are tokenised in a thread: the loop goes on, the tokens are the
same.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lmprog import wire
from lmprog.errors import ContextOverflow, LmprogError
from lmprog.runtime.programs.branch import BranchState, RuntimeBranch
from lmprog.runtime.programs.long_texts import LONG, LongTexts
from lmprog.runtime.text.text_service import TextService
from lmprog.runtime.text.tokenizer import ByteTokenizer, ChunkedEncoder, Cutter
from lmprog.transport import Gone
from tests.runtime.talk import GREEDY, Talk, done, failed, text
from tests.runtime.test_long_texts import KINDS, CountingBytes, story

ALPHABETS = {
    "one letter": "a",
    "letters": "abcdefghijklmnopqrstuvwxyz",
    "Chinese": "天地玄黄宇宙洪荒日月盈昃辰宿列张",
    "digits": "0123456789",
    "punctuation": "!?.,-…",
    "spaces": " \n",
}
OTHER = b"other"
PROBES = 500
"""More characters than are encoded to see whether a tokenizer can be cut."""


def unbroken(dice: random.Random, num_chars: int = LONG + 500) -> str:
    """A text without a cut."""
    return "".join(dice.choices(dice.choice([*ALPHABETS.values()]), k=num_chars))


class HeldThread(Executor):
    """Runs a job when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run_one(self) -> None:
        future, job = self.jobs.pop(0)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(job())
        except LmprogError as error:
            future.set_exception(error)


def waiting_texts(talk: Talk) -> bool:
    return talk.interpreter.awaits_thread


def roomy(thread: Executor | None) -> Talk:
    return Talk(
        CountingBytes(), context_len=400_000, page_size=4_096, num_pages=100, tokenising=thread
    )


@pytest.mark.parametrize("name", ALPHABETS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_lets_other_threads_run_encodes_alike(kind: str, name: str, tmp_path: Path) -> None:
    """A long text as a whole, and its beginnings, have the tokens of the library's other way."""
    tokenizer = KINDS[kind](tmp_path)
    written = "".join(random.Random(3).choices(ALPHABETS[name], k=LONG + 100))
    library = getattr(tokenizer, "_tokenizer", None)
    if library is None:
        assert tokenizer.decode(tokenizer.encode(written)) == written or kind == "letters"
        return
    assert tokenizer.encode(written) == library.encode(written, add_special_tokens=False).ids
    quoted = [(7, LONG)]
    assert tokenizer.encode_quoting(written, quoted) == tokenizer.encode(written)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_are_those_of_the_whole(kind: str, seed: int, tmp_path: Path) -> None:
    """Wherever the unbroken part stands, quoted or not, also with an option after it."""
    dice, tokenizer = random.Random(seed), KINDS[kind](tmp_path)
    encoder = ChunkedEncoder(tokenizer, Cutter(tokenizer))
    with ThreadPoolExecutor(1) as thread:
        texts = LongTexts(encoder, TextService(tokenizer, tokenizer.vocab_size, 10**6), thread)
        branch = RuntimeBranch(1, state=BranchState.OPEN)
        branch.tokens = array("i", dice.choice([[], [3, 1]]))
        if dice.random() < 0.7:
            branch.append(story(dice.randrange(100, 3_000)))
        branch.append(unbroken(dice), dice.choice([[], [(0, 100)]]))
        if dice.random() < 0.5:
            branch.append(" and then " + story(2_000) + unbroken(dice))
        endings = ["", " yes", unbroken(dice, 200), " or " + story(1_000)]
        wanted = [branch.tokens_with(tokenizer, ending) for ending in endings]
        num_turns = 0
        while (missing := texts.missing(branch, endings)) is not None:
            missing.waiting[:] = [branch]
            woken: list[RuntimeBranch] = []
            while not woken:
                texts.turn(woken.append)
                num_turns += 1
        assert texts.is_known(branch) or len(branch.pending) <= LONG
        alone = encoder.encode_alone
        encoder.encode_alone = lambda part: (  # type: ignore[method-assign]
            alone(part) if len(part.text) <= LONG else pytest.fail("a long part is encoded again")
        )
        for ending, tokens in zip(endings, wanted, strict=True):
            assert branch.tokens_with(encoder, ending) == tokens


def test_others_have_their_tokens_while_a_text_is_in_the_thread() -> None:
    thread = HeldThread()
    talk = roomy(thread)
    params = wire.SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    talk.say(wire.Open(1), text(1, "abc"), wire.Generate(1, 1, params), client=OTHER)
    talk.step()
    long, encoded = "a" * 60_000, talk.tokenizer.num_chars
    talk.say(wire.Open(1), text(1, long), wire.Generate(1, 7, GREEDY))
    for _ in range(10):
        before = talk.scheduler.stats.generated_tokens
        talk.step()
        assert talk.scheduler.stats.generated_tokens == before + 1, "a token in each step"
    assert talk.tokenizer.num_chars - encoded < PROBES, "nothing of it in the loop's thread"
    assert len(thread.jobs) == 1
    assert not talk.interpreter.is_working, "the loop does not spin"
    assert waiting_texts(talk)
    thread.run_one()
    assert talk.interpreter.is_working
    encoded = talk.tokenizer.num_chars
    replies = talk.until_idle()
    assert done(replies)[7].usage.prompt == len(long) + 1
    assert talk.tokenizer.num_chars - encoded < LONG, "what the thread did is not done again"
    totals = talk.scheduler.shares.totals[""]
    assert totals.host_seconds > 0.0, "the thread's seconds are paid: no other clock has moved"


def test_a_select_after_such_a_text_scores_each_option_with_it() -> None:
    thread = HeldThread()
    talk, plain = roomy(thread), roomy(None)
    long = "b" * (LONG + 1)
    ops = (wire.Open(1), text(1, long), wire.Select(1, 2, ("yes", "no", "ye")))
    talk.say(*ops)
    replies: list[wire.Reply] = talk.step()
    while thread.jobs:
        thread.run_one()
        replies += talk.step()
    replies += talk.until_idle()
    plain.say(*ops)
    (chosen,) = [one for one in replies if isinstance(one, wire.Chosen)]
    (alike,) = [one for one in plain.until_idle() if isinstance(one, wire.Chosen)]
    assert (chosen.index, chosen.options) == (alike.index, alike.options)


def test_forks_of_such_a_text_tokenise_it_once() -> None:
    thread = HeldThread()
    talk = roomy(thread)
    children = tuple(range(2, 8))
    talk.say(wire.Open(1), text(1, "c" * 50_000), wire.Fork(1, children))
    talk.say(*(wire.Generate(child, 10 + child, GREEDY) for child in children))
    talk.step()
    (job,) = thread.jobs
    assert not job[0].done()
    thread.run_one()
    replies = talk.until_idle()
    assert {number: one.usage.prompt for number, one in done(replies).items()} == {
        10 + child: 50_001 for child in children
    }
    assert not thread.jobs


def test_an_encode_is_answered_when_the_thread_has_done_it() -> None:
    thread = HeldThread()
    talk = roomy(thread)
    long = story(40_000) + "d" * 30_000
    talk.say(wire.Encode(1, long, prefix=False), wire.Encode(2, "short", prefix=False))
    order = [one.call for _ in range(9) for one in talk.step() if isinstance(one, wire.TokensAre)]
    assert order == [2]
    thread.run_one()
    (reply,) = [one for one in talk.step() if isinstance(one, wire.TokensAre)]
    assert list(reply.tokens) == ByteTokenizer().encode(long)


def test_one_that_cannot_fit_is_refused_after_its_beginning() -> None:
    thread = HeldThread()
    talk = Talk(CountingBytes(), tokenising=thread)
    talk.say(wire.Open(1), text(1, "e" * 3_000_000), wire.Generate(1, 1, GREEDY))
    assert talk.step() == []
    thread.run_one()
    assert failed(talk.step())[1].code == ContextOverflow.code
    assert talk.tokenizer.num_chars < LONG + PROBES
    talk.say(wire.Generate(1, 2, GREEDY), wire.Select(1, 3, ("a", "f" * 40_000)))
    assert {one.code for one in failed(talk.until_idle()).values()} == {ContextOverflow.code}
    talk.say(wire.Open(2), text(2, "g"), wire.Select(2, 4, ("a", "f" * 40_000)))
    talk.step()
    thread.run_one()
    assert failed(talk.until_idle())[4].code == ContextOverflow.code
    assert done(talk.ask(wire.Generate(2, 5, GREEDY))), "an option spoils nothing"


def test_nobody_waits_for_a_closed_branch_or_a_client_that_is_gone() -> None:
    thread = HeldThread()
    talk = roomy(thread)
    talk.say(wire.Open(1), text(1, "h" * 30_000), wire.Read(1, 1))
    talk.say(wire.Encode(2, "i" * 30_000), client=OTHER)
    talk.step()
    talk.say(wire.Close(1))
    talk.say(Gone(), client=OTHER)
    talk.step()
    talk.step()
    assert not waiting_texts(talk)
    assert all(future.cancelled() for future, _ in thread.jobs)
    talk.say(wire.Open(2), text(2, "j"), wire.Generate(2, 3, GREEDY))
    assert done(talk.until_idle())


def test_texts_of_several_branches_take_turns_in_the_thread() -> None:
    thread = HeldThread()
    talk = roomy(thread)
    talk.say(wire.Open(1), text(1, " and then ".join("k" * 20_000 for _ in range(4))))
    talk.say(wire.Read(1, 1))
    talk.step()
    talk.say(wire.Open(1), text(1, "l" * 20_000), wire.Read(1, 1), client=OTHER)
    order: list[str] = []
    for _ in range(40):
        replies = talk.step()
        order += [one.text[0] for one in replies if isinstance(one, wire.TextIs)]
        if thread.jobs:
            thread.run_one()
    assert order == ["l", "k"]
