"""A source of drafts for tests: it knows the texts, and makes mistakes."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable

from lmprog.runtime.scheduling.drafting import Guess

Source = Callable[["array[int]", int, int], Guess]


def knowing(texts: Iterable[list[int]], right: float, seed: int = 1) -> Source:
    """Drafts how the first text goes on that begins with the tokens; each token is right with the
    chance `right`.
    """
    dice, known = random.Random(seed), list(texts)

    def source(tokens: array[int], most: int, evidence: int) -> Guess:
        begin = list(tokens)
        for text in known:
            if text[: len(begin)] == begin:
                rest = text[len(begin) : len(begin) + dice.randint(1, most)]
                guessed = [token if dice.random() < right else 1 - min(1, token) for token in rest]
                return Guess(guessed)
        return Guess(())

    return source
