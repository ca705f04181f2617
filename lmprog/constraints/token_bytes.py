"""Recovers the bytes of each token from a tokenizer's description.

Supports three families: byte-level BPE (every byte is written as a printable character),
SentencePiece with byte fallback (the meta space and `<0x0A>`), and tekken or tiktoken files (bytes
in base64). Special tokens have no bytes: no constraint ever allows them. Knows tokenizer files;
knows no tries.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_META_SPACE = "\u2581"
_EOS_NAMES = (
    "</s>",
    "<eos>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|end|>",
    "<end_of_turn>",
)


class HasJson(Protocol):
    """The part of `tokenizers.Tokenizer` that this module uses."""

    def to_str(self) -> str: ...


def vocabulary_of_tokenizer(
    source: str | Path | HasJson, eos_ids: Iterable[int] | None = None, size: int | None = None
) -> Vocabulary:
    """The vocabulary of a `tokenizer.json`, a tekken or tiktoken file, or a `tokenizers.Tokenizer`.

    With `eos_ids` None, end-of-sequence tokens are found by their usual names. `size` is the
    model's number of logits, if larger than the number of tokens. Raises ModelError for an unknown
    file format.
    """
    if not isinstance(source, str | Path):
        return _from_description(json.loads(source.to_str()), eos_ids, size)
    path = Path(source)
    if path.suffix == ".tiktoken":
        return _vocabulary(_tiktoken(path.read_text("ascii")), eos_ids or (), size)
    try:
        description = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path.name} is not a tokenizer file: {error}") from error
    if isinstance(description, dict) and isinstance(description.get("vocab"), list):
        return _from_tekken(description, eos_ids, size)
    return _from_description(description, eos_ids, size)


def _vocabulary(tokens: list[bytes | None], eos_ids: Iterable[int], size: int | None) -> Vocabulary:
    if size is not None:
        tokens = tokens[:size] + [None] * (size - len(tokens))
    return Vocabulary(tokens, [eos for eos in eos_ids if eos < len(tokens)])


def bytes_of_description(description: Mapping[str, Any]) -> list[bytes | None]:
    """The bytes of each token of a `tokenizer.json`; None for special tokens and unused ids."""
    model = description.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        raise ModelError("the tokenizer description has no model with a vocabulary")
    vocab = model["vocab"]
    names = (
        dict(vocab) if isinstance(vocab, dict) else {entry[0]: i for i, entry in enumerate(vocab)}
    )
    added = {entry["id"]: entry for entry in description.get("added_tokens", ())}
    count = 1 + max([*names.values(), *added], default=-1)
    tokens: list[bytes | None] = [None] * count
    decode = _byte_level if _is_byte_level(description) else _sentencepiece
    for name, token in names.items():
        tokens[token] = decode(name)
    for token, entry in added.items():
        tokens[token] = None if entry.get("special") else entry["content"].encode()
    return tokens


def _from_description(
    description: Mapping[str, Any], eos_ids: Iterable[int] | None, size: int | None
) -> Vocabulary:
    """The `tokenizer.json` of the tokenizers library."""
    tokens = bytes_of_description(description)
    if eos_ids is None:
        by_name = {entry["content"]: entry["id"] for entry in description.get("added_tokens", ())}
        eos_ids = [by_name[name] for name in _EOS_NAMES if name in by_name]
    return _vocabulary(tokens, eos_ids, size)


def _is_byte_level(description: Mapping[str, Any]) -> bool:
    """Whether any part of the pipeline is ByteLevel."""

    def kinds(part: Any) -> Iterable[str]:
        if isinstance(part, dict):
            yield str(part.get("type"))
            for name in ("pretokenizers", "decoders", "normalizers"):
                for inner in part.get(name) or ():
                    yield from kinds(inner)

    return any("ByteLevel" in kinds(description.get(name)) for name in ("pre_tokenizer", "decoder"))


@functools.cache
def _stand_ins() -> dict[str, int]:
    """The characters that byte-level BPE writes for bytes: printable Latin-1 characters stand for
    themselves, the other bytes start at U+0100.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


def _byte_level(name: str) -> bytes | None:
    letters = _stand_ins()
    if any(char not in letters for char in name):
        return name.encode()  # a token that was added as plain text
    return bytes(letters[char] for char in name)


def _sentencepiece(name: str) -> bytes | None:
    byte = _BYTE_TOKEN.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(_META_SPACE, " ").encode()


def _from_tekken(
    description: Mapping[str, Any], eos_ids: Iterable[int] | None, size: int | None
) -> Vocabulary:
    config = description["config"]
    num_special = int(config["default_num_special_tokens"])
    total = int(config["default_vocab_size"])
    entries: Sequence[Mapping[str, Any]] = description["vocab"]
    tokens: list[bytes | None] = [None] * num_special
    tokens += [base64.b64decode(entry["token_bytes"]) for entry in entries[: total - num_special]]
    if eos_ids is None:
        special = description.get("special_tokens") or ()
        named = [int(entry["rank"]) for entry in special if entry.get("token_str") == "</s>"]
        eos_ids = named or [2]  # the format's default if the file lists none
    return _vocabulary(tokens, eos_ids, size)


def _tiktoken(text: str) -> list[bytes | None]:
    pairs = [line.split() for line in text.splitlines() if line.strip()]
    tokens: list[bytes | None] = [None] * (1 + max(int(rank) for _, rank in pairs))
    for encoded, rank in pairs:
        tokens[int(rank)] = base64.b64decode(encoded)
    return tokens
