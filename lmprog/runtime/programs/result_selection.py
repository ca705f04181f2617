"""Selects one of several results as early as possible: best of n, the fastest, the majority.

`ResultSelector` decides among the `n` results of one gen, one of which continues the branch;
`RunningContest` among calls of any branches. Both name the losers as soon as no running result can
change the outcome, so that losers end in the same step.

Pure: texts and numbers in, numbers out. Knows nothing of sequences, pages and replies.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from lmprog.runtime.programs.select_scoring import Ballot, read_scores
from lmprog.runtime.text.stream import TextEnd
from lmprog.wire import Constraint, ContestRule, Judge, Keep, compared

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class FinishedResult:
    """One result: the tokens that the branch would have with it, its text, and its mean
    log-probability per sampled token.
    """

    tokens: array[int]
    ended: TextEnd
    score: float = 0.0


@dataclass(slots=True)
class ResultSelector:
    """The `n` results of one gen, one of which is kept. Each samples at most `max_samples` tokens,
    its end included.
    """

    rule: Keep | Literal["faithful"]
    n: int
    max_samples: int
    finished: dict[int, FinishedResult] = field(default_factory=dict)
    """In the order in which they ended."""
    dropped: set[int] = field(default_factory=set)
    """Results that were ended because they could not win any more."""
    judge: Judge | None = None
    constraint: Constraint | None = None
    """Of their texts."""
    ballots: dict[int, Ballot] = field(default_factory=dict)
    """The judge's question about each result."""
    is_judge_asked: bool = False

    @property
    def needs_judge(self) -> bool:
        """All results are there, and the judge has not been asked yet."""
        return (
            self.rule == "best"
            and self.judge is not None
            and not self.is_judge_asked
            and len(self.finished) == self.n
        )

    def take_verdicts(self) -> None:
        """The judge has scored all results: its probabilities become their scores."""
        for index, ballot in self.ballots.items():
            found = self.finished[index]
            verdict = read_scores(ballot, "token_length_normalized", str)[0].probability
            self.finished[index] = FinishedResult(found.tokens, found.ended, verdict)

    def is_hopeless(self, total: float) -> bool:
        """Whether a result whose log-probabilities so far add up to `total` cannot become the best:
        even if all tokens that may follow were certain, its mean would be lower.
        """
        if self.judge is not None:
            return False
        best = max((one.score for one in self.finished.values()), default=-math.inf)
        return self.rule == "best" and total / self.max_samples < best

    def winner(self) -> int | None:
        """The number of the result that is kept; None while that is undecided."""
        left = self.n - len(self.finished) - len(self.dropped)
        if self.rule == "best":
            return (
                None
                if left
                else max(sorted(self.finished), key=lambda index: self.finished[index].score)
            )
        texts = {
            index: compared(one.ended.text, self.constraint) for index, one in self.finished.items()
        }
        return next(iter(texts), None) if self.rule == "fastest" else majority(texts, left)


@dataclass(slots=True)
class RunningContest(Generic[C]):
    """Calls of which one is wanted, in order."""

    rule: ContestRule
    entrants: list[C]
    texts: dict[int, str] = field(default_factory=dict)
    """Texts of those that succeeded, in the order of their ends, by index among the entrants."""
    failed: set[int] = field(default_factory=set)
    """Indices of those that failed."""
    is_decided: bool = False

    def enter(self, call: C, text: str | None) -> list[C]:
        """A call ended, with a text or (None) without. Returns the running calls that lost by
        it.
        """
        place = self.entrants.index(call)
        if text is None:
            self.failed.add(place)
        else:
            self.texts[place] = text
        left = len(self.entrants) - len(self.texts) - len(self.failed)
        winner = (
            next(iter(self.texts), None) if self.rule == "first" else majority(self.texts, left)
        )
        if winner is None or self.is_decided:
            return []
        self.is_decided = True
        return [
            one
            for at, one in enumerate(self.entrants)
            if at not in self.texts and at not in self.failed
        ]


def majority(texts: Mapping[int, str], left: int) -> int | None:
    """The lowest number among the texts of the largest group, once `left` more texts cannot change
    which group that is; None before.

    Ties go to the group with the lowest number.
    """
    groups: dict[str, list[int]] = {}
    for index in sorted(texts):
        groups.setdefault(texts[index], []).append(index)
    sizes = sorted((len(group) for group in groups.values()), reverse=True)
    if not sizes or (left and sizes[0] <= sum(sizes[1:2]) + left):
        return None
    return max(groups.values(), key=len)[0]
