"""Text to token ids and back: the checkpoint's own `tokenizer.json`, or plain bytes for tests and
models without files.

A token is a piece of *bytes*: decoding joins the bytes of tokens and reads the whole as UTF-8, so
what a stream gives piece by piece is what decoding everything gives. Special tokens have no bytes;
no text ever contains them unless it is asked for with `skip_special=False`.

Texts of SentencePiece checkpoints begin with a space that nobody wrote. `start` says whether a text
stands at the beginning of a sequence, where that space belongs to the encoding, or goes on after
other tokens, where it does not.

Knows files and the tokenizers library; knows no model, no chat and no stop strings.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from lmprog.errors import ModelError
from lmprog.runtime.text.quoting import Quoting, Span, standing

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_META_SPACE = "\u2581"


class Tokenizer(Protocol):
    """What the runtime asks of a tokenizer. All methods are pure."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    @property
    def prefix(self) -> tuple[int, ...]:
        """What the checkpoint puts before every text; () where nothing."""
        ...

    def encode(self, text: str, start: bool = True) -> list[int]:
        """Without prefix and suffix. `start` False: the text goes on after other tokens, and a
        space that this kind of tokenizer puts before a text does not belong there. Special tokens
        written in the text become themselves."""
        ...

    def encode_quoting(self, text: str, quoted: Sequence[Span], start: bool = True) -> list[int]:
        """Like `encode`, but a special token that touches a stretch of `quoted` is text. Raises
        NotSupported where the tokenizer cannot write it so."""
        ...

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        """The text that these tokens add to what stands before them; U+FFFD for bytes that are no
        UTF-8.
        """
        ...

    def token_text(self, token: int) -> str: ...

    def token_bytes(self, token: int) -> bytes | None:
        """None for special tokens and for ids that the tokenizer does not have."""
        ...

    def stream(self) -> TextPieces: ...


class TextPieces(Protocol):
    """Tokens in, text out: only whole characters."""

    def push(self, token: int) -> str: ...


class ByteStream:
    """Decodes tokens one by one. The pieces and `finish`, joined, are `decode` of all tokens."""

    def __init__(self, pieces: Sequence[bytes | None]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that are complete now; bytes that may still become one are kept."""
        piece = self._pieces[token] if 0 <= token < len(self._pieces) else None
        return self._decoder.decode(piece) if piece else ""

    def finish(self) -> str:
        """U+FFFD where the text ends inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)

    def copy(self) -> ByteStream:
        """A stream that has read the same tokens, and goes its own way."""
        other = ByteStream(self._pieces)
        other._decoder.setstate(self._decoder.getstate())
        return other


class _Pieces:
    """What every tokenizer here does alike once it knows the bytes of its tokens and the names of
    its special ones.
    """

    def __init__(self, pieces: Sequence[bytes | None], special: dict[int, str]) -> None:
        self._pieces = pieces
        self._special = special

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        return b"".join(self._spelled(tokens, skip_special)).decode("utf-8", "replace")

    def _spelled(self, tokens: Sequence[int], skip_special: bool) -> Iterator[bytes]:
        for token in tokens:
            piece = self.token_bytes(token)
            if piece is not None:
                yield piece
            elif not skip_special:
                yield self._special.get(token, "").encode()

    def token_text(self, token: int) -> str:
        """The name of a special token, the text of any other (U+FFFD for parts of characters), ""
        for unknown ids.
        """
        piece = self.token_bytes(token)
        return self._special.get(token, "") if piece is None else piece.decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes | None:
        return self._pieces[token] if 0 <= token < len(self._pieces) else None

    def stream(self) -> ByteStream:
        return ByteStream(self._pieces)


class ByteTokenizer(_Pieces):
    """256 bytes and a few special tokens. For tests, and for models that have no files."""

    SPECIAL = ("<bos>", "<eos>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")

    def __init__(self) -> None:
        special = {256 + index: name for index, name in enumerate(self.SPECIAL)}
        super().__init__(
            [*(bytes([byte]) for byte in range(256)), *(None for _ in special)], special
        )
        self._ids = {name: token for token, name in special.items()}
        self._borders = re.compile("(" + "|".join(re.escape(name) for name in self.SPECIAL) + ")")
        self.eos_ids: tuple[int, ...] = (self._ids["<eos>"], self._ids["<|end|>"])
        self.prefix: tuple[int, ...] = (self._ids["<bos>"],)

    def encode(self, text: str, start: bool = True) -> list[int]:
        tokens: list[int] = []
        for part in self._borders.split(text):
            tokens.extend(
                [self._ids[part]] if part in self._ids else part.encode("utf-8", "replace")
            )
        return tokens

    def encode_quoting(self, text: str, quoted: Sequence[Span], start: bool = True) -> list[int]:
        tokens: list[int] = []
        last = 0
        for found in standing(self._borders, text, quoted):
            tokens += [*text[last : found.start()].encode("utf-8", "replace"), self._ids[found[0]]]
            last = found.end()
        return [*tokens, *text[last:].encode("utf-8", "replace")]


