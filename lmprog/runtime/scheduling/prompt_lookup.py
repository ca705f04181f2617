"""Guesses how a text goes on: as it went on where its last tokens stood before.

Texts that quote, extract or edit repeat long stretches of their prompt, and so does a model that
goes round in circles. Knows token ids and nothing of models; keeps no index. Where the end of a
text is new, which one search of its bytes tells, a guess costs 1 us for a thousand tokens.
"""

from __future__ import annotations

from array import array

from lmprog.runtime.scheduling.draft_chances import SHORTEST
from lmprog.runtime.scheduling.drafts import Guess

LONGEST = 12
"""Of several places the one counts that has the most tokens before it in common, up to so many; of
equals the last one.
"""
MOST_INSIDE = 16
"""Places inside of tokens, where bytes are equal and tokens are not, that a search passes over."""


def continuation(tokens: array[int], most: int, evidence: int = SHORTEST) -> Guess:
    """The `most` tokens that would follow `tokens`; none where the last `evidence` of them are new.

    Where the repeated stretch reaches the end of `tokens`, it goes on in a circle.
    """
    place, length = _place(tokens, max(evidence, SHORTEST))
    if not length:
        return Guess(array("i"))
    period = len(tokens) - place
    found = tokens[place : place + most]
    while len(found) < most:
        found.extend(found[len(found) - period : len(found) - period + most - len(found)])
    return Guess(found, length)


def _place(tokens: array[int], length: int) -> tuple[int, int]:
    """Where what followed the tokens like the last `length` or more begins, and how many are like
    them; none are where these are new.
    """
    text, size = tokens.tobytes(), tokens.itemsize
    place = _last(text, length * size, size)
    if place < 0:
        return 0, 0
    too_long = LONGEST + 1
    while too_long - length > 1:  # what is found for some length is for all shorter ones
        middle = (length + too_long) // 2
        found = _last(text, middle * size, size)
        if found < 0:
            too_long = middle
        else:
            place, length = found, middle
    return place // size, length


def _last(text: bytes, length: int, size: int) -> int:
    """The end of the last earlier place of the last `length` bytes; -1 where there is none."""
    if length >= len(text):
        return -1
    wanted, end = text[-length:], len(text) - size
    for _ in range(MOST_INSIDE):
        at = text.rfind(wanted, 0, end)
        if at < 0:
            return -1
        if at % size == 0:
            return at + length
        end = at + length - 1
    return -1
