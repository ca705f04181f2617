"""How large programs become: what to expect of one that has a given size, from those that ended.

Sizes are tokens that a program has added to memory. Before any program has ended, the law of
process lifetimes is assumed: the chance that a program becomes k times as large as it is now is
1/k, up to the longest sequence. That guess stays as one observation among those made since.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from itertools import accumulate
from math import log

REMEMBERED = 256
"""Programs that ended last."""


class ProgramSizes:
    """`longest` is the longest sequence, in tokens."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        self._sums: list[int] = [0]
        """Sums of the first sizes of `_sorted`."""

    def ended(self, size: int) -> None:
        """A program ended with `size` tokens."""
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
