"""A branch's text and tokens: one tokenisation, whatever the way the text came."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

import lmprog
from lmprog.runtime.programs.branch import RuntimeBranch
from lmprog.runtime.text.chat_template import load_template
from lmprog.runtime.text.tokenizer import ByteTokenizer, Cutter, HfTokenizer, Tokenizer

NANO = Path(lmprog.__file__).parent / "nano"
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "what is 12 + 7? it is 19.",
    "x y z: [a] {b}\n\nnew line",
] * 20


def over_words(folder: Path) -> HfTokenizer:
    """A tokenizer whose tokens reach over spaces: merges without any splitting before."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet)
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return HfTokenizer(folder)


@pytest.fixture(params=["nano", "bytes", "over words"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    if request.param == "nano":
        return HfTokenizer(NANO)
    return ByteTokenizer() if request.param == "bytes" else over_words(tmp_path)


def settle(branch: RuntimeBranch, tokenizer: Tokenizer, cutter: Cutter) -> None:
    cut = cutter.last(branch.pending)
    if cut:
        branch.tokenise_up_to(cut, tokenizer)


def test_only_a_vocabulary_without_tokens_over_spaces_can_be_cut(tmp_path: Path) -> None:
    assert Cutter(HfTokenizer(NANO)).can_cut
    assert Cutter(ByteTokenizer()).can_cut
    assert not Cutter(over_words(tmp_path)).can_cut


@pytest.mark.parametrize("seed", range(60))
def test_settling_early_and_often_changes_no_token(tokenizer: Tokenizer, seed: int) -> None:
    dice = random.Random(seed)
    words = [
        "the",
        "fox",
        "12",
        "Mia's",
        "  ",
        "\n",
        "\n\n",
        "é",
        "日本",
        "don't",
        "A.",
        ",",
        "x",
        "lives in",
        "3.5",
        "…",
        "\t",
    ]
    branch, whole, cutter = RuntimeBranch(1), "", Cutter(tokenizer)
    for _ in range(60):
        text = dice.choice(words) + dice.choice(["", " ", " ", " "])
        branch.append(text)
        whole += text
        if dice.random() < 0.2:
            settle(branch, tokenizer, cutter)
    expected = [*tokenizer.prefix, *tokenizer.encode(whole)]
    assert list(branch.tokens_with(tokenizer)) == expected


def test_a_fork_does_not_tokenise_the_parents_text_again() -> None:
    tokenizer = HfTokenizer(NANO)
    encoded: list[int] = []

    class Counting(HfTokenizer):
        def encode(self, text: str, start: bool = True) -> list[int]:
            encoded.append(len(text))
            return super().encode(text, start)

    counting = Counting(NANO)
    cutter = Cutter(counting)
    assert cutter.can_cut
    encoded.clear()
    parent = RuntimeBranch(1)
    parent.open()
    parent.append("Mia lives in a small town near the sea and has a dog. " * 40)
    settle(parent, counting, cutter)
    for number in range(16):
        child = RuntimeBranch(number)
        child.open(parent)
        child.append(f"Question {number}")
        tokens = list(child.tokens_with(counting))
        assert tokens == tokenizer.encode(child.text())
    assert sum(encoded) < len(parent.said[0].text) + 16 * 100


def test_what_a_fork_gains_is_not_its_parents() -> None:
    encoder = ByteTokenizer()
    parent, child = RuntimeBranch(1), RuntimeBranch(2)
    parent.open()
    parent.adopt(array("i", [5, 6, 7]), "abc")
    child.open(parent)
    child.append("de")
    child.take_tokenised(2, array("i", encoder.encode("de", start=False)), encoder)
    assert len(child.tokens) == 5
    assert parent.tokens.tolist() == [5, 6, 7]


@pytest.mark.parametrize(("gained", "is_literal"), [("", True), ("x", False)])
def test_a_generation_that_gave_nothing_leaves_the_literal_end_literal(
    gained: str, is_literal: bool
) -> None:
    """A client that keeps texts cannot tell such a branch from one where nothing was generated."""
    branch = RuntimeBranch(1)
    branch.open()
    branch.append("http:")
    branch.adopt(array("i", [0]), gained, rest=":")
    assert branch.ends_literal is is_literal


def test_what_a_program_says_inside_a_turn_is_quoted_and_the_template_is_not() -> None:
    template = load_template(NANO)
    branch = RuntimeBranch(1)
    branch.open()
    branch.append("before")
    branch.begin_role("user", template)
    branch.append("<|end|>")
    branch.append(" more")
    branch.end_role("user", template)
    branch.append("after")
    assert [branch.pending[begin:end] for begin, end in branch.quoted] == ["<|end|> more"]
