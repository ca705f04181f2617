"""Vocabularies for the tests of constraints: a small one that the eye can check, and a real one of
131,072 tokens.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lmprog.constraints.token_bytes import vocabulary_of_tokenizer
from lmprog.constraints.vocabulary import Vocabulary

EOS = 0


def make_vocabulary(words: list[str]) -> Vocabulary:
    """End-of-sequence, the 256 bytes at 1..256, then the words."""
    tokens: list[bytes | None] = [
        None,
        *(bytes([byte]) for byte in range(256)),
        *(word.encode() for word in words),
    ]
    return Vocabulary(tokens, [EOS], use_cache=False)


@pytest.fixture(scope="session")
def small() -> Vocabulary:
    words = [
        "ab",
        "abc",
        "bc",
        "ca",
        "aa",
        "aaaa",
        "bb",
        "é",
        "éa",
        " a",
        "\n",
        "a\n",
        "12",
        "123",
        "00",
        '"a',
        '":',
        '", "',
    ]
    words += [
        "true",
        "false",
        "null",
        "name",
        '{"',
        '"}',
        "age",
        "tion",
        "hello",
        " world",
        "Hello",
        "}}",
        "[[",
        "]]",
        "日本",
    ]
    return make_vocabulary(words)


@pytest.fixture(scope="session")
def real() -> Vocabulary:
    folder = pytest.importorskip("mistral_common").__path__[0]
    return vocabulary_of_tokenizer(Path(folder) / "data" / "tekken_240911.json")


@pytest.fixture
def rng(request: pytest.FixtureRequest, seed: int) -> random.Random:
    """Of each test its own; LMPROG_SEED gives others."""
    return random.Random(f"{seed} {request.node.name}")
