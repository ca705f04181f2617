"""Long texts are tokenised a part in each step: others go on, and the tokens are the same."""

from __future__ import annotations

import itertools
import random
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

import lmprog
from lmprog import wire
from lmprog.runtime.programs import long_texts
from lmprog.runtime.programs.branch import BranchState, RuntimeBranch
from lmprog.runtime.programs.long_texts import CHARS_PER_STEP, LongTexts
from lmprog.runtime.scheduling.sequence import Client
from lmprog.runtime.text.quoting import Span
from lmprog.runtime.text.text_service import TextService
from lmprog.runtime.text.tokenizer import (
    MAX_CHUNK,
    ByteTokenizer,
    ChunkedEncoder,
    Cutter,
    HfTokenizer,
    Tokenizer,
)
from lmprog.simulation.fake_engine import LetterTokenizer
from lmprog.transport import Gone
from tests.runtime.talk import GREEDY, Talk, done, failed, text
from tests.text import checkpoints

NANO = Path(lmprog.__file__).parent / "nano"
WORDS = ["the", "fox", "12", "  ", "\n\n", "é", "日本", "don't", "A.", "lives in", "…", "<|end|>"]
OTHER = b"other"
KINDS: dict[str, Callable[[Path], Tokenizer]] = {
    "bytes": lambda folder: ByteTokenizer(),
    "letters": lambda folder: LetterTokenizer(),
    "nano": lambda folder: HfTokenizer(NANO),
    "byte_level": lambda folder: HfTokenizer(checkpoints.save(folder, checkpoints.byte_level())),
    "llama": lambda folder: HfTokenizer(checkpoints.save(folder, checkpoints.llama())),
    "unigram": lambda folder: HfTokenizer(checkpoints.save(folder, checkpoints.unigram())),
}


class CountingBytes(ByteTokenizer):
    """Counts the characters that it encodes."""

    num_chars = 0

    def encode(self, text: str, start: bool = True) -> list[int]:
        self.num_chars += len(text)
        return super().encode(text, start)


def prose(dice: random.Random, num_words: int) -> str:
    return "".join(dice.choice(WORDS) + dice.choice(["", " ", " "]) for _ in range(num_words))


