"""Nano's tokenizer: nothing is lost, digits stand alone, a word is the same tokens wherever it
stands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from training.document import SPECIALS
from training.draw import Split
from training.tokenizer import encode
from training.world import document

NANO = Path(__file__).parents[2] / "lmprog" / "nano"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(NANO / "tokenizer.json"))


def test_all_bytes_are_in_the_vocabulary(tokenizer: Tokenizer) -> None:
    assert 2048 <= tokenizer.get_vocab_size() <= 4096
    for byte in range(256):
        text = bytes([byte]).decode("latin-1")
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_comes_back(text: str) -> None:
    tokenizer = _shared()
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


_CACHE: list[Tokenizer] = []


def _shared() -> Tokenizer:
    if not _CACHE:
        _CACHE.append(Tokenizer.from_file(str(NANO / "tokenizer.json")))
    return _CACHE[0]


def test_digits_are_single_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("1234567890").tokens == list("1234567890")
    assert [
        t for t in tokenizer.get_vocab() if sum(c.isdigit() for c in t) > 0 and len(t) > 1
    ] == []


@pytest.mark.parametrize("name", ["Rovan", "Tarmelford", "gearezok", "Mia"])
def test_a_name_is_the_same_tokens_everywhere(tokenizer: Tokenizer, name: str) -> None:
    alone = tokenizer.encode(name).ids
    for frame in (" {0}.", '"{0}"', "lookup[{0}]", "\n{0}:", "({0})", ": {0}\n"):
        before = tokenizer.encode(frame.format("\x00").split("\x00")[0]).ids
        whole = tokenizer.encode(frame.format(name)).ids
        assert whole[len(before) : len(before) + len(alone)] == alone


def test_special_tokens_are_one_token_each(tokenizer: Tokenizer) -> None:
    assert [tokenizer.encode(text).ids for text in SPECIALS] == [[0], [1], [2], [3], [4]]


def test_a_document_is_encoded_segment_by_segment(tokenizer: Tokenizer) -> None:
    for number in range(50):
        doc = document(Split.TRAIN, number)
        tokens = encode(tokenizer, doc)
        assert tokenizer.decode(list(tokens.ids), skip_special_tokens=False) == doc.text
        said = [i for i, answer in zip(tokens.ids, tokens.answer, strict=True) if answer]
        assert tokenizer.decode(said, skip_special_tokens=False) == "".join(
            s.text for s in doc.segments if s.answer
        )


def test_the_chat_template_is_stable_under_more_messages() -> None:
    chat = AutoTokenizer.from_pretrained(NANO)

    def render(some: list[dict[str, str]], **options: Any) -> str:
        return str(chat.apply_chat_template(some, tokenize=False, **options))

    messages = [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "My name is Mia."},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "What is my name?"},
    ]
    whole = render(messages)
    assert whole == (
        "<|system|>Answer in one word.<|end|><|user|>My name is "
        "Mia.<|end|><|assistant|>Hello<|end|>"
        "<|user|>What is my name?<|end|>"
    )
    for count in range(len(messages)):
        assert whole.startswith(render(messages[:count]) if count else "")
    prompt = render(messages, add_generation_prompt=True)
    assert prompt == whole + "<|assistant|>"
