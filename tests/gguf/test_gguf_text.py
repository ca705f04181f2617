"""Tokenizer and chat template from a GGUF file's metadata: those of the folder it was made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

import lmprog
from lmprog.errors import ModelError
from lmprog.runtime.documents import checkpoint_documents
from lmprog.runtime.text.chat_template import load_template
from lmprog.runtime.text.tokenizer import HfTokenizer, load_tokenizer
from tests.gguf import writer
from tests.gguf.test_gguf_weights import quantized

TEXTS = (
    "Hello world, this is a test.",
    "don't I'LL you'Ve  double   spaces\n\n\ttabs",
    "12345 67 8.9 €100",
    "Größe naïve café 你好世界 日本語 😀👨‍👩‍👧",
    " leading and trailing ",
    "def f(x):\n    return x+1\n\n\n# comment",
    "<|im_start|>user\nhi<|im_end|>",
    "",
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PATTERNS = {
    "llama-bpe": checkpoint_documents._LLAMA3,
    "qwen2": checkpoint_documents._QWEN2,
    "gpt-4o": checkpoint_documents._GPT4O,
}


def file_with(tmp_path: Path, fields: dict[str, Any]) -> Path:
    content, _ = quantized("Q8_0", 1)
    content.tensors["token_embd.weight"] = writer.Tensor("F32", (2000, 1), bytes(8000))
    content.metadata.update(fields)
    return content.write(tmp_path / "model.gguf")


@pytest.fixture(scope="module", params=PATTERNS)
def byte_level(request: pytest.FixtureRequest) -> tuple[str, tokenizers.Tokenizer]:
    """A tokenizer as Llama 3 or Qwen 2 have it, trained on the texts above."""
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=request.param == "llama-bpe"))
    if request.param == "qwen2":
        made.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(tokenizers.Regex(PATTERNS[request.param]), "isolated")
    byte_pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([cut, byte_pieces])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([*TEXTS] * 3, trainer)
    return request.param, made


def test_texts_of_gpt_4o_are_cut_before_capitals_and_behind_contractions() -> None:
    cut = pre_tokenizers.Split(tokenizers.Regex(checkpoint_documents._GPT4O), "isolated")
    text = "HelloWorld don't SAY'll 12345 x//\n\n  y"
    wanted = ["Hello", "World", " don't", " SAY'll", " ", "123", "45", " x", "//\n\n", " ", " y"]
    assert [piece for piece, _ in cut.pre_tokenize_str(text)] == wanted


def byte_level_fields(pre: str, made: tokenizers.Tokenizer) -> dict[str, Any]:
    described = json.loads(made.to_str())
    tokens = sorted(described["model"]["vocab"].items(), key=lambda pair: pair[1])
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [name for name, _ in tokens],
        "tokenizer.ggml.token_type": [3 if name in SPECIAL else 1 for name, _ in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in described["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": writer.U32(0),
        "tokenizer.ggml.eos_token_id": writer.U32(2),
        "tokenizer.ggml.eot_token_id": writer.U32(1),
        "tokenizer.chat_template": TEMPLATE,
    }


def test_a_byte_level_tokenizer_is_the_folders(
    byte_level: tuple[str, tokenizers.Tokenizer], tmp_path: Path
) -> None:
    pre, made = byte_level
    path = file_with(tmp_path, byte_level_fields(pre, made))
    (tmp_path / "folder").mkdir()
    made.save(str(tmp_path / "folder" / "tokenizer.json"))
    theirs, ours = HfTokenizer(tmp_path / "folder"), load_tokenizer(path)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text), skip_special=False) == text
    assert ours.eos_ids == (2, 1)
    assert ours.prefix == ((0,) if pre == "llama-bpe" else ())
    assert [ours.token_bytes(token) for token in (0, 1, 2)] == [None] * 3


def test_the_chat_template_is_the_files_own(
    byte_level: tuple[str, tokenizers.Tokenizer], tmp_path: Path
) -> None:
    path = file_with(tmp_path, byte_level_fields(*byte_level))
    rendered = load_template(path).render([{"role": "user", "content": "hi"}])
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("prefixed", [True, False])
def test_sentencepiece_merges_follow_from_scores(prefixed: bool, tmp_path: Path) -> None:
    """The merge with the best score is made first, wherever it stands; what has no piece becomes
    bytes."""
    pieces = {"▁": -9.0, "a": -9.0, "b": -9.0, "c": -9.0, "ab": -3.0, "bc": -1.0, "abc": -7.0}
    pieces |= {"▁a": -2.5, "aa": -4.0}
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    names.append("<tool>")
    path = file_with(
        tmp_path,
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": names,
            "tokenizer.ggml.scores": [0.0] * 259 + [*pieces.values()] + [0.0],
            "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces), 4],
            "tokenizer.ggml.bos_token_id": writer.U32(1),
            "tokenizer.ggml.eos_token_id": writer.U32(2),
            "tokenizer.ggml.add_space_prefix": prefixed,
        },
    )
    ours = load_tokenizer(path)

    def split(text: str) -> list[str]:
        return [names[token] for token in ours.encode(text)]

    first = ["▁"] if prefixed else []
    assert split("bc") == [*first, "bc"]
    assert split("bab") == [*first, "b", "ab"]
    assert split("cabc") == [*first, "c", "abc"]
    assert split("aaa") == (["▁a", "aa"] if prefixed else ["aa", "a"])
    assert split("b é<tool>b") == [*first, "b", "▁", "<0xC3>", "<0xA9>", "<tool>", *first, "b"]
    assert ours.prefix == (1,)
    assert ours.eos_ids == (2,)
    assert ours.decode(ours.encode("ab c", start=False)) == "ab c"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer.ggml.model": "bert"}, "the kind 'bert'"),
        ({"tokenizer.ggml.pre": "chinchilla"}, "tokenizer.ggml.pre = 'chinchilla'"),
        ({"tokenizer.ggml.merges": ["a b c"]}, "not two pieces"),
        ({"tokenizer.ggml.merges": ["no where"]}, "cannot be read"),
        ({"tokenizer.ggml.token_type": [1]}, "no type for each"),
        ({"tokenizer.ggml.tokens": writer.U32(7)}, "no tokens"),
    ],
)
def test_a_tokenizer_that_is_not_understood_is_refused_with_the_reason(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = file_with(tmp_path, writer.byte_vocabulary(["<end>"]) | change)
    with pytest.raises(ModelError, match=reason):
        load_tokenizer(path)


def test_a_runtime_serves_a_gguf_file(tmp_path: Path) -> None:
    content, _ = quantized("Q8_0", 1)
    fields = writer.byte_vocabulary()
    fields["tokenizer.ggml.tokens"] = fields["tokenizer.ggml.tokens"][:160]
    fields["tokenizer.ggml.token_type"] = [1] * 160
    content.metadata.update(fields)
    path = content.write(tmp_path / "small.gguf")

    @lmprog.function
    def say(s: lmprog.State) -> str:
        s += "ab"
        return str(s.gen(max_tokens=5, temperature=0, ignore_eos=True))

    with lmprog.Runtime(model=str(path), kv_memory_mb=8) as runtime:
        first = say.run(backend=runtime)
        assert first.usage.generated == 5
        assert say.run(backend=runtime).value == first.value
