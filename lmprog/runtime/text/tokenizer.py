"""Text to token ids and back: a checkpoint's own `tokenizer.json`, or plain bytes for tests and
models without files.

A token is a piece of *bytes*: decoding joins the bytes of tokens and reads them as UTF-8, so the
pieces of a stream, joined, are the decoding of all tokens. Special tokens have no bytes; they
are in no text unless decoded with `skip_special=False`. What the bytes of each token are is read
of the descriptions of byte-level BPE and SentencePiece tokenizers.

SentencePiece tokenizers put a space before a text. `start` says whether a text is at the
beginning of a sequence, where that space belongs to the encoding, or follows other tokens, where
it does not.

Long texts are encoded in chunks, and the tokens of recent chunks are kept (`ChunkedEncoder`).

Knows files and the tokenizers library; knows no model, no chat and no stop strings.
"""

from __future__ import annotations

import codecs
import json
import re
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import tokenizers

from lmprog.errors import ModelError
from lmprog.runtime.documents.checkpoint_documents import checkpoint_documents, json_document
from lmprog.runtime.text.quoting import Quoting, Span, encoding_of, split_spans, unquoted_matches

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
MOST_TOKENS = 1 << 22
"""Several times the largest vocabulary: a list of all ids is made."""
_META_SPACE = "\u2581"
_UNSUPPORTED = {"WordPiece", "BPEDecoder", "CTC"}


