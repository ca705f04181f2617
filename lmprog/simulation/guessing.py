"""Drafts for the simulation: what the fake model would say next, with mistakes.

The fake model never repeats itself, so that nothing could be looked up. Knows the model and dice.
"""

from __future__ import annotations

import random
from array import array

from lmprog.runtime.scheduling.drafting import Guess
from lmprog.simulation.fake_engine import Reference

MOST = 5


class GuessingSource:
    """A `DraftSource`. `right` is the chance that a token is what the model finds likeliest."""

    def __init__(self, vocab_size: int, dice: random.Random, right: float) -> None:
        self._vocab_size = vocab_size
        self._dice = dice
        self._right = right

    def __call__(self, tokens: array[int], most: int, evidence: int) -> Guess:
        dice, reference = self._dice, Reference(tokens, self._vocab_size)
        guessed: list[int] = []
        for _ in range(min(most, dice.randint(0, MOST))):
            token = dice.randrange(self._vocab_size)
            if dice.random() < self._right:
                token = int(reference.logits().argmax())
            guessed.append(token)
            reference.append(token)
        return Guess(guessed)
