"""Guesses how a text goes on: as it went on where its last tokens stood before.

Texts that quote, extract or edit repeat long stretches of their prompt, and so does a model that
goes round in circles. Knows token ids and nothing of models; a guess costs a few passes over the
tokens in numpy and keeps no index.
"""

from __future__ import annotations

from array import array

import numpy as np

SHORTEST = 2
"""Tokens that must have stood there before: one alone says too little."""
LONGEST = 12
"""Of several places the one counts that has the most tokens before it in common, up to so many; of
equals the last one.
"""


def continuation(tokens: array[int], most: int) -> array[int]:
    """The `most` tokens that would follow `tokens`; none where their end is new.

    Where the repeated stretch reaches the end of `tokens`, it goes on in a circle.
    """
    place = _place(np.frombuffer(tokens, np.int32)) if len(tokens) > SHORTEST else None
    if place is None:
        return array("i")
    period = len(tokens) - place
    found = tokens[place : place + most]
    while len(found) < most:
        found.extend(found[len(found) - period : len(found) - period + most - len(found)])
    return found


def _place(known: np.ndarray[tuple[int], np.dtype[np.int32]]) -> int | None:
    """Where what followed the tokens like the last ones begins."""
    places = np.flatnonzero(known[:-1] == known[-1]) + 1
    length = min(1, len(places))
    while 0 < length < LONGEST:
        longer = places[places > length]
        longer = longer[known[longer - length - 1] == known[-length - 1]]
        if not len(longer):
            break
        places, length = longer, length + 1
    return int(places[-1]) if length >= SHORTEST else None
