"""How large programs become: what those that ended say of those that go on.

Knows sizes in tokens; knows no programs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable
from itertools import accumulate
from math import exp, log, sqrt
from typing import NamedTuple

REMEMBERED = 256
"""Programs that ended last."""
SIZE_BITS = 6
"""Of a size that tell it from others."""


class ProgramSizes:
    """`longest` is the longest sequence, in tokens."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        self._sums: list[int] = [0]
        """Sums of the first sizes of `_sorted`."""
        self.num_ended = 0

    def ended(self, size: int) -> None:
        """A program ended with `size` tokens."""
        self.num_ended += 1
        if len(self._recent) == REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(size)
        insort(self._sorted, size)
        self._sums = [0, *accumulate(self._sorted)]

    def expected_growth(self, size: float) -> float:
        """Tokens that a program of `size` tokens will still add."""
        first = bisect_left(self._sorted, size)
        count = len(self._sorted) - first
        total = self._sums[-1] - self._sums[first]
        return (total + self._guess(size)) / (count + 1) - size

    def _guess(self, size: float) -> float:
        """The mean of a size that exceeds k times `size` with a chance of 1/k, up to the
        longest.
        """
        low = max(1.0, size)
        return low * (1.0 + log(max(1.0, self._longest / low)))


class Growth(NamedTuple):
    """What programs are expected to add: `known` tokens that their sequences will have, and later
    ones: programs of `size` tokens in all will have added `later` when all of them have ended.
    """

    known: float
    size: float
    later: float

    @property
    def most(self) -> float:
        """Tokens beyond those of now for which there must be memory: programs leave it while others
        grow. In units of the mean time that one has left, `size + later * t` is what they have
        after a time `t`, and `(1 + 2 * t) * exp(-2 * t)` is the part of them that is still there:
        each ends at random, but not at once. That is most at the time found here.
        """
        size, later = self.size, self.later
        if later <= 0.0:
            return self.known
        half = later - 2.0 * size
        time = (half + sqrt(half * half + 4.0 * later * later)) / (4.0 * later)
        most = (size + later * time) * (1.0 + 2.0 * time) * exp(-2.0 * time)
        return self.known + max(0.0, most - size)

    def plus(self, other: Growth, times: int = 1) -> Growth:
        known, size, later = other
        return Growth(
            self.known + times * known, self.size + times * size, self.later + times * later
        )


class PausedSizes:
    """The sizes of programs that have a place in memory and do not run, and what these will add:
    a step asks for it, and there may be thousands of them.
    """

    def __init__(self, sizes: ProgramSizes) -> None:
        self._sizes = sizes
        self._numbers: Counter[int] = Counter()
        """How many programs have about that size."""
        self._total = 0
        self._later: tuple[int, float] | None = None
        """What they will add, and how many programs had ended when it was reckoned."""

    def change(self, before: int | None, after: int | None) -> None:
        """The size of one program; None: it does not count."""
        self._later = None
        for size, sign in ((before, -1), (after, 1)):
            if size is not None:
                self._total += sign * size
                about = _about(size)
                self._numbers[about] += sign
                if not self._numbers[about]:
                    del self._numbers[about]

    @property
    def growth(self) -> Growth:
        if self._later is None or self._later[0] != self._sizes.num_ended:
            grown = self._sizes.expected_growth
            later = sum(count * grown(about) for about, count in self._numbers.items())
            self._later = self._sizes.num_ended, later
        return Growth(0.0, self._total, self._later[1])

    def check(self, sizes: Iterable[int | None]) -> None:
        """These are the sizes; AssertionError otherwise."""
        known = [size for size in sizes if size is not None]
        assert self._total == sum(known), "the sum of sizes"
        assert self._numbers == Counter(map(_about, known)), "how many have each size"


def _about(size: int) -> int:
    """The size without what is less than a part in `1 << SIZE_BITS - 1`."""
    rest = max(0, size.bit_length() - SIZE_BITS)
    return size >> rest << rest
