"""How a `tokenizer.json` spells its tokens: the bytes of each, and the space before a text.

Reads descriptions of byte-level BPE and SentencePiece tokenizers. Knows no files and encodes
nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import tokenizers

from lmprog.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
MOST_TOKENS = 1 << 22
"""Several times the largest vocabulary: a list of all ids is made."""
_META_SPACE = "\u2581"
_UNSUPPORTED = {"WordPiece", "BPEDecoder", "CTC"}


def token_pieces(
    tokenizer: tokenizers.Tokenizer, description: dict[str, Any]
) -> tuple[list[bytes | None], dict[int, str]]:
    """The bytes of each token, and the names of the special ones."""
    spell = _spelling(description)
    names: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    highest = max(names.values(), default=-1)
    if highest >= MOST_TOKENS:
        raise ModelError(f"a token has the id {highest:,}; ids must be below {MOST_TOKENS:,}.")
    pieces: list[bytes | None] = [None] * (1 + highest)
    for name, token in names.items():
        pieces[token] = spell(name)
    special: dict[int, str] = {}
    unknown = description["model"].get("unk_token")
    if isinstance(unknown, str) and unknown in names:
        special[names[unknown]] = unknown
    for token, added in tokenizer.get_added_tokens_decoder().items():
        pieces[token] = added.content.encode()
        if added.special:
            special[token] = added.content
    for token in special:
        pieces[token] = None
    return pieces, special


def _spelling(description: dict[str, Any]) -> Callable[[str], bytes]:
    """The function from a token's name to its bytes."""
    parts = [*_parts(description.get("pre_tokenizer")), *_parts(description.get("decoder"))]
    kinds = {str(part.get("type")) for part in parts}
    if "ByteLevel" in kinds:
        letters = _byte_letters()
        return lambda name: _byte_level_bytes(name, letters)
    if kinds & _UNSUPPORTED:
        raise ModelError(
            f"tokenizers of the kind {sorted(kinds & _UNSUPPORTED)[0]} are not supported: their "
            "tokens are not pieces of text. Byte-level BPE and SentencePiece tokenizers are."
        )
    return _sentencepiece_bytes


def _sentencepiece_bytes(name: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(name) if name.startswith("<0x") else None
    return bytes([int(byte[1], 16)]) if byte else name.replace(_META_SPACE, " ").encode()


def _byte_level_bytes(name: str, letters: dict[int, int]) -> bytes:
    try:
        return name.translate(letters).encode("latin-1")
    except UnicodeEncodeError:
        return name.encode()  # a token that was added as plain text


def _byte_letters() -> dict[int, int]:
    """From letter to byte: byte-level BPE writes printable Latin-1 as it is and the other bytes as
    letters from U+0100 on. A letter that is no byte goes to one outside Latin-1.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    invalid = dict.fromkeys(others, ord(_META_SPACE))
    return invalid | {256 + at: byte for at, byte in enumerate(others)}


def _parts(part: Any) -> Iterable[dict[str, Any]]:
    """A component of a description and all components inside it."""
    if isinstance(part, dict):
        yield part
        for name in ("pretokenizers", "decoders", "normalizers"):
            for inner in part.get(name) or ():
                yield from _parts(inner)


def without_first_space(
    tokenizer: tokenizers.Tokenizer, description: dict[str, Any]
) -> tokenizers.Tokenizer:
    """The same tokenizer without a space before texts; itself where it never puts one."""
    found = False
    for part in [*_parts(description.get("normalizer")), *_parts(description.get("pre_tokenizer"))]:
        if part.get("type") == "Prepend" and part.get("prepend"):
            part["prepend"], found = "", True
        elif part.get("type") == "Metaspace" and part.get("prepend_scheme", "always") != "never":
            part["prepend_scheme"], found = "never", True
            part.pop("add_prefix_space", None)
        elif part.get("type") == "ByteLevel" and part.get("add_prefix_space"):
            part["add_prefix_space"], found = False, True
    if not found:
        return tokenizer
    description["added_tokens"] = json.loads(tokenizer.to_str())["added_tokens"]
    other = tokenizers.Tokenizer.from_str(json.dumps(description))
    other.no_truncation()
    other.no_padding()
    return other