class TextEncoder(Protocol):
    """Turns text into tokens. All methods are pure."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """Tokens that the checkpoint puts before every text."""
        ...

    def encode(self, text: str, start: bool = True) -> list[int]:
        """Without prefix and suffix. `start` is false where the text follows other tokens: then no
        space is put before it. Names of special tokens in the text become these tokens.
        """
        ...

    def encode_quoting(self, text: str, quoted: Sequence[Span], start: bool = True) -> list[int]:
        """Like `encode`, but names of special tokens that touch a span of `quoted` are plain text.

        Raises NotSupported where the tokenizer has no other tokens for such a name.
        """
        ...


class Tokenizer(TextEncoder, Protocol):
    """What the runtime needs of a tokenizer. All methods are pure."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        """The text that these tokens add to a sequence; U+FFFD for invalid UTF-8."""
        ...

    def token_text(self, token: int) -> str: ...

    def token_bytes(self, token: int) -> bytes | None:
        """None for unknown ids and for special tokens that are not part of texts."""
        ...

    def is_special(self, token: int) -> bool:
        """Whether only a template may write it."""
        ...

    def stream(self) -> TextPieces: ...


class TextPieces(Protocol):
    """Turns tokens into text, whole characters only."""

    def push(self, token: int) -> str: ...


class ByteStream:
    """Decodes tokens one by one. The pieces and `finish`, joined, are `decode` of all tokens."""

    def __init__(self, pieces: Sequence[bytes | None]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that are complete now; bytes of an incomplete one are kept."""
        piece = self._pieces[token] if 0 <= token < len(self._pieces) else None
        return self._decoder.decode(piece) if piece else ""

    def finish(self) -> str:
        """U+FFFD where the text ends inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)

    def copy(self) -> ByteStream:
        """An independent stream that has read the same tokens."""
        other = ByteStream(self._pieces)
        other._decoder.setstate(self._decoder.getstate())
        return other


class PieceTokenizer:
    """Decoding by the bytes of tokens and the names of special ones, for every tokenizer here."""

    eos_ids: tuple[int, ...]

    def __init__(self, pieces: Sequence[bytes | None], special: dict[int, str]) -> None:
        self._pieces = pieces
        self._special = special
        self.shown: Mapping[int, str] = {}
        """The names of the special tokens that are part of texts."""

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
        """The name of a special token, the text of any other, "" for unknown ids."""
        piece = self.token_bytes(token)
        return self._special.get(token, "") if piece is None else piece.decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes | None:
        return self._pieces[token] if 0 <= token < len(self._pieces) else None

    def is_special(self, token: int) -> bool:
        return token in self._special or self.token_bytes(token) is None

    def show(self, texts: str) -> None:
        """From now on the special tokens named in `texts` are part of generated texts, by their
        names: the tags of a model's calls. They stay special in what users write. Those that end an
        answer stay hidden.
        """
        hidden = set(self.eos_ids)
        shown = {
            token: name.encode()
            for token, name in self._special.items()
            if name and name in texts and token not in hidden
        }
        self.shown = {token: name.decode() for token, name in shown.items()}
        self._pieces = [shown.get(token, piece) for token, piece in enumerate(self._pieces)]

    def stream(self) -> ByteStream:
        return ByteStream(self._pieces)


class ByteTokenizer(PieceTokenizer):
    """256 bytes and a few special tokens, for tests and for models without files."""

    SPECIAL = ("<bos>", "<eos>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")

    def __init__(self) -> None:
        special = {256 + index: name for index, name in enumerate(self.SPECIAL)}
        super().__init__(
            [*(bytes([byte]) for byte in range(256)), *(None for _ in special)], special
        )
        self._ids = {name: token for token, name in special.items()}
        self._borders = re.compile("(" + "|".join(re.escape(name) for name in self.SPECIAL) + ")")
        self.eos_ids = (self._ids["<eos>"], self._ids["<|end|>"])
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
        for found in unquoted_matches(self._borders, text, quoted):
            tokens += [*text[last : found.start()].encode("utf-8", "replace"), self._ids[found[0]]]
            last = found.end()
        return [*tokens, *text[last:].encode("utf-8", "replace")]


class HfTokenizer(PieceTokenizer):
    """The `tokenizer.json` of a checkpoint, a folder or a GGUF file. Raises ModelError where it is
    missing or unknown.
    """

    def __init__(self, folder: Path) -> None:
        text = checkpoint_documents(folder).text("tokenizer.json")
        if text is None:
            raise ModelError(
                f"{folder.name} has no tokenizer.json. Save the checkpoint with a fast tokenizer "
                "(transformers: AutoTokenizer.from_pretrained(...).save_pretrained(folder))."
            )
        config = json_document(folder, "tokenizer_config.json") or {}
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
            description: dict[str, Any] = json.loads(text)
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{folder.name}/tokenizer.json cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        with _understood(folder, "tokenizer_config.json"):
            _add_declared(self._tokenizer, config)
        with _understood(folder, "tokenizer.json"):
            super().__init__(*token_pieces(self._tokenizer, description))
            self._going_on = without_first_space(self._tokenizer, description)
        self.eos_ids = self._find_eos(folder, config)
        barred = {
            token: self._tokenizer.id_to_token(token) or ""
            for token in (*self._special, *self.eos_ids)
        }
        self._quoting = Quoting(
            self._tokenizer, self._going_on, barred, str(description["model"].get("unk_token"))
        )
        self.prefix: tuple[int, ...] = self._find_prefix(config)

    def encode(self, text: str, start: bool = True) -> list[int]:
        """See `Tokenizer.encode`."""
        return list(encoding_of(self._tokenizer if start else self._going_on, text).ids)

    def encode_quoting(self, text: str, quoted: Sequence[Span], start: bool = True) -> list[int]:
        return self._quoting.encode(text, quoted, start)

    def _find_eos(self, folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
        """Those of generation_config.json, else of config.json; and the tokenizer's own."""
        found: list[int] = []
        for name in ("generation_config.json", "config.json"):
            declared = json_document(folder, name) or {}
            inner = declared.get("text_config")
            value = declared.get(
                "eos_token_id", inner.get("eos_token_id") if isinstance(inner, dict) else None
            )
            if value is not None:
                with _understood(folder, name):
                    found = _token_ids(value if isinstance(value, list) else [value])
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


