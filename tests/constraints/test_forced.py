"""Forced bytes, and the tokens of them that are canonical whatever follows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import Constraint, State, followed, one_by_one
from lmprog.constraints.forced import forced_tokens
from lmprog.constraints.regular import RegularConstraint
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


def test_the_end_of_a_long_text_is_judged_once(
    real: Vocabulary, encode: Callable[[str], Sequence[int]]
) -> None:
    long = "The quick brown fox jumps over the lazy dog, " * 6
    constraint = compile_constraint(wire.Regex(f"{long}the_order(Id)? [0-9]+"), real)
    asked = list[str]()

    def noted(text: str) -> Sequence[int]:
        asked.append(text)
        return encode(text)

    counts = []
    for before in ("Once.\n", "Twice:\n", "And\n"):
        asked.clear()
        tokens = forced_tokens(constraint, constraint.start, real, noted, before)
        counts.append(len(asked))
        for end in ("the_order 1", "the_orderId 1"):
            whole = list(encode(before + long + end))[len(list(encode(before))) :]
            assert whole[: len(tokens)] == list(tokens)
        assert len(tokens) >= len(list(encode(long))) - 1
    assert counts[0] > counts[1] == counts[2] == 2, "the text before, and the whole text"


def test_where_too_much_would_be_encoded_less_is_certain(
    real: Vocabulary, encode: Callable[[str], Sequence[int]]
) -> None:
    constraint = compile_constraint(wire.Regex("The lazy dog(.|, the )end"), real)
    asked = list[str]()

    def noted(text: str) -> Sequence[int]:
        asked.append(text)
        return encode(text)

    tokens = forced_tokens(constraint, constraint.start, real, noted)
    assert 48 <= len(asked) < 48 + 24
    for end in (".", ", the "):
        assert list(encode(f"The lazy dog{end}end"))[: len(tokens)] == list(tokens)
    assert tokens


def candidates(
    constraint: Constraint, state: State, vocabulary: Vocabulary
) -> dict[int, set[bytes]]:
    """The tokens that may begin within the forced bytes and end beyond them, by beginning."""
    forced, found = constraint.forced(state), dict[int, set[bytes]]()
    for token in filter(None, vocabulary.tokens):
        for begin in range(len(forced)):
            rest = forced[begin:]
            goes_on = len(token) > len(rest) and token.startswith(rest)
            if goes_on and constraint.advance_bytes(state, forced[:begin] + token) is not None:
                found.setdefault(begin, set()).add(token)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_the_core_finds_the_tokens_across_the_end_of_forced_bytes(seed: int) -> None:
    rng = random.Random(seed)
    some = {bytes(rng.choices(b'ab\xc3\xa9"', k=rng.randint(2, 6))) for _ in range(400)}
    vocabulary = Vocabulary(
        [None, *(bytes([byte]) for byte in range(256)), *sorted(some), b"ab"], [0], use_cache=False
    )
    text = "".join(rng.choices('ab"', k=rng.randint(1, 12)))
    for rest in ('("a|é|b+)', "[ab]*", "(a|bb)?", ".{2}", ""):
        constraint = compile_constraint(wire.Regex(text + rest), vocabulary)
        assert isinstance(constraint, RegularConstraint)
        *found, behind = constraint.doubts(constraint.start).all
        assert behind.begin == len(constraint.forced(constraint.start))
        expected, left = candidates(constraint, constraint.start, vocabulary), 64
        by_begin = dict[int, set[bytes]]()
        for one in found:
            tokens = by_begin.setdefault(one.begin, set())
            if one.size:
                assert all(more.startswith(one.texts[0]) for more in one.texts)
                assert len(one.texts[0]) == one.size
                tokens.add(one.texts[0])
            for more in one.texts:
                begun = constraint.forced(constraint.start)[: one.begin] + more
                assert constraint.advance_bytes(constraint.start, begun) is not None
        for begin in sorted(expected):
            if len(expected[begin]) > min(left, 32):
                assert by_begin.pop(begin) == set(), "too many to look at"
            else:
                left -= len(expected[begin])
                assert by_begin.pop(begin) == expected[begin]
        assert not by_begin


def test_tokens_are_followed_as_far_as_the_rest_fits() -> None:
    vocabulary = Vocabulary([None, *(bytes([byte]) for byte in range(256))], [0], use_cache=False)
    constraint = compile_constraint(wire.Regex("abcdefgh[xy]{3}"), vocabulary)
    tokens = [1 + byte for byte in b"abcdefgh"]
    for left in (3, 7, 11, 12, 40):
        taken, state = followed(constraint, constraint.start, tokens, left)
        assert (taken, state) == one_by_one(constraint, constraint.start, tokens, left)
        assert taken == (8 if left >= 11 else 0)


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
