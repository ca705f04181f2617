"""How likely drafted tokens are right: by what speaks for them, as the drafts of all requests of a
runtime showed it, and by how the sequence's own drafts went beside these.

A text goes on as it did before the likelier the more tokens of it were alike until then. So chances
are kept by that length, and each right token of a draft makes the next one one longer: a draft in a
long copy is a long one, and one after two words that stood before is short. A request of few tokens
has little to learn from, so it is judged by others' drafts first. Knows counts; has no clock.
"""

from __future__ import annotations

from functools import cache
from math import log
from typing import NamedTuple

MOST = 16
"""Tokens drafted at a time."""
AT_FIRST = 0.6
"""Chance that a drafted token is right, before any was tried."""
FIRST_LESSONS = 3
"""So many outcomes `AT_FIRST` counts for."""
LESSON = 1 / 16
"""Of a chance, what one drafted token's outcome makes, at least."""
DOUBT = 1 / 2048
"""Of the distance to 1, what a chance rises by where it is too low for a draft, to be tried
again.
"""
PRIOR = 2.0
"""Of a sequence's outcomes, so many are taken to have been as expected before there are any."""
FORGOTTEN = 0.25
"""Of a sequence's older outcomes, what a newer one takes the place of; and a step for which nothing
was drafted because they were bad.
"""
PACE_LESSON = 0.25
"""Of a sequence's pace, what the newest step with drafts makes."""
WRITTEN = 0
"""The evidence of a draft that a model wrote ..."""
ASKED = 1
"""... that of text that a constraint asks for ..."""
SHORTEST = 2
"""... and the least of any other: so many tokens stood before in the text, and went on so."""
EVIDENCE = (WRITTEN, ASKED, SHORTEST, 2 * SHORTEST, 4 * SHORTEST, 8 * SHORTEST)
"""Tokens with as much and not as much as the next are of one kind, which is the place here."""


class _Chance:
    """That a token of one kind is right."""

    __slots__ = ("num_lessons", "value")

    def __init__(self) -> None:
        self.value = AT_FIRST
        self.num_lessons = FIRST_LESSONS

    def learn(self, num_right: int, num_wrong: int) -> None:
        """The first outcomes count most."""
        kept = 1.0 - max(LESSON, 1 / (self.num_lessons + 1))
        self.value = (1.0 - (1.0 - self.value) * kept**num_right) * kept**num_wrong
        self.num_lessons += num_right + num_wrong


class DraftRecord:
    """What became of a sequence's drafts lately."""

    __slots__ = ("expected", "pace", "right")

    def __init__(self) -> None:
        self.right = 0.0
        self.expected = 0.0
        """Tokens that would have been right, had they been like all sequences'."""
        self.pace: float | None = None
        """Right tokens in a step with drafts, in the mean; None before the first."""

    @property
    def factor(self) -> float:
        """What the chance of a token is multiplied by. Never more than 1: after a few right ones
        the next draft would be as long as can be.
        """
        return min(1.0, (PRIOR + self.right) / (PRIOR + self.expected))

    def learn(self, expected: float, num_accepted: int, num_drafted: int) -> None:
        kept = (1.0 - FORGOTTEN) ** _num_tried(num_accepted, num_drafted)
        self.right = self.right * kept + num_accepted
        self.expected = self.expected * kept + expected

    def forget(self) -> None:
        """Its drafts are not worth trying, for now."""
        self.right *= 1.0 - FORGOTTEN
        self.expected *= 1.0 - FORGOTTEN

    def see_step(self, num_accepted: int) -> float:
        """The pace, now that a step with drafts brought so many."""
        known = num_accepted if self.pace is None else self.pace
        self.pace = known + (num_accepted - known) * PACE_LESSON
        return self.pace


class Worth(NamedTuple):
    """What is worth a draft."""

    least: int | None
    """The least evidence of a guess; None: with none it is."""
    asks: bool
    """Whether what a constraint asks for is."""
    best: float
    """The greatest chance of these."""


class DraftChances:
    """How often drafted tokens were right, by what spoke for them."""

    def __init__(self) -> None:
        self._plain, self._others = ([_Chance() for _ in EVIDENCE] for _ in range(2))

    def of(self, is_plain: bool, evidence: int) -> float:
        """The chance that a token is right for which so much speaks. `is_plain`: its request has
        nothing that masks or forces tokens.
        """
        return self._of(is_plain)[_kind(evidence)].value

    def learn(self, is_plain: bool, evidence: int, num_accepted: int, num_drafted: int) -> float:
        """Of a draft the first so many tokens were right; of those after the first wrong one
        nothing is known. Returns how many were expected to be.
        """
        chances, expected, left = self._of(is_plain), 0.0, num_accepted
        for kind, count in _stretches(evidence, _num_tried(num_accepted, num_drafted)):
            chance, num_right = chances[kind], min(left, count)
            expected += chance.value * count
            chance.learn(num_right, count - num_right)
            left -= num_right
        return expected

    def num_worth(self, is_plain: bool, evidence: int, least: float, factor: float = 1.0) -> int:
        """How many tokens to draft, where one that is right with a chance of at least `least` is
        worth it; for a sequence whose chances are `factor` times those of all.
        """
        if least <= 0.0:
            return MOST
        chances, num_worth, gain = self._of(is_plain), 0, 1.0
        for kind, count in _stretches(evidence, MOST):
            chance = factor * chances[kind].value
            if chance < 1.0:
                most = int(log(least / gain) / log(chance)) if gain > least else 0
                if most < count:
                    return num_worth + most
                gain *= chance**count
            num_worth += count
        return num_worth

    def worth(self, is_plain: bool, least: float) -> Worth:
        """What is worth a draft, where a first token that is right with at least that chance is.
        Other evidence becomes a bit more likely, as once a step.
        """
        asks, shortest, best = False, None, 0.0
        for kind, chance in enumerate(self._of(is_plain)):
            value = chance.value
            if value < least:
                chance.value = value + (1.0 - value) * DOUBT
                continue
            if value > best:
                best = value
            if kind == ASKED:
                asks = True
            elif kind >= SHORTEST and shortest is None:
                shortest = EVIDENCE[kind]
        return Worth(shortest, asks, best)

    def _of(self, is_plain: bool) -> list[_Chance]:
        return self._plain if is_plain else self._others


def _kind(evidence: int) -> int:
    return min(evidence.bit_length(), len(EVIDENCE) - 1)


def _num_tried(num_accepted: int, num_drafted: int) -> int:
    """Drafted tokens of which is known whether they are right."""
    return min(num_accepted + 1, num_drafted)


@cache
def _stretches(evidence: int, count: int) -> tuple[tuple[int, int], ...]:
    """The kinds of a draft's first tokens, and how many are of each."""
    kind, found = _kind(evidence), []
    while evidence >= SHORTEST and kind + 1 < len(EVIDENCE) and count:
        taken = min(count, EVIDENCE[kind + 1] - evidence)
        found.append((kind, taken))
        kind, evidence, count = kind + 1, evidence + taken, count - taken
    return (*found, (kind, count)) if count else tuple(found)