def first_difference(one: PieceTokenizer, other: PieceTokenizer) -> str | None:
    """How two vocabularies differ, in words; None where tokens mean the same in both."""
    sizes = one.vocab_size, other.vocab_size
    if sizes[0] != sizes[1]:
        return f"{sizes[0]:,} tokens and {sizes[1]:,}"
    for token in range(sizes[0]):
        texts = one.token_text(token), other.token_text(token)
        pieces = one.token_bytes(token), other.token_bytes(token)
        if texts != texts[::-1] or pieces != pieces[::-1]:
            return f"token {token} is {texts[0]!r} and {texts[1]!r}"
    return None


def load_tokenizer(folder: Path | None) -> HfTokenizer | ByteTokenizer:
    """The tokenizer of a checkpoint; bytes for a model that has no files (None)."""
    return ByteTokenizer() if folder is None else HfTokenizer(folder)


@contextmanager
def _understood(folder: Path, name: str) -> Iterator[None]:
    """Raises ModelError, which names the file, for content of another shape than it should have."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ModelError(f"{folder.name}/{name} cannot be understood: {error}") from error


def _token_ids(values: list[Any]) -> list[int]:
    """Negative ones mean that there is none."""
    wrong = [one for one in values if type(one) is not int or one >= MOST_TOKENS]
    if wrong:
        raise ValueError(f"{str(wrong[0])[:40]!r} is no token id")
    return [one for one in values if one >= 0]


def _token_name(value: Any) -> str | None:
    """A token's name, given as text or as an object with `content`."""
    name = value.get("content") if isinstance(value, dict) else value
    return name if isinstance(name, str) and name else None


