"""What drafts cost and what they save: how much longer a step lasts with drafted tokens, on this
machine; what of a row a right one saves; and whether drafting saves time at all, by what steps with
drafts brought in what time. All of it is measured while running.

Knows counts and seconds; has no clock of its own. How likely drafts are right is `draft_chances`'
matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lmprog.runtime.scheduling.draft_chances import MOST

FIRST_RATIO = 0.25
"""What a drafted token costs as a part of a row, before any was measured."""
RATIO_DOUBT = 1 / 256
"""Of the distance to `FIRST_RATIO`, what a step without drafts goes back, to be measured again."""
KEPT_OF_RATIO = 0.9
"""Weight of the steps that it was measured by at each new one."""
FIRST_SQUARES = 4.0
"""What `FIRST_RATIO` counts for: as much as one step with two drafted tokens."""
OUTLIER = 2.0
"""A step that took so many times what it should is taken for one that took that."""
KEPT = 7
"""Times of steps without drafts, of which the median counts."""
STALE = 256
"""After so many steps, what one without drafts takes is measured again."""
COMPARED = 16
"""After so many steps with drafts one is made without, to compare with."""
ALONE = 0.75
"""Of a step of one row, what a right token saves: a step among others without drafts is quicker
than one among those with, by which it is measured.
"""
UNEVEN = 0.5
"""Of a row of a step, what a right token saves where some rows go on as slowly as without drafts:
the steps that are left for these cost little less.
"""
EVENNESS_AT_FIRST = 0.5
"""What the least advanced row gains, as a part of the mean of all, before any was measured."""
EVENNESS_LESSON = 0.1
"""Of that, what the newest step with drafts makes."""
ALLOWED = 0.015
"""Of the time of steps without drafts, what trying them again may lose."""
STAKE = 2.0
"""Steps without drafts whose time a trial may lose: fewer let each row try one token, which cannot
pay for what a step with drafts costs at all.
"""
MOST_CREDIT = 16.0
"""Of these, how many drafts that have saved more than that may lose before they are given up."""


class StepKind(NamedTuple):
    """Steps whose times are compared."""

    num_rows: int
    is_plain: bool
    """No row has a mask, penalties or a prompt to score."""


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


class _DraftedTimes:
    """How much longer steps with drafts last, in rows: the line through nothing, by least squares.
    The newest count most, and at first there are some like `FIRST_RATIO`.
    """

    __slots__ = ("products", "squares")

    def __init__(self) -> None:
        self.squares = FIRST_SQUARES
        self.products = FIRST_RATIO * FIRST_SQUARES

    def ratio(self) -> float:
        return min(1.0, max(0.0, self.products / self.squares))

    def add(self, num_drafted: int, rows: float) -> None:
        self.products = KEPT_OF_RATIO * self.products + num_drafted * rows
        self.squares = KEPT_OF_RATIO * self.squares + num_drafted * num_drafted

    def doubt(self) -> None:
        self.products += (FIRST_RATIO * self.squares - self.products) * RATIO_DOUBT


class DraftCosts:
    """What a drafted token costs, as a part of what a row of one token does.

    Its cost is how much longer a step with drafts lasts than one of as many rows without, by the
    newest steps: those with more drafted tokens tell it better. Kept by about the number of rows,
    which share what is fixed.
    """

    def __init__(self) -> None:
        self._plain: dict[StepKind, _PlainTimes] = {}
        self._drafted: dict[int, _DraftedTimes] = {}
        self._num_steps = 0

    def ratio(self, kind: StepKind) -> float:
        times = self._drafted.get(_size(kind))
        return FIRST_RATIO if times is None else times.ratio()

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
        if (times := self._drafted.get(_size(kind))) is not None:
            times.doubt()

    def observe(self, kind: StepKind, num_drafted: int, seconds: float) -> float:
        """The same with so many drafted tokens. Returns how many of the usual steps without would
        have lasted as long; one that took much longer than expected was disturbed.
        """
        usual = self.usual(kind)
        self._num_steps += 1
        if usual is None:
            return 1.0
        times = self._drafted.setdefault(_size(kind), _DraftedTimes())
        expected = 1.0 + num_drafted * times.ratio() / kind.num_rows
        num_steps = min(seconds / usual, OUTLIER * expected)
        times.add(num_drafted, (num_steps - 1.0) * kind.num_rows)
        return num_steps


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

    def most_each(self, kind: StepKind, ratio: float) -> int:
        """How many tokens may be drafted for each row: so many that no more is lost than there is
        if none is right.
        """
        credit = self._of(kind).credit
        return max(1, int(credit / ratio)) if ratio * MOST > credit else MOST

    def saved_by_one(self, kind: StepKind) -> float:
        """Of a row of a step, what a right token saves. All of it where drafts bring all rows
        alike: then later steps are saved, and not only rows of them.
        """
        if kind.num_rows == 1:
            return ALONE
        return UNEVEN + (1.0 - UNEVEN) * self._of(kind).evenness

    def see_paces(self, kind: StepKind, paces: Sequence[float]) -> None:
        """A step had drafts; such steps bring each of its rows so many right tokens."""
        account, num_right = self._of(kind), sum(paces)
        if num_right:
            found = len(paces) * min(paces) / num_right
            account.evenness += (found - account.evenness) * EVENNESS_LESSON

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
        saved = num_accepted * self.saved_by_one(kind) / kind.num_rows
        account.take(1.0 + saved - num_steps)
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
    evenness: float = EVENNESS_AT_FIRST
    """The least that drafts bring a row, as a part of what they bring one in the mean."""
    num_since_plain: int = 0
    """Steps with drafts since one was made without."""

    def take(self, saved: float) -> None:
        self.credit = min(self.credit + saved, MOST_CREDIT)
        self.is_open = self.credit > 0.0


def _size(kind: StepKind) -> int:
    """The same for numbers of rows that are about alike."""
    num_rows, is_plain = kind
    return 2 * num_rows.bit_length() + is_plain
