"""Which of several results counts, and as early as that is certain: best of n, the quickest, what
most agree on.

`ResultSelector` decides among the `n` results of one gen, of which its branch goes on from one;
`RunningContest` among calls of any branches. Both say who has lost as soon as nobody who still runs
can change it, so that losers end in the same step.

Pure: texts and numbers in, numbers out. Knows nothing of sequences, pages and replies.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lmprog.runtime.programs.select_scoring import Ballot, read_out
from lmprog.runtime.text.stream import TextEnd
from lmprog.wire import ContestRule, Judge, Keep

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class FinishedResult:
    """One result: the tokens that a branch would have with it, its text, and its mean
    log-probability per pick.
    """

    tokens: array[int]
    ended: TextEnd
    score: float = 0.0


@dataclass(slots=True)
class ResultSelector:
    """The `n` results of one gen, one of which is kept. `most` is how often each may pick at most,
    the end included.
    """

    rule: Keep
    n: int
    most: int
    finished: dict[int, FinishedResult] = field(default_factory=dict)
    """In the order in which they ended."""
    out: set[int] = field(default_factory=set)
    """Those that were ended, because they could not win any more."""
    judge: Judge | None = None
    ballots: dict[int, Ballot] = field(default_factory=dict)
    """What the judge is asked about each."""

    @property
    def wants_verdict(self) -> bool:
        """All are there, and the judge has not been asked yet."""
        return (
            self.rule == "best"
            and self.judge is not None
            and not self.ballots
            and len(self.finished) == self.n
        )

    def hear(self) -> None:
        """The judge has been asked: what it says is each result's score."""
        for index, ballot in self.ballots.items():
            found = self.finished[index]
            verdict = read_out(ballot, "token_length_normalized")[0].probability
            self.finished[index] = FinishedResult(found.tokens, found.ended, verdict)

    def is_hopeless(self, total: float) -> bool:
        """Whether a result whose log-probabilities so far add up to `total` cannot become the best:
        every pick that may follow would have to be certain, and even then its mean would be
        lower."""
        if self.judge is not None:
            return False
        best = max((one.score for one in self.finished.values()), default=-math.inf)
        return self.rule == "best" and total / self.most < best

    def winner(self) -> int | None:
        """The number of the result that is kept; None as long as that is open."""
        left = self.n - len(self.finished) - len(self.out)
        if self.rule == "best":
            return (
                None
                if left
                else max(sorted(self.finished), key=lambda index: self.finished[index].score)
            )
        texts = {index: one.ended.text for index, one in self.finished.items()}
        return next(iter(texts), None) if self.rule == "fastest" else majority(texts, left)


@dataclass(slots=True)
class RunningContest(Generic[C]):
    """Calls of which one is wanted. `entrants` stand for them, in order."""

    rule: ContestRule
    entrants: list[C]
    texts: dict[int, str] = field(default_factory=dict)
    """Of those that ended well, in that order, by their places among the entrants."""
    out: set[int] = field(default_factory=set)
    """Places of those that failed."""
    is_decided: bool = False

    def enter(self, call: C, text: str | None) -> list[C]:
        """A call ended, with a text or (None) without. Returns those that have lost by it and are
        still under way.
        """
        place = self.entrants.index(call)
        if text is None:
            self.out.add(place)
        else:
            self.texts[place] = text
        left = len(self.entrants) - len(self.texts) - len(self.out)
        winner = (
            next(iter(self.texts), None) if self.rule == "first" else majority(self.texts, left)
        )
        if winner is None or self.is_decided:
            return []
        self.is_decided = True
        return [
            one
            for at, one in enumerate(self.entrants)
            if at not in self.texts and at not in self.out
        ]


def majority(texts: Mapping[int, str], left: int) -> int | None:
    """The first (by number) of the texts that most agree with, once `left` more cannot change which
    text that is; None before. Texts agree when they are equal but for white space around them; ties
    go to the earliest."""
    groups: dict[str, list[int]] = {}
    for index in sorted(texts):
        groups.setdefault(texts[index].strip(), []).append(index)
    sizes = sorted((len(group) for group in groups.values()), reverse=True)
    if not sizes or (left and sizes[0] <= sum(sizes[1:2]) + left):
        return None
    return max(groups.values(), key=len)[0]
