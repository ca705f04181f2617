"""Tokenise and decode requests, and the longest text that is tokenised at all.

Tokenising takes time in proportion to a text, and the runtime is one thread: a text that cannot fit
is refused after its beginning. Knows the tokenizer and two numbers of the model; knows no branches
and no calls.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property

from lmprog import wire
from lmprog.errors import ContextOverflow, InvalidParameter
from lmprog.runtime.text.special_tokens import SpecialTokenGuard
from lmprog.runtime.text.tokenizer import Tokenizer

_CHARS_PER_TOKEN = 4
"""Usual length of an English token, for the length of the beginning that is tried."""
_LEAST_PROBE = 16_384  # characters that are always tokenised
_SLACK = 16
"""Tokens by which a cut text may have more than the same text going on: merges over the cut."""


class TextService:
    """Tokenises within limits. `longest`: the most tokens of one sequence."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, longest: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._longest = longest
        self._probe = max(_LEAST_PROBE, _CHARS_PER_TOKEN * longest)

    @cached_property
    def guard(self) -> SpecialTokenGuard:
        """Knows the names of special tokens. Made on first use."""
        tokenizer = self._tokenizer
        special = filter(tokenizer.is_special, range(tokenizer.vocab_size))
        return SpecialTokenGuard(
            map(tokenizer.token_text, [*special, *tokenizer.eos_ids]), self.check_length
        )

    def check_length(self, text: str, what: str = "the text") -> None:
        """Raises `ContextOverflow` for a text of more tokens than fit; tokenises little more."""
        size = self._probe
        while size < len(text):
            count = len(self._tokenizer.encode(text[:size]))
            if count > self._longest + _SLACK:
                raise self._overflow(what, len(text), size, count)
            size *= 4

    def overflow_after(self, length: int, size: int, count: int) -> ContextOverflow | None:
        """What `check_length` raises for a text whose first `size` characters are `count` tokens;
        None where more of it must be tokenised.
        """
        if self._probe <= size < length and count > self._longest + _SLACK:
            return self._overflow("the text", length, size, count)
        return None

    def _overflow(self, what: str, length: int, size: int, count: int) -> ContextOverflow:
        return ContextOverflow(
            f"{what} is {length:,} characters long, and already its first {size:,} are "
            f"{count:,} tokens, more than the {self._longest:,} that fit. Shorten it.",
            prompt=count,
            max_tokens=None,
            limit=self._longest,
        )

    def check_ids(self, ids: Sequence[int], name: str) -> None:
        """Raises `InvalidParameter` for the first id that the model does not have."""
        size = self._vocab_size
        if ids and max(ids) >= size:
            wrong = next(token for token in ids if token >= size)
            raise InvalidParameter(
                f"{name} names token {wrong}, and the model's tokens go from 0 to {size - 1:,}.",
                name=name,
                value=wrong,
                allowed=f"0..{size - 1}",
            )

    def spellings(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """The tokens of each word inside a text: by itself, and after a space. Raises
        `InvalidParameter` for a word that has none.
        """
        found: list[tuple[int, ...]] = []
        for word in words:
            bare = word.lstrip(" ") or word
            for text in (bare, " " + bare):
                tokens = tuple(self._tokenizer.encode(text, start=False))
                self.check_ids(tokens, "bad_words")
                if not tokens:
                    raise InvalidParameter(
                        f"bad_words has {word!r}, and the model has no tokens for it.",
                        name="bad_words",
                        value=word,
                        allowed="texts that have tokens",
                    )
                found.append(tokens)
        return found

    def tokens_of(self, piece: wire.TokensPiece) -> tuple[array[int], str]:
        """Token ids given instead of text: as they are, and their text. Raises `ContextOverflow`
        for more than fit, before they are decoded.
        """
        self.check_ids(piece.ids, "input_ids")
        if (count := len(piece.ids)) > self._longest:
            raise ContextOverflow(
                f"{count:,} tokens are given, more than the {self._longest:,} that fit. Give less.",
                prompt=count,
                max_tokens=None,
                limit=self._longest,
            )
        return array("i", piece.ids), self._tokenizer.decode(piece.ids)

    def encode(self, op: wire.Encode) -> wire.TokensAre:
        """The tokens of a branch with this text alone; without prefix where `op` says so."""
        self.check_length(op.text)
        return self.encoded(op, self._tokenizer.encode(op.text))

    def encoded(self, op: wire.Encode, tokens: Sequence[int]) -> wire.TokensAre:
        """The reply, where `tokens` are those of the text."""
        prefix = self._tokenizer.prefix
        if op.prefix and tuple(tokens[: len(prefix)]) != prefix:
            tokens = [*prefix, *tokens]
        return wire.TokensAre(op.call, tuple(tokens))

    def decode(self, op: wire.Decode) -> wire.TextIs:
        self.check_ids(op.tokens, "tokens")
        return wire.TextIs(
            op.call, self._tokenizer.decode(op.tokens, skip_special=not op.special), len(op.tokens)
        )
