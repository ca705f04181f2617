"""How many tokens are worth drafting: by how often a sequence's drafts were right, and by what
drafted tokens cost on this machine; and whether drafts are worth looking for at all, by what steps
with them brought in what time. All of it is measured while running.

Knows counts and seconds; has no clock of its own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MOST = 16
"""Tokens drafted at a time."""
AT_FIRST = 0.6
"""Chance that a drafted token is right, before any was tried."""
LESSON = 0.25
"""Of a chance, what one drafted token's outcome makes."""
FORGOTTEN = 1 / 64
"""Of the distance to `AT_FIRST`, what a step without a draft goes back, to be tried again."""
FIRST_RATIO = 0.25
"""What a drafted token costs as a part of a row, before any was measured."""
NEWEST = 0.2
"""Of a measured time or ratio, what the newest step makes."""
DOUBT = 1 / 32
"""Of the distance to `FIRST_RATIO`, what a step without drafts goes back, to be measured again."""
OUTLIER = 4.0
"""A step that took so many times what it should is taken for one that took that."""
COMPARED = 16
"""After so many steps with drafts one is made without, to compare with."""
SHORTEST_TRIAL, LONGEST_TRIAL = 8, 32
"""Steps with drafts before it is judged whether these saved time together: twice as many after each
trial in which they did.
"""
MOST_LOST = 4.0
"""Steps without drafts whose time a trial may lose before it is given up."""
UNEVEN = 0.5
"""Of a row of a step, what a right token saves beside other rows: some of them go on more slowly,
and the steps that are left for these cost little less.
"""
FIRST_PAUSE = 3
"""Steps without drafts before the first trial, to compare with."""
SHORTEST_PAUSE, LONGEST_PAUSE = 32, 256
"""The same after a trial that saved none: twice as many each time."""
KEPT = 6
"""Times of steps without drafts, whose mean is what such a step takes."""


def after_draft(chance: float, num_accepted: int, num_drafted: int) -> float:
    """The chance that a sequence's next drafted token is right, now that the first `num_accepted`
    of so many were; of those after the first wrong one nothing is known.
    """
    chance = 1.0 - (1.0 - chance) * (1.0 - LESSON) ** num_accepted
    return chance if num_accepted == num_drafted else chance * (1.0 - LESSON)


def most_worth(chance: float, least: float) -> int:
    """How many tokens to draft, each right with `chance` if those before it are, where at least
    `least` is worth it.
    """
    count, gain = 0, chance
    while count < MOST and gain >= least:
        count += 1
        gain *= chance
    return count


class DraftCosts:
    """What a drafted token costs, as a part of what a row of one token does.

    A right token saves its sequence a row of a later step; so one that is right with a chance of at
    least the ratio is worth it. Its cost is how much longer a step with drafts lasts than one of as
    many rows without. Ratios are kept by about the number of rows, which share what is fixed.
    """

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}
        """By the number of rows: seconds of a step without drafts."""
        self._ratios: dict[int, float] = {}
        self._since_plain = 0

    def ratio(self, num_rows: int) -> float:
        """For steps of about so many rows."""
        return self._ratios.get(num_rows.bit_length(), FIRST_RATIO)

    def needs_plain(self, num_rows: int) -> bool:
        """Whether the next step, of so many rows, is wanted without drafts."""
        return self._since_plain >= COMPARED or num_rows not in self._plain

    def observe(self, num_rows: int, num_drafted: int, seconds: float) -> None:
        """A step of rows of one known token each, and so many drafted ones, lasted so long."""
        size, ratio = num_rows.bit_length(), self.ratio(num_rows)
        plain = self._plain.get(num_rows)
        if not num_drafted:
            self._since_plain = 0
            if plain is not None:
                seconds = plain + (min(seconds, OUTLIER * plain) - plain) * NEWEST
            self._plain[num_rows] = seconds
            self._ratios[size] = ratio + (FIRST_RATIO - ratio) * DOUBT
            return
        self._since_plain += 1
        if plain is None or plain <= 0.0:
            return
        row = plain / num_rows
        more = min(seconds, OUTLIER * (plain + num_drafted * row)) - plain
        found = min(1.0, max(0.0, more / num_drafted / row))
        self._ratios[size] = ratio + (found - ratio) * NEWEST


class DraftTrials:
    """Whether looking for drafts saves time, for steps of about so many rows.

    A ratio tells what one more drafted token costs; it does not see what is looked for and not
    found, what masks of drafted tokens cost, nor a draft model that reads a prompt. So the steps in
    which drafts were looked for are held against those without, by the time that a sampled token
    took: where they lost time, there is a pause.
    """

    def __init__(self) -> None:
        self._by_size: dict[int, _Trial] = {}

    def may_look(self, num_rows: int) -> bool:
        """Whether the next step, of so many rows, may look for drafts."""
        trial = self._of(num_rows)
        trial.pause = max(0, trial.pause - 1)
        return not trial.pause and not trial.needs_plain()

    def observe(self, num_rows: int, num_sampled: int, seconds: float, num_drafted: int) -> None:
        """A step without prompts in which drafts were looked for brought so many sampled tokens."""
        trial = self._of(num_rows)
        usual = trial.usual(seconds / num_rows)
        more = (num_sampled - num_rows) * (UNEVEN if num_rows > 1 else 1.0)
        trial.saved += usual * (num_rows + more) - min(seconds, OUTLIER * usual * num_sampled)
        trial.num_steps += num_drafted > 0
        if trial.num_steps == trial.length or trial.saved < -MOST_LOST * usual * num_rows:
            trial.judge()

    def observe_plain(self, num_rows: int, seconds: float) -> None:
        """A step without prompts in which no drafts were looked for."""
        trial = self._of(num_rows)
        trial.num_plain += 1
        trial.plain.append(seconds / num_rows)

    def _of(self, num_rows: int) -> _Trial:
        return self._by_size.setdefault(num_rows.bit_length(), _Trial())


@dataclass(slots=True)
class _Trial:
    """Of steps of one size."""

    plain: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    """Seconds of a row in the newest steps without drafts."""
    num_plain: int = 0
    """Steps without drafts since the trial began."""
    num_steps: int = 0
    """Steps with drafts since the trial began."""
    saved: float = 0.0
    """Seconds that looking for drafts saved since then."""
    length: int = SHORTEST_TRIAL
    """Steps with drafts that make a trial."""
    pause: int = FIRST_PAUSE
    """Steps that are to be made without."""
    next_pause: int = SHORTEST_PAUSE

    def usual(self, seconds: float) -> float:
        """Of a row without drafts; `seconds` where none was made."""
        if not self.plain:
            return seconds
        median = sorted(self.plain)[(len(self.plain) - 1) // 2]
        return sum(min(one, OUTLIER * median) for one in self.plain) / len(self.plain)

    def needs_plain(self) -> bool:
        """In the middle of a trial, to compare with what is as old."""
        return not self.num_plain and self.num_steps >= self.length // 2

    def judge(self) -> None:
        if self.saved < 0.0:
            self.pause, self.length = self.next_pause, SHORTEST_TRIAL
            self.next_pause = min(2 * self.next_pause, LONGEST_PAUSE)
        else:
            self.next_pause = SHORTEST_PAUSE
            self.length = min(2 * self.length, LONGEST_TRIAL)
        self.num_plain, self.num_steps, self.saved = 0, 0, 0.0
