"""Synthetic text of a wanted number of tokens, the same for the same seed.

Built from pieces that are one token each wherever they stand, so that a text has exactly as many
tokens as it has pieces and texts can be joined without their tokens changing. Knows a tokenizer;
knows no workload.
"""

from __future__ import annotations

import random
import re
import string

from lmprog.runtime.text.tokenizer import ByteTokenizer, HfTokenizer

_WORD = re.compile(r" [a-z]{2,}")
_NUM_TESTED = 300


class Pieces:
    """The pieces of one tokenizer: words with the space before them, or letters where each byte is
    a token.
    """

    def __init__(self, tokenizer: HfTokenizer | ByteTokenizer) -> None:
        spelled = ((token, tokenizer.decode([token])) for token in range(tokenizer.vocab_size))
        words = [
            text
            for token, text in spelled
            if _WORD.fullmatch(text) and tokenizer.encode(text) == [token]
        ]
        self.texts = words if len(words) >= 32 else list(string.ascii_lowercase)
        trial = random.Random(0).choices(self.texts, k=_NUM_TESTED)
        self.tokenizer = tokenizer
        if self.length("".join(trial)) != _NUM_TESTED:
            raise ValueError(
                "this tokenizer has no words that stay one token each when they are joined"
            )

    def length(self, text: str) -> int:
        """Tokens of a text."""
        return len(self.tokenizer.encode(text))


class Writer:
    """Seeded texts and numbers for one workload. `scale` multiplies sizes in tokens, `count`
    numbers of things.
    """

    def __init__(self, pieces: Pieces, seed: str, scale: float, count: float) -> None:
        self.pieces = pieces
        self._dice = random.Random(seed)
        self._scale = scale
        self._count = count

    def size(self, tokens: int) -> int:
        """A size in tokens, scaled; at least 1."""
        return max(1, round(tokens * self._scale))

    def number(self, things: int, least: int = 2) -> int:
        """How many of the page's `things` there are at this scale."""
        return min(things, max(least, round(things * self._count)))

    def text(self, low: int, high: int | None = None) -> str:
        """A text of `low` to `high` tokens before scaling."""
        return "".join(
            self._dice.choices(self.pieces.texts, k=self.size(self.between(low, high or low)))
        )

    def texts(self, number: int, low: int, high: int | None = None) -> list[str]:
        return [self.text(low, high) for _ in range(number)]

    def between(self, low: int, high: int) -> int:
        return self._dice.randint(low, high)

    def gaps(self, number: int, mean: float) -> list[float]:
        """Arrival times, in seconds, of a Poisson process with `mean` seconds between two
        arrivals.
        """
        times, now = [], 0.0
        for _ in range(number):
            times.append(now)
            now += self._dice.expovariate(1.0 / mean)
        return times
