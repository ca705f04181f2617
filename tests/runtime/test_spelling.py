"""Token ids instead of text, tokens and text for those who ask, log-probabilities of a part of the
prompt.
"""

from __future__ import annotations

import pytest

from lmprog import wire
from lmprog.errors import ContextOverflow
from lmprog.runtime.text.text_service import TextService
from lmprog.runtime.text.tokenizer import ByteTokenizer
from lmprog.simulation.fake_engine import ALPHABET, LetterTokenizer
from tests.runtime.talk import GREEDY, Talk, done, failed, text

LETTERS = LetterTokenizer()
VOCAB = LETTERS.vocab_size


def tokens(branch: int, letters: str) -> wire.Append:
    return wire.Append(branch, (wire.TokensPiece(tuple(LETTERS.encode(letters))),))


def test_token_ids_give_what_their_text_gives() -> None:
    by_text, by_ids = Talk(), Talk()
    one = by_text.ask(wire.Open(1), text(1, "hello world"), wire.Generate(1, 1, GREEDY))
    two = by_ids.ask(wire.Open(1), tokens(1, "hello world"), wire.Generate(1, 1, GREEDY))
    assert done(one)[1].outputs == done(two)[1].outputs


def test_text_and_token_ids_may_follow_each_other() -> None:
    talk = Talk()
    replies = talk.ask(
        wire.Open(1),
        text(1, "ab"),
        tokens(1, "cd"),
        text(1, "ef"),
        wire.Generate(1, 1, GREEDY),
        wire.Read(1, 2),
    )
    plain = Talk().ask(wire.Open(1), text(1, "abcdef"), wire.Generate(1, 1, GREEDY))
    assert done(replies)[1].outputs == done(plain)[1].outputs
    assert replies[-1] == wire.TextIs(2, "abcdef" + done(plain)[1].outputs[0].text, 11)


def test_nothing_is_put_before_token_ids() -> None:
    tokenizer = ByteTokenizer()
    speller = TextService(tokenizer, tokenizer.vocab_size, 100)
    assert speller.tokens_of(wire.TokensPiece((104, 105)))[0].tolist() == [104, 105]
    assert tokenizer.prefix == (256,)
    assert speller.encode(wire.Encode(1, "hi")).tokens == (256, 104, 105)
    assert speller.encode(wire.Encode(1, "<bos>hi")).tokens == (256, 104, 105)
    assert speller.encode(wire.Encode(1, "hi", prefix=False)).tokens == (104, 105)


@pytest.mark.parametrize("wrong", [VOCAB, 2**31 - 1])
def test_an_id_beyond_the_vocabulary_spoils_its_branch_and_no_other(wrong: int) -> None:
    talk = Talk()
    replies = talk.ask(
        wire.Open(1),
        wire.Open(2),
        wire.Append(1, (wire.TokensPiece((1, wrong)),)),
        tokens(2, "ab"),
        wire.Generate(1, 1, GREEDY),
        wire.Generate(2, 2, GREEDY),
    )
    assert failed(replies)[1].code == "invalid_parameter"
    assert str(wrong) in failed(replies)[1].message
    assert 2 in done(replies)


def test_encode_and_decode_answer_without_a_branch() -> None:
    talk = Talk()
    replies = talk.ask(
        wire.Encode(1, "abc"),
        wire.Decode(2, (0, 1, 2)),
        wire.Decode(3, (0, VOCAB - 1), special=True),
    )
    assert replies == [
        wire.TokensAre(1, (0, 1, 2)),
        wire.TextIs(2, "abc", 3),
        wire.TextIs(3, "a<end>", 2),
    ]


def test_an_id_that_cannot_be_decoded_is_refused() -> None:
    (reply,) = Talk().ask(wire.Decode(1, (VOCAB,)))
    assert isinstance(reply, wire.Failed)
    assert reply.code == "invalid_parameter"


class Counting(LetterTokenizer):
    """Counts the letters that were tokenised."""

    def __init__(self) -> None:
        self.seen = 0

    def encode(self, text: str, start: bool = True) -> list[int]:
        self.seen += len(text)
        return super().encode(text, start)


def test_of_fifty_megabytes_only_the_beginning_is_tokenised() -> None:
    tokenizer = Counting()
    speller = TextService(tokenizer, VOCAB, longest=200)
    with pytest.raises(ContextOverflow) as refused:
        speller.check_length("a" * 50_000_000)
    assert tokenizer.seen < 20_000
    assert "50,000,000 characters" in str(refused.value)
    assert refused.value.limit == 200


@pytest.mark.parametrize(
    "ops",
    [
        (text(1, "a" * 100_000), wire.Generate(1, 1, GREEDY)),
        (text(1, "a" * 100_000), wire.Select(1, 1, ("a", "b"))),
        (text(1, "a"), wire.Select(1, 1, ("a", "b" * 100_000))),
        (text(1, "a" * 100_000), wire.Read(1, 1)),
        (text(1, "a" * 100_000), tokens(1, "b"), wire.Generate(1, 1, GREEDY)),
        (text(1, "a" * 100_000), wire.Fork(1, (2,)), wire.Generate(1, 1, GREEDY)),
        (wire.Encode(1, "a" * 100_000),),
    ],
    ids=["gen", "select", "option", "read", "ids after it", "fork", "encode"],
)
def test_whoever_brings_a_text_far_too_long_is_refused(ops: tuple[wire.Op, ...]) -> None:
    talk = Talk()
    replies = talk.ask(wire.Open(1), *ops)
    assert failed(replies)[1].code == "context_overflow"
    assert talk.scheduler.stats.computed_tokens == 0


def test_a_long_text_of_few_tokens_is_let_through() -> None:
    class Coarse(LetterTokenizer):
        def encode(self, text: str, start: bool = True) -> list[int]:
            return [0] * (len(text) // 10_000)

    TextService(Coarse(), VOCAB, longest=200).check_length("a" * 1_000_000)


@pytest.mark.parametrize("start", [0, 1, 2, 6, 7, 8, 100])
@pytest.mark.parametrize("warm", [False, True])
def test_log_probabilities_of_the_prompt_begin_where_they_are_asked_for(
    start: int, warm: bool
) -> None:
    prompt = "abcdefgh"
    whole = wire.SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=0, ignore_eos=True)
    asked = wire.SamplingParams(
        temperature=0.0,
        max_tokens=2,
        prompt_logprobs=2,
        prompt_logprobs_start=start,
        ignore_eos=True,
    )
    every = done(Talk().ask(wire.Open(1), text(1, prompt), wire.Generate(1, 1, whole)))[1]
    assert [one.text for one in every.prompt_logprobs] == list(prompt[1:])
    talk = Talk()
    if warm:
        talk.ask(wire.Open(1), text(1, prompt), wire.Generate(1, 1, GREEDY))
    part = done(talk.ask(wire.Open(2), text(2, prompt), wire.Generate(2, 2, asked)))[2]
    assert part.outputs == every.outputs
    first = max(start, 1)
    assert [one.text for one in part.prompt_logprobs] == list(prompt[first:])
    for one, other in zip(part.prompt_logprobs, every.prompt_logprobs[first - 1 :], strict=True):
        assert one.logprob == pytest.approx(other.logprob)
        assert len(one.top) == 2
    if warm:  # what stands before the part is taken from the cache
        assert part.usage.cached == min(first - 1, len(prompt) - 1)
    assert set(prompt) <= set(ALPHABET)
