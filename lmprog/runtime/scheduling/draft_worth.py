"""How many tokens are worth drafting: by how often drafts of a kind were right, and by what drafted
tokens cost on this machine; and whether drafting saves time at all, by what steps with drafts
brought in what time. All of it is measured while running, and shared by all requests of a runtime:
a request of few tokens has none to learn from.

Knows counts and seconds; has no clock of its own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

MOST = 16
"""Tokens drafted at a time."""
AT_FIRST = 0.6
"""Chance that a drafted token of some kind is right, before any was tried."""
FIRST_LESSONS = 3
"""So many outcomes `AT_FIRST` counts for."""
SHARED_LESSON = 1 / 16
"""Of a kind's chance, what one drafted token's outcome makes, at least."""
DOUBT = 1 / 2048
"""Of the distance to 1, what a kind's chance rises by where it is too low for a draft, to be tried
again.
"""
LESSON = 0.25
"""Of a sequence's own chance, what one drafted token's outcome makes."""
FORGOTTEN = 1 / 64
"""Of the distance to 1, what it rises by where it is too low for a draft."""
FIRST_RATIO = 0.25
"""What a drafted token costs as a part of a row, before any was measured."""
RATIO_DOUBT = 1 / 256
"""Of the distance to `FIRST_RATIO`, what a step without drafts goes back, to be measured again."""
NEWEST = 0.2
"""Of a measured ratio, what the newest step makes."""
OUTLIER = 2.0
"""A step that took so many times what it should is taken for one that took that."""
KEPT = 7
"""Times of steps without drafts, of which the median counts."""
STALE = 256
"""After so many steps, what one without drafts takes is measured again."""
COMPARED = 16
"""After so many steps with drafts one is made without, to compare with."""
ALONE = 0.75
"""Of a step of one row, what a right token saves: where that is only as much as drafts cost, these
are not worth it.
"""
UNEVEN = 0.5
"""Of a row of a step, what it saves beside other rows: some of them go on more slowly, and the
steps that are left for these cost little less.
"""
ALLOWED = 0.015
"""Of the time of steps without drafts, what trying them again may lose."""
STAKE = 1.0
"""Steps without drafts whose time a trial may lose."""
MOST_CREDIT = 8.0
"""Of these, how many drafts that have saved more than that may lose before they are given up."""


class StepKind(NamedTuple):
    """Steps whose times are compared."""

    num_rows: int
    is_plain: bool
    """No row has a mask, penalties or a prompt to score."""


WRITTEN = 0
"""The evidence of a draft that a model wrote ..."""
ASKED = 1
"""... that of text that a constraint asks for ..."""
SHORTEST = 2
"""... and the least of any other: so many tokens stood before in the text, and went on so."""
EVIDENCE = (WRITTEN, ASKED, SHORTEST, 2 * SHORTEST, 4 * SHORTEST)
"""Drafts with as much and not as much as the next are one kind."""


class DraftKind(NamedTuple):
    """Drafts whose outcomes are alike, whatever requests they are of."""

    is_plain: bool
    """The request has nothing that masks or forces tokens."""
    evidence: int
    """One of `EVIDENCE`."""

    @staticmethod
    def of(is_plain: bool, evidence: int) -> DraftKind:
        return DraftKind(is_plain, EVIDENCE[min(evidence.bit_length(), len(EVIDENCE) - 1)])


def after_draft(
    chance: float, num_accepted: int, num_drafted: int, lesson: float = LESSON
) -> float:
    """The chance that the next drafted token is right, now that the first `num_accepted` of so many
    were; of those after the first wrong one nothing is known.
    """
    chance = 1.0 - (1.0 - chance) * (1.0 - lesson) ** num_accepted
    return chance if num_accepted == num_drafted else chance * (1.0 - lesson)


def most_worth(chance: float, least: float) -> int:
    """How many tokens to draft, each right with `chance` if those before it are, where at least
    `least` is worth it.
    """
    count, gain = 0, chance
    while count < MOST and gain >= least:
        count += 1
        gain *= chance
    return count


class DraftChances:
    """How often drafted tokens were right, by the kind of draft."""

    def __init__(self) -> None:
        self._chances: dict[DraftKind, float] = {}
        self._num_lessons: dict[DraftKind, int] = {}

    def of(self, kind: DraftKind) -> float:
        """The chance that the first drafted token is right."""
        return self._chances.get(kind, AT_FIRST)

    def learn(self, kind: DraftKind, num_accepted: int, num_drafted: int) -> None:
        """Of a draft so many tokens were right. The first outcomes count most."""
        known = self._num_lessons.get(kind, FIRST_LESSONS)
        lesson = max(SHARED_LESSON, 1 / (known + 1))
        self._num_lessons[kind] = known + min(num_accepted + 1, num_drafted)
        self._chances[kind] = after_draft(self.of(kind), num_accepted, num_drafted, lesson)

    def evidence_worth(self, is_plain: bool, least: float) -> list[int]:
        """The evidence of drafts that are right with a chance of at least `least`. The others'
        chances rise a bit, as once a step.
        """
        found = []
        for evidence in EVIDENCE[2 if is_plain else 1 :]:
            kind = DraftKind(is_plain, evidence)
            chance = self._chances.get(kind, AT_FIRST)
            if chance >= least:
                found.append(evidence)
            else:
                self._chances[kind] = chance + (1.0 - chance) * DOUBT
        return found


class _PlainTimes:
    """Of the newest steps of a kind without drafts. Their median, since some are much longer: the
    first ones after a prompt, those whose masks are made for the first time. Such steps are seldom
    saved.
    """

    __slots__ = ("measured", "median", "seconds")

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=KEPT)
        self.median = 0.0
        self.measured = 0

    def add(self, seconds: float, at: int) -> None:
        self.seconds.append(seconds)
        self.median = sorted(self.seconds)[(len(self.seconds) - 1) // 2]
        self.measured = at


class DraftCosts:
    """What a drafted token costs, as a part of what a row of one token does.

    A right token saves its sequence a row of a later step; so one that is right with a chance of at
    least the ratio is worth it. Its cost is how much longer a step with drafts lasts than one of as
    many rows without. Ratios are kept by about the number of rows, which share what is fixed.
    """

    def __init__(self) -> None:
        self._plain: dict[StepKind, _PlainTimes] = {}
        self._ratios: dict[int, float] = {}
        self._num_steps = 0

    def ratio(self, kind: StepKind) -> float:
        return self._ratios.get(_size(kind), FIRST_RATIO)

    def least(self, kind: StepKind) -> float:
        """The chance of being right from which on a drafted token is worth it."""
        return self.ratio(kind) / _saved_by_one(kind)

    def usual(self, kind: StepKind) -> float | None:
        """Seconds of a step without drafts; None where none was measured lately."""
        times = self._plain.get(kind)
        if times is None or self._num_steps - times.measured >= STALE or times.median <= 0.0:
            return None
        return times.median

    def observe_plain(self, kind: StepKind, seconds: float) -> None:
        """A step of one known token in each row lasted so long."""
        self._num_steps += 1
        if self.usual(kind) is None:
            self._plain[kind] = _PlainTimes()
        self._plain[kind].add(seconds, self._num_steps)
        size = _size(kind)
        if size in self._ratios:
            self._ratios[size] += (FIRST_RATIO - self._ratios[size]) * RATIO_DOUBT

    def observe(self, kind: StepKind, num_drafted: int, seconds: float) -> None:
        """The same with so many drafted tokens."""
        self._num_steps += 1
        usual = self.usual(kind)
        if usual is not None:
            row = usual / kind.num_rows
            more = min(seconds, OUTLIER * (usual + num_drafted * row)) - usual
            found, ratio = min(1.0, max(0.0, more / num_drafted / row)), self.ratio(kind)
            self._ratios[_size(kind)] = ratio + (found - ratio) * NEWEST


class DraftAccounts:
    """Whether drafting saves time, for steps of about so many rows.

    A ratio tells what one more drafted token costs; it does not see what looking for it costs, nor
    a draft model that reads a prompt. So what a step with drafts saved, or lost, beside those
    without is booked, and what was looked for and not found. Where nothing is left, drafting
    pauses. A part of the time without it is credited meanwhile, until there is enough for another
    trial: so what trials lose is bounded by that part, however much is lost in each.
    """

    def __init__(self) -> None:
        self._accounts: dict[int, _Account] = {}

    def may_draft(self, kind: StepKind, has_prompts: bool = False) -> bool:
        """Whether the next step may have drafts. One that reads prompts, too, cannot be judged:
        there only where drafts have saved more than they lost.
        """
        account = self._of(kind)
        if has_prompts:
            return account.is_open and account.credit > STAKE
        return account.is_open and account.num_since_plain < COMPARED

    def is_open(self, kind: StepKind) -> bool:
        return self._of(kind).is_open

    def credit(self, kind: StepKind, lost: float, num_steps: int) -> None:
        """So many steps were made without drafts; to look for some took the time of `lost` of
        them.
        """
        account = self._of(kind)
        account.num_since_plain = 0
        if lost:
            account.take(-lost)
        if not account.is_open:
            account.credit += ALLOWED * num_steps
            account.is_open = account.credit >= STAKE

    def book(self, kind: StepKind, num_accepted: int, num_steps: float) -> None:
        """A step with drafts, of which so many were right, took the time of `num_steps` without."""
        account = self._of(kind)
        gain = num_accepted * _saved_by_one(kind) / kind.num_rows
        most = OUTLIER * (1.0 + num_accepted / kind.num_rows)
        account.take(1.0 + gain - min(num_steps, most))
        account.num_since_plain += 1

    def _of(self, kind: StepKind) -> _Account:
        size = _size(kind)
        found = self._accounts.get(size)
        if found is None:
            found = self._accounts[size] = _Account()
        return found


@dataclass(slots=True)
class _Account:
    """Of steps of one size."""

    credit: float = STAKE
    """What drafting may lose, in steps without."""
    is_open: bool = True
    num_since_plain: int = 0
    """Steps with drafts since one was made without."""

    def take(self, saved: float) -> None:
        self.credit = min(self.credit + saved, MOST_CREDIT)
        self.is_open = self.credit > 0.0


def _size(kind: StepKind) -> int:
    """The same for numbers of rows that are about alike."""
    num_rows, is_plain = kind
    return 2 * num_rows.bit_length() + is_plain


def _saved_by_one(kind: StepKind) -> float:
    """Of a row, what a right token saves."""
    return UNEVEN if kind.num_rows > 1 else ALONE