def _add_declared(tokenizer: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
    """Adds tokens that only tokenizer_config.json declares, if they get the ids given there."""
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


SHORTEST = 64
"""Shorter texts, in characters, are not cut."""

_REACH = 1024
_CUT = re.compile(r"[A-Za-z] (?=[A-Za-z])")
_OVER_A_SPACE = re.compile(rb"[A-Za-z] ")
_PROBES = [
    ("Alpha", " beta gamma"),
    ("x", " y"),
    ("the end. So it", " was 12 and"),
    ("a\n\nb", " c\n"),
    ("é I", " am"),
]

CHUNK = 512
"""Characters after which a chunk ends at the next cut."""
MAX_CHUNK = 8 * CHUNK
"""Longer chunks, of texts with hardly any cut, are not kept."""
MAX_CHUNKS = 4096
"""Chunks kept, the most recently used ones: some megabytes."""
MAX_LONG_CHARS = 1_000_000
"""Characters of long parts that are kept: at most some twenty megabytes."""


class Cutter:
    """Finds cuts for one tokenizer; reads its vocabulary on first use.

    A *cut* is a position in a text at which both parts can be tokenised by themselves: between a
    letter and a space before a letter. Where no token of the vocabulary contains a letter and a
    space after it, no merge crosses such a cut, so the two parts have the tokens of the whole.
    That is checked on the vocabulary and tried on a few texts; with a tokenizer that fails either
    nothing is ever cut.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def last(self, text: str) -> int:
        """Length of the beginning of `text` whose tokens no later text changes; 0 for none."""
        if len(text) < SHORTEST or not self.can_cut:
            return 0
        last = 0
        for found in _CUT.finditer(text, max(0, len(text) - _REACH)):
            last = found.start() + 1
        return last

    def first(self, text: str, begin: int) -> int:
        """The first cut at `begin` or later; 0 for none."""
        found = _CUT.search(text, begin - 1) if self.can_cut else None
        return 0 if found is None else found.start() + 1

    @cached_property
    def can_cut(self) -> bool:
        """Whether no token contains a letter and a space after it."""
        tokenizer = self._tokenizer
        for token in range(tokenizer.vocab_size):
            piece = tokenizer.token_bytes(token)
            if piece is None:
                piece = tokenizer.token_text(
                    token
                ).encode()  # a special token's name, recognised in text
            if _OVER_A_SPACE.search(piece):
                return False
        encode = tokenizer.encode
        return all(encode(a + b) == encode(a) + encode(b, start=False) for a, b in _PROBES)


class TextPart(NamedTuple):
    """A part of a text that has the same tokens by itself."""

    text: str
    quoted: tuple[Span, ...]
    start: bool
    is_last: bool
    """What follows the last chunk: it has no cut, or is shorter than a chunk, and later text may
    change its tokens.
    """


class ChunkedEncoder:
    """A `TextEncoder` with the results of `tokenizer`.

    Programs that share a long beginning (instructions, examples) tokenise it once and not once
    each. A chunk ends at the first cut after so many characters, which depends on nothing that
    comes later, so texts with a common beginning have the same first chunks, and their tokens
    together are what encoding in one piece gives.

    A text without cuts is one part, however long. Who encodes such a part elsewhere
    (`encode_alone`, in any thread) gives its tokens back (`keep_long`), and `encode` finds them.
    """

    def __init__(self, tokenizer: Tokenizer, cutter: Cutter) -> None:
        self._tokenizer = tokenizer
        self.cutter = cutter
        self._chunks: OrderedDict[TextPart, array[int]] = OrderedDict()
        self._long: OrderedDict[TextPart, array[int]] = OrderedDict()

    @property
    def prefix(self) -> tuple[int, ...]:
        """See `Tokenizer`."""
        return self._tokenizer.prefix

    def encode(self, text: str, start: bool = True) -> list[int]:
        """See `Tokenizer`."""
        return self.encode_quoting(text, (), start)

    def encode_quoting(self, text: str, quoted: Sequence[Span], start: bool = True) -> list[int]:
        """See `Tokenizer`."""
        return list(chain.from_iterable(map(self.tokens, self.parts(text, quoted, start))))

    def parts(self, text: str, quoted: Sequence[Span], start: bool = True) -> Iterator[TextPart]:
        """The chunks of a text, each cut off when it is asked for, and what follows the last."""
        spans = tuple(quoted)
        begin = 0  # the rest is never copied: texts may have megabytes
        while len(text) - begin > CHUNK and (cut := self.cutter.first(text, begin + CHUNK)):
            inside, spans = split_spans(spans, cut - begin)
            yield TextPart(text[begin:cut], inside, start, is_last=False)
            start, begin = False, cut
        if begin < len(text):
            yield TextPart(text[begin:], spans, start, is_last=True)

    def tokens(self, part: TextPart) -> Sequence[int]:
        """Those that are kept, or else encoded now; a chunk of usual length is kept."""
        tokens = self.kept(part)
        if tokens is None:
            tokens = self.encode_alone(part)
            if not part.is_last and len(part.text) <= MAX_CHUNK:
                self._chunks[part] = tokens
                if len(self._chunks) > MAX_CHUNKS:
                    self._chunks.popitem(last=False)
        return tokens

    def kept(self, part: TextPart) -> array[int] | None:
        """The tokens of `part`, if they are kept."""
        kept = self._long if len(part.text) > MAX_CHUNK else self._chunks
        tokens = kept.get(part)
        if tokens is not None:
            kept.move_to_end(part)
        return tokens

    def encode_alone(self, part: TextPart) -> array[int]:
        """Encodes `part` and keeps nothing; may be called in any thread."""
        if part.quoted:
            return array("i", self._tokenizer.encode_quoting(part.text, part.quoted, part.start))
        return array("i", self._tokenizer.encode(part.text, part.start))

    def keep_long(self, part: TextPart, tokens: array[int]) -> None:
        """`tokens` are those of `part`; kept until `forget_long`."""
        self._long[part] = tokens

    def forget_long(self) -> None:
        """Of long parts, only the most recently used ones stay."""
        num_chars = 0
        for part in reversed(list(self._long)):
            num_chars += len(part.text)
            if num_chars > MAX_LONG_CHARS:
                del self._long[part]
