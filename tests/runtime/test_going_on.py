"""A branch that is given an output as its tokens goes on as the branch that the output came of."""

from __future__ import annotations

import random

import pytest

from lmprog import wire
from lmprog.runtime.programs.branch import RuntimeBranch
from tests.constrained.small_model import random_tokenizer
from tests.runtime.talk import Talk, done, failed, text
from tests.runtime.words import Words

URL = Words("http", "://", ":", " ", " word", "the", " the", "9", "90")


def branch_of(talk: Talk, number: int) -> RuntimeBranch:
    return talk.interpreter.clients[b"me"].branches[number]


def given(branch: int, output: wire.Output) -> wire.Append:
    ids = (*(output.healed or ()), *output.tokens)
    piece = wire.TokensPiece(ids, output.rest, heals=output.healed is not None)
    return wire.Append(branch, (piece,))


def test_what_follows_an_output_is_what_follows_the_call() -> None:
    """Random vocabularies and texts: seams, seams that are spelled anew, stops in first tokens."""
    dice = random.Random(8)
    seen: set[tuple[bool, bool, bool]] = set()
    for _ in range(150):
        tokenizer = random_tokenizer(dice)
        talk = Talk(tokenizer=tokenizer)
        before, after = ("".join(dice.choices("abc", k=dice.randint(1, 6))) for _ in range(2))
        stop = tuple(dice.sample(["a", "b", "bc", "ca"], k=dice.randint(0, 2)))
        sampling = wire.SamplingParams(
            max_tokens=3, temperature=1.0, seed=dice.randrange(99), stop=stop, ignore_eos=True
        )
        asked = wire.Generate(1, 1, sampling, heal=True)
        (output,) = done(talk.ask(wire.Open(1), text(1, before), asked))[1].outputs
        talk.ask(wire.Open(2), text(2, before), given(2, output))
        one, two = branch_of(talk, 1), branch_of(talk, 2)
        assert one.text() == two.text()
        can_heal = [bool(branch.pending) and branch.ends_literal for branch in (one, two)]
        assert can_heal[0] == can_heal[1] or not output.text
        talk.ask(text(1, after), text(2, after))
        assert one.tokens_with(tokenizer) == two.tokens_with(tokenizer), (before, output, after)
        assert (one.pending, one.quoted) == (two.pending, two.quoted)
        seen.add((output.healed is not None, bool(output.tokens), bool(output.rest)))
    assert len(seen) >= 7, "with and without each of them"


@pytest.mark.parametrize(
    ("before", "ids", "rest"),
    [
        ("the word", (URL.ids[b"the"],), ""),  # other text than that of the last token
        ("the word", (), ""),
        ("the word", (), " wo"),  # too little of it
        ("", (URL.ids[b"the"],), ""),
    ],
)
def test_tokens_that_heal_spell_the_token_they_replace(
    before: str, ids: tuple[int, ...], rest: str
) -> None:
    talk = Talk(tokenizer=URL)
    piece = wire.TokensPiece(ids, rest, heals=True)
    replies = talk.ask(wire.Open(1), text(1, before), wire.Append(1, (piece,)), wire.Generate(1, 1))
    assert failed(replies)[1].code == "invalid_parameter"
    assert "stand in place of the last token" in failed(replies)[1].message


def test_special_tokens_in_a_rest_are_text() -> None:
    talk = Talk(tokenizer=URL)
    talk.ask(wire.Open(1), text(1, "the"), wire.Append(1, (wire.TokensPiece((), " wo"),)))
    branch = branch_of(talk, 1)
    assert (branch.pending, branch.quoted) == (" wo", ((0, 3),))
    talk.ask(text(1, "rd"))
    assert (branch.pending, branch.quoted) == (" word", ((0, 3),))
    assert branch.text() == "the word"
