"""Forced bytes, and the tokens of them that are canonical whatever follows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import Constraint
from lmprog.constraints.forced import forced_tokens
from lmprog.constraints.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def encode() -> Callable[[str], Sequence[int]]:
    tekken = pytest.importorskip("mistral_common.tokens.tokenizers.tekken")
    folder = pytest.importorskip("mistral_common").__path__[0]
    tokenizer = tekken.Tekkenizer.from_file(str(Path(folder) / "data" / "tekken_240911.json"))
    return lambda text: tokenizer.encode(text, bos=False, eos=False)


def test_forced_bytes_are_those_without_a_choice(small: Vocabulary) -> None:
    for pattern, expected in [
        ("abc", b"abc"),
        ("ab[cd]e", b"ab"),
        ("ab?", b"a"),
        ("[ab]c", b""),
        ("é", "é".encode()),
        ("[éè]", b"\xc3"),
    ]:
        constraint = compile_constraint(wire.Regex(pattern), small)
        assert constraint.forced(constraint.start) == expected, pattern


def test_nothing_is_forced_where_the_text_may_end(small: Vocabulary) -> None:
    constraint = compile_constraint(wire.Regex("(abc)?"), small)
    assert constraint.forced(constraint.start) == b""
    assert constraint.forced(constraint.advance(constraint.start, 1 + ord("a"))) == b"bc"


def test_a_whole_forced_text_is_taken_whole(
    real: Vocabulary, encode: Callable[[str], Sequence[int]]
) -> None:
    constraint = compile_constraint(wire.Choices(("the quick brown fox",)), real)
    assert list(forced_tokens(constraint, constraint.start, real, encode)) == list(
        encode("the quick brown fox")
    )


def test_a_token_that_a_longer_one_could_swallow_is_held_back(
    real: Vocabulary, encode: Callable[[str], Sequence[int]]
) -> None:
    constraint = compile_constraint(wire.Regex(r"\{\"the_customer_order(Id)?\": [0-9]+\}"), real)
    tokens = forced_tokens(constraint, constraint.start, real, encode)
    for text in ('{"the_customer_order": 1}', '{"the_customer_orderId": 1}'):
        assert list(encode(text))[: len(tokens)] == list(tokens)
    assert tokens


def random_instance(
    constraint: Constraint, state: int, vocabulary: Vocabulary, rng: random.Random
) -> bytes:
    """A random way to acceptance, token by token."""
    out = b""
    for left in range(constraint.distance(state) + 12, 0, -1):
        row = constraint.mask(state, left)
        if row.ids is not None:
            ids = row.ids.tolist()
        else:
            ids = [
                t
                for t in rng.sample(range(len(vocabulary)), min(3000, len(vocabulary)))
                if row.allows(t)
            ]
        moves = [token for token in ids if token not in vocabulary.eos_ids]
        if not moves:
            break
        token = rng.choice(moves)
        out += vocabulary.bytes_of(token) or b""
        state = constraint.advance(state, token)
    return out


def test_forced_tokens_are_canonical_in_every_run(
    real: Vocabulary, encode: Callable[[str], Sequence[int]], rng: random.Random
) -> None:
    patterns = [
        r'\{"name": "[A-Za-z ]{1,12}", "house": "(Gryffindor|Slytherin)", "wand_length": '
        r"[0-9]{1,2}(\.[0-9])?\}",
        r"The answer is (yes|no|unknown), because [a-z ]{5,30}\.",
        r'\[("item_[0-9]+", )*"last_item"\]',
        r"http(s)?://www\.example\.(com|org)/[a-z]{1,8}",
        r"(order|orderId|orders): [0-9]+ pieces?",
    ]
    checked = 0
    for pattern in patterns:
        constraint = compile_constraint(wire.Regex(pattern), real)
        for _ in range(12):
            state, written = constraint.start, ""
            while not constraint.is_final(state):
                tokens = forced_tokens(constraint, state, real, encode, written)
                if tokens:
                    rest = random_instance(constraint, state, real, rng).decode(errors="ignore")
                    text = b"".join(real.bytes_of(t) or b"" for t in tokens).decode()
                    assert rest.startswith(text)
                    standing = list(encode(written))
                    assert list(encode(written + rest))[len(standing) :][: len(tokens)] == list(
                        tokens
                    ), (written, rest)
                    checked += 1
                piece = random_instance(constraint, state, real, rng).decode(errors="ignore")
                token = list(encode(written + piece))[len(list(encode(written))) :][:1]
                text = (real.bytes_of(token[0]) or b"").decode(errors="ignore") if token else piece
                after = constraint.advance_bytes(state, text.encode())
                if not text or after is None:
                    break
                state, written = after, written + text
    print(f"{checked} forced stretches")
    assert checked > 40