def story(num_chars: int, seed: int = 0) -> str:
    """No two parts of it are the same."""
    dice = random.Random(seed)
    return " ".join(f"word {dice.randrange(10**6)} of" for _ in range(num_chars // 14))


def roomy() -> Talk:
    """Has room for every text here, and a tokenizer that counts."""
    return Talk(CountingBytes(), context_len=400_000, page_size=4_096, num_pages=100)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_parts_have_the_tokens_of_the_whole(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(long_texts, "LONG", 1_000)
    monkeypatch.setattr(long_texts, "CHARS_PER_STEP", dice.randrange(100, 3_000))
    monkeypatch.setattr(long_texts, "CHARS_IN_TURN", dice.randrange(100, 1_000))
    tokenizer = KINDS[kind](tmp_path)
    cutter = Cutter(tokenizer)
    encoder = ChunkedEncoder(tokenizer, cutter)
    longs = LongTexts(encoder, TextService(tokenizer, tokenizer.vocab_size, 10**6))
    branches, wanted = [], []
    for _ in range(3):
        branch = RuntimeBranch(1, state=BranchState.OPEN)
        if dice.random() < 0.5:
            branch.tokens = array("i", [3, 1])
        written = prose(dice, 1_500)
        ends = sorted(dice.sample(range(len(written)), 6))
        quoted: list[Span] = [*zip(ends[::2], ends[1::2], strict=True)]
        branch.append(written, quoted if dice.random() < 0.5 else [])
        wanted.append(branch.tokens_with(tokenizer))
        branches.append(branch)
    woken: list[RuntimeBranch] = []
    for branch in branches:
        missing = longs.missing(branch)
        if missing is None:
            woken.append(branch)
        else:
            missing.waiting.append(branch)
    for _ in range(200):
        longs.turn(woken.append)
    assert sorted(map(id, woken)) == sorted(map(id, branches))
    for branch, tokens in zip(branches, wanted, strict=True):
        assert longs.missing(branch) is None
        assert len(branch.pending) <= 1_000 or not cutter.can_cut
        assert branch.tokens_with(tokenizer) == tokens


def test_others_have_their_tokens_while_a_long_text_is_tokenised() -> None:
    talk = roomy()
    talk.say(
        wire.Open(1),
        text(1, "abc"),
        wire.Generate(1, 1, wire.SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)),
        client=OTHER,
    )
    talk.step()
    long = story(CHARS_PER_STEP * 20)
    talk.say(wire.Open(1), text(1, long), wire.Read(1, 7, with_tokens=True))
    generated, replies = [], []
    while not replies:
        encoded, before = talk.tokenizer.num_chars, talk.scheduler.stats.generated_tokens
        replies = [one for one in talk.step() if isinstance(one, wire.TextIs)]
        assert talk.tokenizer.num_chars - encoded <= 2 * (CHARS_PER_STEP + MAX_CHUNK)
        generated.append(talk.scheduler.stats.generated_tokens - before)
    assert len(generated) >= 10
    assert set(generated) == {1}, "a token in each step"
    (reply,) = replies
    assert reply.text == long
    prefix = ByteTokenizer().prefix
    assert reply.tokens == (*prefix, *ByteTokenizer().encode(long))


def test_an_encode_of_a_long_text_is_answered_when_it_is_tokenised() -> None:
    talk = roomy()
    long = story(CHARS_PER_STEP * 6)
    talk.say(wire.Encode(1, long, prefix=False), wire.Encode(2, "short", prefix=False))
    order = [one.call for _ in range(20) for one in talk.step() if isinstance(one, wire.TokensAre)]
    assert order == [2, 1]
    talk.say(wire.Encode(3, long, prefix=False))
    (again,) = [one for _ in range(20) for one in talk.step() if isinstance(one, wire.TokensAre)]
    assert list(again.tokens) == ByteTokenizer().encode(long)


def test_who_asks_for_tokens_pays_from_the_first_character_on() -> None:
    paid: list[tuple[Client, float]] = []
    ticks = itertools.count()
    tokenizer = ByteTokenizer()
    service = TextService(tokenizer, tokenizer.vocab_size, 10**6)
    encoder = ChunkedEncoder(tokenizer, Cutter(tokenizer))
    longs = LongTexts(encoder, service, None, lambda *one: paid.append(one), lambda: next(ticks))
    payer = (b"", "one")
    longs.encode(story(CHARS_PER_STEP), lambda: True, lambda outcome: None, payer)
    assert paid == [(payer, 1)]


def test_others_calls_do_not_wait_for_all_texts_that_an_account_has_tokenised() -> None:
    """All of one connection, as those of a gateway's keys are."""
    talk = roomy()
    clock = itertools.count()
    talk.interpreter._work._clock = lambda: next(clock) * 0.003  # two pieces in a turn
    asked = [wire.Encode(call, f"text {call}", account="one") for call in range(100, 140)]
    gen = wire.Generate(1, 1, GREEDY)
    talk.say(*asked, wire.Open(1, account="two"), text(1, "hello"), gen)
    talk.say(wire.Encode(2, "little", account="three"))
    replies: list[list[wire.Reply]] = []
    while not any(isinstance(one, wire.CallDone) for one in talk_step(talk, replies)):
        pass
    told = [one.call for step in replies for one in step if isinstance(one, wire.TokensAre)]
    assert len(replies) <= 8, "the call's own steps"
    assert 2 in told[:4], "accounts take turns"
    assert len(told) < 20
    told += [one.call for one in talk.until_idle() if isinstance(one, wire.TokensAre)]
    assert [call for call in told if call >= 100] == [op.call for op in asked]


def talk_step(talk: Talk, replies: list[list[wire.Reply]]) -> list[wire.Reply]:
    replies.append(talk.step())
    return replies[-1]


def test_an_account_has_no_more_questions_waiting_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_texts, "MOST_ASKED", 500)
    talk = roomy()
    asked = [wire.Encode(call, "a" * 100, account="one") for call in range(9)]
    replies = talk.ask(*asked, wire.Encode(9, "other", account="two"))
    refused = failed(replies)
    assert set(refused) == {4, 5, 6, 7, 8}
    assert {reply.code for reply in refused.values()} == {"overloaded"}
    told = [one.call for one in replies if isinstance(one, wire.TokensAre)]
    assert sorted(told) == [0, 1, 2, 3, 9]
    assert [one.call for one in talk.ask(asked[8])] == [8], "there is room again"


def test_texts_of_a_client_that_has_gone_are_not_tokenised() -> None:
    talk = roomy()
    talk.say(*[wire.Encode(call, "text") for call in range(9)], client=OTHER)
    talk.channel.inbox.append((OTHER, Gone()))
    encoded = talk.tokenizer.num_chars
    talk.until_idle()
    assert talk.tokenizer.num_chars == encoded


def test_long_texts_take_turns() -> None:
    talk = roomy()
    talk.say(wire.Encode(1, story(CHARS_PER_STEP * 20, 1)))
    talk.step()
    talk.say(wire.Encode(2, story(CHARS_PER_STEP * 2, 2)), client=OTHER)
    order = [one.call for _ in range(60) for one in talk.step() if isinstance(one, wire.TokensAre)]
    assert order == [2, 1]


def test_what_is_kept_takes_no_further_step() -> None:
    talk = roomy()
    long = story(CHARS_PER_STEP * 4)
    talk.say(wire.Open(1), text(1, long), wire.Read(1, 1))
    for _ in range(20):
        talk.step()
    for number in range(2, 6):
        talk.say(wire.Open(number), text(number, long), wire.Read(number, number))
        assert any(isinstance(one, wire.TextIs) for one in talk.step())


def test_tokens_after_a_long_text_of_the_same_append_wait_for_it() -> None:
    talk = roomy()
    long = story(CHARS_PER_STEP * 4)
    pieces = (wire.TextPiece(long), wire.TokensPiece((65, 66)), wire.TextPiece("!"))
    talk.say(wire.Open(1), wire.Append(1, pieces), wire.Read(1, 1, with_tokens=True))
    assert not [one for one in talk.step() if isinstance(one, wire.TextIs)]
    (reply,) = [one for _ in range(20) for one in talk.step() if isinstance(one, wire.TextIs)]
    assert reply.text == long + "AB!"
    assert bytes(reply.tokens[1:]).decode() == long + "AB!"


def test_a_text_that_cannot_fit_is_refused_after_its_beginning_and_others_of_it_at_once() -> None:
    talk = Talk(CountingBytes())
    talk.say(wire.Open(1), text(1, story(3_000_000)), wire.Generate(1, 1, GREEDY))
    replies = [one for _ in range(20) for one in talk.step()]
    assert failed(replies)[1].code == "context_overflow"
    assert talk.tokenizer.num_chars < 4 * CHARS_PER_STEP
    encoded = talk.tokenizer.num_chars
    talk.say(wire.Generate(1, 2, GREEDY))
    assert failed(talk.step())[2].code == "context_overflow"
    assert talk.tokenizer.num_chars == encoded


def test_nothing_more_is_tokenised_for_a_branch_that_is_closed_or_a_client_that_is_gone() -> None:
    talk = roomy()
    talk.say(wire.Open(1), text(1, story(CHARS_PER_STEP * 20)), wire.Read(1, 1))
    talk.say(wire.Encode(2, story(CHARS_PER_STEP * 20, 1)), client=OTHER)
    talk.step()
    talk.say(wire.Close(1))
    talk.say(Gone(), client=OTHER)
    talk.step()
    encoded = talk.tokenizer.num_chars
    for _ in range(5):
        talk.step()
    assert talk.tokenizer.num_chars == encoded
    assert not talk.interpreter.is_working


def test_a_call_that_waits_for_its_text_can_be_cancelled_and_the_branch_goes_on() -> None:
    talk = roomy()
    talk.say(wire.Open(1), text(1, story(CHARS_PER_STEP * 8)), wire.Generate(1, 1, GREEDY))
    talk.step()
    talk.say(wire.Cancel(1))
    assert failed(talk.step())[1].code == "cancelled"
    talk.say(wire.Read(1, 2))
    assert [one for _ in range(20) for one in talk.step() if getattr(one, "call", 0) == 2]
    assert done(talk.ask(wire.Open(2), text(2, "abc"), wire.Generate(2, 3, GREEDY)))


class TimedBytes(CountingBytes):
    """Each character takes 10 us."""

    talk: Talk | None = None

    def encode(self, text: str, start: bool = True) -> list[int]:
        if self.talk is not None:
            self.talk.now += 1e-5 * len(text)
        return super().encode(text, start)


def test_whose_text_it_is_pays_for_its_tokens() -> None:
    tokenizer = TimedBytes()
    talk = Talk(tokenizer, context_len=400_000, page_size=4_096, num_pages=100, is_timed=True)
    tokenizer.talk = talk
    talk.say(wire.Hello(wire.PROTOCOL_VERSION), client=OTHER)
    talk.say(wire.Encode(9, story(4 * CHARS_PER_STEP, seed=2)), client=OTHER)
    talk.ask(wire.Open(1, account="one"), text(1, story(8 * CHARS_PER_STEP)), wire.Read(1, 1))
    talk.ask(wire.Generate(1, 2, GREEDY))
    totals = talk.scheduler.shares.totals
    assert totals["one"].host_seconds >= 0.9 * 8e-5 * CHARS_PER_STEP
    assert totals[""].host_seconds >= 0.7 * 4e-5 * CHARS_PER_STEP, "but for what it began with"
