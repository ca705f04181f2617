"""A tokenizer of given pieces: what a test needs to see where tokens end."""

from __future__ import annotations

from collections.abc import Sequence

from lmprog.runtime.text.tokenizer import ByteStream


class Words:
    """Tokens with the given bytes, the longest first; the last one ends a text, the one before it
    is special.
    """

    prefix: tuple[int, ...] = ()

    def __init__(self, *pieces: str | bytes) -> None:
        data = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.pieces: list[bytes | None] = [
            *dict.fromkeys([*data, *(bytes([one]) for one in range(256))]),
            None,
            None,
        ]
        self.ids = {piece: token for token, piece in enumerate(self.pieces) if piece}
        self.vocab_size = len(self.pieces)
        self.eos_ids: tuple[int, ...] = (self.vocab_size - 1,)

    def encode(self, text: str, start: bool = True) -> list[int]:
        data = text.encode()
        tokens: list[int] = []
        while data:
            if data.startswith(b"<turn>"):
                tokens, data = [*tokens, self.vocab_size - 2], data[6:]
                continue
            longest = max((piece for piece in self.ids if data.startswith(piece)), key=len)
            tokens.append(self.ids[longest])
            data = data[len(longest) :]
        return tokens

    def encode_quoting(
        self, text: str, quoted: Sequence[tuple[int, int]], start: bool = True
    ) -> list[int]:
        return self.encode(text, start)

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        return b"".join(self.pieces[token] or b"" for token in tokens).decode("utf-8", "replace")

    def token_text(self, token: int) -> str:
        return self.decode([token])

    def token_bytes(self, token: int) -> bytes | None:
        return self.pieces[token]

    def is_special(self, token: int) -> bool:
        return self.token_bytes(token) is None

    def stream(self) -> ByteStream:
        return ByteStream(self.pieces)
