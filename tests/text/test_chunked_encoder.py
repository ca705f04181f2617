"""Long texts in chunks: the same tokens as in one piece, and a common beginning only once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

import lmprog
from lmprog.runtime.text.quoting import Span
from lmprog.runtime.text.tokenizer import CHUNK, ByteTokenizer, ChunkedEncoder, Cutter, HfTokenizer

NANO = Path(lmprog.__file__).parent / "nano"
WORDS = ["the", "fox", "12", "  ", "\n\n", "é", "日本", "don't", "A.", "lives in", "…", "<|end|>"]


class Counting(HfTokenizer):
    """Counts the characters that it encodes."""

    num_chars = 0

    def encode(self, text: str, start: bool = True) -> list[int]:
        self.num_chars += len(text)
        return super().encode(text, start)


def prose(dice: random.Random, num_words: int) -> str:
    return "".join(dice.choice(WORDS) + dice.choice(["", " ", " "]) for _ in range(num_words))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", [ByteTokenizer, lambda: HfTokenizer(NANO)])
def test_chunks_have_the_tokens_of_the_whole(kind: type[ByteTokenizer], seed: int) -> None:
    dice = random.Random(seed)
    tokenizer = kind()
    encoder = ChunkedEncoder(tokenizer, Cutter(tokenizer))
    text = prose(dice, 2000)
    ends = sorted(dice.sample(range(len(text)), 6))
    quoted: Sequence[Span] = [*zip(ends[::2], ends[1::2], strict=True)]
    for start in (True, False):
        for _ in range(2):  # the second time from what was kept
            assert encoder.encode(text, start) == tokenizer.encode(text, start)
            whole = tokenizer.encode_quoting(text, quoted, start)
            assert encoder.encode_quoting(text, quoted, start) == whole


def test_a_common_beginning_is_encoded_once() -> None:
    tokenizer = Counting(NANO)
    encoder = ChunkedEncoder(tokenizer, Cutter(tokenizer))
    shared = "Mia lives in a small town near the sea and has a dog. " * 60
    encoder.encode(shared + "Question 0")
    tokenizer.num_chars = 0
    for number in range(1, 64):
        encoder.encode(shared + f"Question {number}")
    assert tokenizer.num_chars < 63 * 2 * CHUNK


def test_the_number_of_kept_chunks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmprog.runtime.text.tokenizer.MAX_CHUNKS", 3)
    tokenizer = ByteTokenizer()
    encoder = ChunkedEncoder(tokenizer, Cutter(tokenizer))
    text = "".join(f"number {n} of many words here " for n in range(400))
    assert encoder.encode(text) == tokenizer.encode(text)
    assert len(encoder._chunks) == 3


class CopiedText(str):
    """Counts the characters that are copied out of it, and out of the copies."""

    copied = 0

    def __getitem__(self, place: object) -> CopiedText:
        part = CopiedText(super().__getitem__(place))  # type: ignore[index]
        CopiedText.copied += len(part)
        return part


def test_a_long_text_is_copied_once_and_not_once_for_each_chunk() -> None:
    tokenizer = HfTokenizer(NANO)
    text = CopiedText("the little house by the water " * 2_000)
    CopiedText.copied = 0
    ChunkedEncoder(tokenizer, Cutter(tokenizer)).encode(text)
    assert CopiedText.copied <= 2 * len(text)