class HfTokenizer(_Pieces):
    """The `tokenizer.json` of a checkpoint's folder. Raises ModelError where it is missing or of an
    unknown kind.
    """

    def __init__(self, folder: Path) -> None:
        description = _read_json(folder / "tokenizer.json")
        if description is None:
            raise ModelError(
                f"{folder.name} has no tokenizer.json. Save the checkpoint with a fast tokenizer "
                "(transformers: AutoTokenizer.from_pretrained(...).save_pretrained(folder))."
            )
        config = _read_json(folder / "tokenizer_config.json") or {}
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises bare Exception: this is its border
            raise ModelError(f"{folder.name}/tokenizer.json cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        _add_declared(self._tokenizer, config)
        super().__init__(*_spell(self._tokenizer, description))
        self._going_on = _without_first_space(self._tokenizer, description)
        self.eos_ids: tuple[int, ...] = self._find_eos(folder, config)
        barred = {
            token: self._tokenizer.id_to_token(token) or ""
            for token in (*self._special, *self.eos_ids)
        }
        self._quoting = Quoting(
            self._tokenizer, self._going_on, barred, str(description["model"].get("unk_token"))
        )
        self.prefix: tuple[int, ...] = self._find_prefix(config)

    def encode(self, text: str, start: bool = True) -> list[int]:
        """`start` False: the text goes on after other tokens, so no space is put before it."""
        tokenizer = self._tokenizer if start else self._going_on
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_quoting(self, text: str, quoted: Sequence[Span], start: bool = True) -> list[int]:
        return self._quoting.encode(text, quoted, start)

    def _find_eos(self, folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
        """Those of generation_config.json, else of config.json, and the tokenizer's own."""
        found: list[int] = []
        for name in ("generation_config.json", "config.json"):
            declared = _read_json(folder / name) or {}
            inner = declared.get("text_config")
            value = declared.get(
                "eos_token_id", inner.get("eos_token_id") if isinstance(inner, dict) else None
            )
            if value is not None:
                found = [int(token) for token in (value if isinstance(value, list) else [value])]
                break
        name_of_eos = _token_name(config.get("eos_token"))
        own = self._tokenizer.token_to_id(name_of_eos) if name_of_eos else None
        return tuple(dict.fromkeys([*found, *([] if own is None else [own])]))

    def _find_prefix(self, config: dict[str, Any]) -> tuple[int, ...]:
        """What the post-processor puts before a probe, unless tokenizer_config.json has
        `add_bos_token`.
        """
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        framed = self._tokenizer.encode("a").ids
        starts = (at for at in range(len(framed)) if framed[at : at + len(plain)] == plain)
        prefix = tuple(framed[: next(starts, 0)])
        bos_name = _token_name(config.get("bos_token"))
        bos = self._tokenizer.token_to_id(bos_name) if bos_name else None
        if bos is None or not isinstance(config.get("add_bos_token"), bool):
            return prefix
        without = prefix[1:] if prefix[:1] == (bos,) else prefix
        return (bos, *without) if config["add_bos_token"] else without


def load_tokenizer(folder: Path | None) -> HfTokenizer | ByteTokenizer:
    """The tokenizer of a checkpoint; bytes for a model that has no files (None)."""
    return ByteTokenizer() if folder is None else HfTokenizer(folder)


def _read_json(path: Path) -> dict[str, Any] | None:
    """None where there is no such file."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path.parent.name}/{path.name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path.parent.name}/{path.name} is no JSON object")
    return value


def _token_name(value: Any) -> str | None:
    """A token is written as its text, or as an object with its `content`."""
    name = value.get("content") if isinstance(value, dict) else value
    return name if isinstance(name, str) and name else None


def _add_declared(tokenizer: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
    """Adds tokens that only tokenizer_config.json declares, as long as they get the ids that it
    gives them.
    """
    declared = config.get("added_tokens_decoder")
    if not isinstance(declared, dict):
        return
    for token, entry in sorted((int(token), entry) for token, entry in declared.items()):
        name = _token_name(entry)
        if (
            name is None
            or tokenizer.token_to_id(name) is not None
            or tokenizer.id_to_token(token) is not None
        ):
            continue
        if token == tokenizer.get_vocab_size(with_added_tokens=True):
            tokenizer.add_tokens(
                [tokenizers.AddedToken(name, normalized=False, special=bool(entry.get("special")))]
            )


def _spell(
    tokenizer: tokenizers.Tokenizer, description: dict[str, Any]
) -> tuple[list[bytes | None], dict[int, str]]:
    """The bytes of each token, and the names of the special ones."""
    spell = _spelling(description)
    names: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    pieces: list[bytes | None] = [None] * (1 + max(names.values(), default=-1))
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
    """How this tokenizer writes bytes: a function from a token's name to its bytes."""
    parts = [*_parts(description.get("pre_tokenizer")), *_parts(description.get("decoder"))]
    kinds = {str(part.get("type")) for part in parts}
    if "ByteLevel" in kinds:
        letters = _byte_letters()
        return lambda name: _byte_level_bytes(name, letters)
    if kinds & {"WordPiece", "BPEDecoder", "CTC"}:
        raise ModelError(
            f"tokenizers that decode by {sorted(kinds & {'WordPiece', 'BPEDecoder', 'CTC'})[0]} are not supported: "
            "their tokens are no pieces of text. Byte-level BPE and SentencePiece ones are."
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
    """Byte-level BPE writes printable Latin-1 for itself, the other bytes as letters from U+0100
    on.

    From letter to byte. What stands for no byte goes to a letter that Latin-1 does not have.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stray = dict.fromkeys(others, ord(_META_SPACE))
    return stray | {256 + at: byte for at, byte in enumerate(others)}


def _parts(part: Any) -> Iterable[dict[str, Any]]:
    """A component of a description and all components inside it."""
    if isinstance(part, dict):
        yield part
        for name in ("pretokenizers", "decoders", "normalizers"):
            for inner in part.get(name) or ():
                yield from _parts(inner)


def _without_first_space(
    tokenizer: tokenizers.Tokenizer, description: dict[str, Any]
) -> tokenizers.Tokenizer:
    """The same tokenizer, but one that puts no space before a text; itself where it never does."""
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
