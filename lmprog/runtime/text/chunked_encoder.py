"""Encodes long texts in chunks and keeps the tokens of recent chunks.

Programs that share a long beginning (instructions, examples) tokenise it once and not once each. A
chunk ends at the first cut (`cuts.py`) after so many characters, which depends on nothing that
comes later, so texts with a common beginning have the same first chunks. At a cut both parts have
the tokens of the whole, so the result is what encoding in one piece gives.

Knows a tokenizer; knows no branch.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lmprog.runtime.text.cuts import Cutter
from lmprog.runtime.text.quoting import Span, split_spans
from lmprog.runtime.text.tokenizer import Tokenizer

CHUNK = 512
"""Characters after which a chunk ends at the next cut."""
MAX_CHUNK = 8 * CHUNK
"""Longer chunks, of texts with hardly any cut, are not kept."""
MAX_CHUNKS = 4096
"""Chunks kept, the most recently used ones: some megabytes."""


class EncodedChunk(NamedTuple):
    """A chunk of a text and its tokens."""

    end: int
    """Where it ends in the text."""
    tokens: Sequence[int]
    num_encoded: int
    """Characters that had to be encoded for it; 0 where its tokens were kept."""


class ChunkedEncoder:
    """A `TextEncoder` with the results of `tokenizer`."""

    def __init__(self, tokenizer: Tokenizer, cutter: Cutter) -> None:
        self._tokenizer = tokenizer
        self._cutter = cutter
        self._chunks: OrderedDict[tuple[str, tuple[Span, ...], bool], array[int]] = OrderedDict()

    @property
    def prefix(self) -> tuple[int, ...]:
        """See `Tokenizer`."""
        return self._tokenizer.prefix

    def encode(self, text: str, start: bool = True) -> list[int]:
        """See `Tokenizer`."""
        return self.encode_quoting(text, (), start)

    def encode_quoting(self, text: str, quoted: Sequence[Span], start: bool = True) -> list[int]:
        """See `Tokenizer`."""
        tokens: list[int] = []
        begin = 0
        for chunk in self.chunks(text, quoted, start):
            tokens += chunk.tokens
            begin = chunk.end
        if begin < len(text):
            rest = split_spans(quoted, begin)[1]
            tokens += self._encode(text[begin:], rest, start and not begin)
        return tokens

    def chunks(
        self, text: str, quoted: Sequence[Span], start: bool = True
    ) -> Iterator[EncodedChunk]:
        """One chunk after the other, each encoded when it is asked for. What follows the last one
        is not encoded: it has no cut, or is shorter than a chunk.
        """
        spans = tuple(quoted)
        begin = 0  # the rest is never copied: texts may have megabytes
        while len(text) - begin > CHUNK and (cut := self._cutter.first(text, begin + CHUNK)):
            inside, spans = split_spans(spans, cut - begin)
            tokens, num_encoded = self._chunk(text[begin:cut], inside, start)
            yield EncodedChunk(cut, tokens, num_encoded)
            start, begin = False, cut

    def has_chunk(self, text: str) -> bool:
        """Whether `chunks` gives any."""
        return len(text) > CHUNK and self._cutter.first(text, CHUNK) > 0

    def _chunk(
        self, chunk: str, quoted: tuple[Span, ...], start: bool
    ) -> tuple[Sequence[int], int]:
        """Its tokens, and how many characters had to be encoded."""
        if len(chunk) > MAX_CHUNK:
            return self._encode(chunk, quoted, start), len(chunk)
        key = (chunk, quoted, start)
        tokens = self._chunks.get(key)
        if tokens is not None:
            self._chunks.move_to_end(key)
            return tokens, 0
        tokens = self._chunks[key] = array("i", self._encode(chunk, quoted, start))
        if len(self._chunks) > MAX_CHUNKS:
            self._chunks.popitem(last=False)
        return tokens, len(chunk)

    def _encode(self, text: str, quoted: tuple[Span, ...], start: bool) -> list[int]:
        if quoted:
            return self._tokenizer.encode_quoting(text, quoted, start)
        return self._tokenizer.encode(text, start)
