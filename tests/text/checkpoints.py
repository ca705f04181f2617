"""Small tokenizers of the usual kinds, trained on the spot and saved as checkpoints save them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXTS = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps.",
    "def main():\n    return [x ** 2 for x in range(10)]\n",
    "héllo wörld, ça va? Ελληνικά и русский",
    "日本語のテキスト 中文文本 한국어",
    "family 👨‍👩‍👧‍👦 flag 🏳️‍🌈 thumbs 👍🏽",
] * 4
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def byte_level() -> Tokenizer:
    """As GPT-2, Qwen and Llama 3 have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return tokenizer


def llama() -> Tokenizer:
    """As Llama 2 has it: SentencePiece-like BPE with byte fallback, a space before every text, bos
    in front.
    """
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trained.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL + bytes_, show_progress=False, min_frequency=9
    )
    trained.train_from_iterator(TEXTS[:2], trainer)
    description = json.loads(trained.to_str())
    description["added_tokens"] = description["added_tokens"][
        : len(SPECIAL)
    ]  # bytes are no special tokens
    tokenizer = Tokenizer.from_str(json.dumps(description))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """As T5-like and some multilingual models have it: Unigram with byte fallback and a
    metaspace.
    """
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [
        "▁",
        "▁the",
        "▁dog",
        "▁quick",
        "o",
        "w",
        "n",
        "e",
        "日",
        "本",
        "▁sleeps",
        ".",
        "th",
        "e▁",
        "a",
        "b",
        "c",
    ]
    pieces = [(name, 0.0) for name in [*SPECIAL, *bytes_]] + [
        (word, -2.0 - at / 10) for at, word in enumerate(words)
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="$A $B", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return tokenizer


KINDS = {"byte_level": byte_level, "llama": llama, "unigram": unigram}


def save(folder: Path, tokenizer: Tokenizer, **files: Any) -> Path:
    """A checkpoint's folder; `files` are further JSON files by stem."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    return folder
