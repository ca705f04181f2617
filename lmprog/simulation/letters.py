"""A tokenizer in which one letter is one token, so that an oracle needs only text or tokens."""

from __future__ import annotations

from collections.abc import Sequence

from lmprog.runtime.text.tokenizer import ByteStream

ALPHABET = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.,:;!?"
"""Token i is letter i; the token after the last letter ends a text."""
_TOKENS = {letter: token for token, letter in enumerate(ALPHABET)}
_OTHER = _TOKENS["?"]
_PIECES = [*(letter.encode() for letter in ALPHABET), None]


class LetterTokenizer:
    """See `runtime.tokenizer.Tokenizer`. Other characters become question marks."""

    vocab_size = len(ALPHABET) + 1
    eos_ids = (len(ALPHABET),)
    prefix: tuple[int, ...] = ()

    def encode(self, text: str, start: bool = True) -> list[int]:
        return [_TOKENS.get(letter, _OTHER) for letter in text]

    def encode_quoting(
        self, text: str, quoted: Sequence[tuple[int, int]], start: bool = True
    ) -> list[int]:
        return self.encode(text, start)

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        return "".join(
            self.token_text(token)
            for token in tokens
            if token not in self.eos_ids or not skip_special
        )

    def token_text(self, token: int) -> str:
        return ALPHABET[token] if token < len(ALPHABET) else "<end>"

    def token_bytes(self, token: int) -> bytes | None:
        return _PIECES[token] if token < len(_PIECES) else None

    def is_special(self, token: int) -> bool:
        return self.token_bytes(token) is None

    def stream(self) -> ByteStream:
        return ByteStream(_PIECES)
