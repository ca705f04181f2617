"""A branch that is given an output as its tokens goes on as the branch that the output came of."""

from __future__ import annotations

import random

import pytest

from lmprog import wire
from lmprog.runtime.programs.branch import RuntimeBranch
from lmprog.runtime.text.tokenizer import ByteTokenizer
from tests.constrained.small_model import random_tokenizer
from tests.runtime.talk import Talk, done, failed, text
from tests.runtime.words import Words

URL = Words("http", "://", ":", " ", " word", "the", " the", "9", "90")


def branch_of(talk: Talk, number: int) -> RuntimeBranch:
    return talk.interpreter.clients[b"me"].branches[number]


def given(branch: int, output: wire.Output) -> wire.Append:
    return wire.Append(branch, wire.output_pieces(output))


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


def test_a_result_at_the_very_beginning_comes_after_what_the_tokenizer_puts_there() -> None:
    tokenizer = ByteTokenizer()
    talk = Talk(tokenizer)
    sampling = wire.SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    (output,) = done(talk.ask(wire.Open(1), wire.Generate(1, 1, sampling)))[1].outputs
    talk.ask(wire.Open(2), given(2, output))
    one, two = branch_of(talk, 1), branch_of(talk, 2)
    assert one.tokens == two.tokens
    assert tuple(one.tokens[:1]) == tokenizer.prefix
    talk.ask(wire.Open(3), wire.Append(3, (wire.TokensPiece(output.tokens),)))
    assert tuple(branch_of(talk, 3).tokens) == output.tokens, "ids that are a prompt begin as given"


def test_what_follows_an_option_is_what_follows_the_select() -> None:
    """Its tokens are those with the text before it, and what follows does not change them."""
    dice = random.Random(9)
    for _ in range(60):
        tokenizer = random_tokenizer(dice)
        talk = Talk(tokenizer=tokenizer)
        before, after, *choices = (
            "".join(dice.choices("abc", k=dice.randint(1, 5))) for _ in range(5)
        )
        select = wire.Select(1, 1, tuple(dict.fromkeys(choices)))
        replies = talk.ask(wire.Open(1), text(1, before), select)
        (chosen,) = (one for one in replies if isinstance(one, wire.Chosen))
        left = wire.Append(2, wire.own_pieces(select, chosen))
        talk.ask(wire.Open(2), text(2, before), left, text(1, after), text(2, after))
        one, two = branch_of(talk, 1), branch_of(talk, 2)
        assert one.tokens_with(tokenizer) == two.tokens_with(tokenizer), (before, select, after)
        assert one.text() == two.text()


def test_what_a_branch_gains_of_another_has_no_special_token_that_was_generated_or_said() -> None:
    """But the template's own, and those that the program wrote outside of turns."""
    tokenizer = ByteTokenizer()
    user, end = (256 + tokenizer.SPECIAL.index(name) for name in ("<|user|>", "<|end|>"))
    talk = Talk(tokenizer)
    said = wire.Generate(2, 3, wire.SamplingParams(), wire.Regex(r"<\|user\|>"))
    turn = (wire.RoleBegin("user"), wire.TextPiece("<|user|>"), wire.RoleEnd("user"))
    talk.ask(
        *(wire.Open(1), text(1, "a"), wire.Fork(1, (2,)), said),
        *(wire.Append(2, turn), text(2, "<|end|>"), wire.Append(1, (wire.Gained(2),))),
    )
    branch = branch_of(talk, 1)
    tokens = branch.tokens_with(tokenizer).tolist()
    assert branch.text() == "a<|user|>u:<|user|>;<|end|>"
    assert (tokens.count(user), tokens.count(end)) == (0, 1)


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
