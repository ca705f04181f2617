"""Tokens that a constraint forces: in their place, counted, streamed in order, and the constraint
goes on behind them.
"""

from __future__ import annotations

from array import array

import pytest

from lmprog import wire
from lmprog.runtime.programs.call_constraints import CallConstraints
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from lmprog.simulation.fake_engine import LetterTokenizer
from tests.runtime.talk import Talk, done, text

LETTERS = LetterTokenizer()
PATTERN = "abc(d|e)fgh(i|j)kl"
"""Eight of its ten letters are forced."""


def generation(max_tokens: int) -> Generation:
    constraints = CallConstraints(LETTERS)
    constraint = constraints.compile(wire.Regex(PATTERN))
    settings = GenerationSettings(
        wire.SamplingParams(), max_tokens, LETTERS.eos_ids, 1, constraint, constraints.forcing
    )
    return Generation(settings, 0)


def test_forced_tokens_follow_those_that_were_sampled_and_count_as_generated() -> None:
    task, tokens = generation(max_tokens=20), array("i", LETTERS.encode("x"))
    seen = [(task.start(tokens), task.generated, task.forced)]
    for letter in "ej":
        allowed = task.mask()
        assert allowed is not None
        assert allowed.count == 2, "the constraint has come as far as the text"
        added = task.accept(*LETTERS.encode(letter), tokens)
        seen.append((added, task.generated, task.forced))
    assert seen == [(3, 3, 3), (4, 7, 6), (3, 10, 8)]
    assert LETTERS.decode(tokens) == "xabcefghjkl"
    assert task.finish == "constraint"


@pytest.mark.parametrize("n", [1, 3])
def test_forced_text_is_streamed_in_its_order_and_reported(n: int) -> None:
    talk = Talk(is_forcing=True)
    sampling = wire.SamplingParams(temperature=1.0, seed=4, max_tokens=20, n=n)
    ask = wire.Generate(1, 7, sampling, wire.Regex(PATTERN), stream=True)
    replies = talk.ask(wire.Open(1), text(1, "hello "), ask)
    result = done(replies)[7]
    for index, output in enumerate(result.outputs):
        deltas = [one for one in replies if isinstance(one, wire.Delta) and one.index == index]
        assert "".join(delta.text for delta in deltas) == output.text
        assert LETTERS.decode(output.tokens) == output.text
        assert output.text[:3] == "abc"
        assert output.text[-2:] == "kl"
        assert len(output.text) == 10
    assert (result.usage.generated, result.usage.forced) == (10 * n, 8 * n)
