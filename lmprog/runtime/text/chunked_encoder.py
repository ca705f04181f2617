"""Encodes long texts in chunks and keeps the tokens of recent chunks.

A *cut* is a position in a text at which both parts can be tokenised by themselves: between a letter
and a space before a letter. Where no token of the vocabulary contains a letter and a space after
it, no merge crosses such a cut, so the two parts have the tokens of the whole. That is checked on
the vocabulary and tried on a few texts; with a tokenizer that fails either nothing is ever cut.

Programs that share a long beginning (instructions, examples) tokenise it once and not once each. A
chunk ends at the first cut after so many characters, which depends on nothing that comes later, so
texts with a common beginning have the same first chunks, and their tokens together are what
encoding in one piece gives.

A text without cuts is one part, however long. Who encodes such a part elsewhere (`encode_alone`,
in any thread) gives its tokens back (`keep_long`), and `encode` finds them.

Knows a tokenizer; knows no branch.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from lmprog.runtime.text.quoting import Span, split_spans
from lmprog.runtime.text.tokenizer import Tokenizer

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
    """Finds cuts for one tokenizer; reads its vocabulary on first use."""

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
    """A `TextEncoder` with the results of `tokenizer`."""

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
