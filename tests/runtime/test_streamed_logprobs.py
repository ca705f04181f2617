"""Log-probabilities that are streamed are those of the result: each once, with the text of its
token, none too many.
"""

from __future__ import annotations

import pytest

from lmprog import wire
from lmprog.runtime.text.stream import TextStream
from lmprog.runtime.text.tokenizer import ByteTokenizer

from .talk import GREEDY, Talk, done, text


def sampling(stop: tuple[str, ...], n: int = 1) -> wire.SamplingParams:
    return wire.SamplingParams(
        temperature=1.0, seed=5, max_tokens=40, ignore_eos=True, stop=stop, logprobs=2, n=n
    )


@pytest.mark.parametrize(
    "stop", [(), ("e",), ("th", "qu"), ("abcdefgh",), ("a", "b", "c", "d"), ("no such text",)]
)
@pytest.mark.parametrize("n", [1, 3])
def test_what_is_streamed_is_what_the_result_has(stop: tuple[str, ...], n: int) -> None:
    talk = Talk()
    replies = talk.ask(
        wire.Open(1), text(1, "hello"), wire.Generate(1, 2, sampling(stop, n), stream=True)
    )
    outputs = done(replies)[2].outputs
    for index, output in enumerate(outputs):
        deltas = [
            reply for reply in replies if isinstance(reply, wire.Delta) and reply.index == index
        ]
        assert "".join(delta.text for delta in deltas) == output.text
        assert tuple(one for delta in deltas for one in delta.logprobs) == output.logprobs
        given = spelled = ""
        for delta in deltas:
            given += delta.text
            spelled += "".join(one.text for one in delta.logprobs)
            assert given.startswith(spelled), "no token is told before its text"


def test_nothing_is_told_where_nothing_was_asked_for() -> None:
    talk = Talk()
    plain = wire.SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    replies = talk.ask(wire.Open(1), text(1, "hello"), wire.Generate(1, 2, plain, stream=True))
    assert all(reply.logprobs == () for reply in replies if isinstance(reply, wire.Delta))


def test_text_that_was_held_back_for_a_stop_comes_with_the_last_delta() -> None:
    talk = Talk()
    plain = done(talk.ask(wire.Open(1), text(1, "abc"), wire.Generate(1, 1, GREEDY)))[1]
    told = plain.outputs[0].text
    begun = wire.SamplingParams(
        temperature=0.0, max_tokens=5, ignore_eos=True, stop=(told[-2:] + "never",)
    )
    replies = talk.ask(wire.Open(2), text(2, "abc"), wire.Generate(2, 2, begun, stream=True))
    deltas = [reply.text for reply in replies if isinstance(reply, wire.Delta)]
    assert done(replies)[2].outputs[0].text == told
    assert "".join(deltas) == told
    assert deltas[-1] == told[-2:]


@pytest.mark.parametrize("seed", range(4))
def test_tokens_without_a_text_of_their_own_count_with_the_next_one(seed: int) -> None:
    """Bytes by chance: most of them begin or go on in characters of several."""
    talk = Talk(ByteTokenizer())
    sampling = wire.SamplingParams(temperature=1.0, seed=seed, max_tokens=60, ignore_eos=True)
    replies = talk.ask(wire.Open(1), text(1, "a"), wire.Generate(1, 2, sampling, stream=True))
    tokens = done(replies)[2].outputs[0].tokens
    deltas = [reply for reply in replies if isinstance(reply, wire.Delta)]
    assert any(delta.num_tokens > 1 for delta in deltas)
    count, given = 0, ""
    for delta in deltas[:-1]:  # the last one has what was held back, too
        count, given = count + delta.num_tokens, given + delta.text
        stream = TextStream(talk.tokenizer)
        assert "".join([stream.push(token) for token in tokens[:count]]) == given
    assert count + deltas[-1].num_tokens <= len(tokens)
