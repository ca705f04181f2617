"""What drafts are worth: how likely they are right, what they cost, and what they save.

How likely drafted tokens are right is known by what speaks for them, as the drafts of all requests
of a runtime showed it, and by how the sequence's own drafts went beside these. A text goes on as it
did before the likelier the more tokens of it were alike until then. So chances are kept by that
length, and each right token of a draft makes the next one one longer: a draft in a long copy is a
long one, and one after two words that stood before is short. A request of few tokens has little to
learn from, so it is judged by others' drafts first.

What they cost is how much longer a step lasts with drafted tokens, on this machine; what of a row a
right one saves, and whether drafting saves time at all, is known by what steps with drafts brought
in what time. All of it is measured while running.

Knows counts and seconds; has no clock of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
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
        plain = self._plain.get(kind)
        if plain is None or self.usual(kind) is None:
            plain = self._plain[kind] = _PlainTimes()
        plain.add(seconds, self._num_steps)
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


@cache
def _size(kind: StepKind) -> int:
    """The same for numbers of rows that are about alike."""
    num_rows, is_plain = kind
    return 2 * num_rows.bit_length() + is_plain
