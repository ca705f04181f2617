"""What can be said of a mean from the rows at hand: its interval, and whether two differ.

Everything is a function of the numbers given; what is drawn at random is drawn from a fixed seed,
so that the same numbers give the same interval. Knows no programs and no rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

LEVEL = 0.95
RESAMPLES = 2_000
FLIPS = 20_000
LEAST_ERROR = 0.1  # of a resample, in errors of the sample
AT_ONCE = 1_000_000  # numbers drawn at once: bounds memory


class Interval(NamedTuple):
    """Where the true mean is, with a probability of 95 %."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"[{self.low:.3f}, {self.high:.3f}]"


def mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores) if scores else math.nan


def mean_interval(scores: Sequence[float], level: float = LEVEL) -> Interval:
    """Of the mean of such scores. For right or wrong it is Wilson's interval, which also holds
    where all are right; for other numbers a studentized bootstrap.
    """
    num = len(scores)
    if num < 2:
        return Interval(-math.inf, math.inf)
    if set(scores) <= {0.0, 1.0}:
        return _wilson(sum(scores), num, level)
    return _bootstrap(scores, level)


def _wilson(num_right: float, num: int, level: float) -> Interval:
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = num_right / num
    middle = (share + z * z / (2 * num)) / (1 + z * z / num)
    half = z / (1 + z * z / num) * math.sqrt(share * (1 - share) / num + z * z / (4 * num * num))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def difference_interval(differences: Sequence[float], level: float = LEVEL) -> Interval:
    """Of the mean difference of two that were scored on the same rows. For right or wrong it is
    Bonett and Price's interval, which also holds where few rows differ; else as above.
    """
    num = len(differences)
    if num < 2:
        return Interval(-math.inf, math.inf)
    if not set(differences) <= {-1.0, 0.0, 1.0}:
        return _bootstrap(differences, level)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    better = (sum(one > 0 for one in differences) + 1) / (num + 2)
    worse = (sum(one < 0 for one in differences) + 1) / (num + 2)
    middle = better - worse
    half = z * math.sqrt((better + worse - middle**2) / (num + 2))
    return Interval(max(-1.0, middle - half), min(1.0, middle + half))


def _bootstrap(scores: Sequence[float], level: float) -> Interval:
    """Of each resample: how many of its own standard errors its mean is off. So the interval is
    wider where few rows decide.
    """
    import numpy as np

    values, counts = np.unique(np.asarray(scores, dtype=float), return_counts=True)
    num = len(scores)
    average = float(values @ counts) / num
    spread = math.sqrt(float((values - average) ** 2 @ counts) / (num - 1) / num)
    if spread == 0:
        return Interval(average, average)
    draw = np.random.default_rng(0)
    found: list[Any] = []
    at_once = max(1, AT_ONCE // len(values))
    for first in range(0, RESAMPLES, at_once):
        size = min(at_once, RESAMPLES - first)
        drawn = draw.multinomial(num, counts / num, size=size)
        means = drawn @ values / num
        squares = drawn @ values**2 / num
        errors = np.sqrt(np.maximum(squares - means**2, 0) / (num - 1))
        # a resample of equal numbers says little of its error
        found.append((means - average) / np.maximum(errors, spread * LEAST_ERROR))
    low, high = np.quantile(np.concatenate(found), [(1 - level) / 2, (1 + level) / 2])
    return Interval(average - float(high) * spread, average - float(low) * spread)


def paired_probability(differences: Sequence[float]) -> float:
    """How likely a mean difference of this size or more is, where none of two is better: the exact
    sign test where all differences have one size (right or wrong), else a permutation test of
    their signs, exact for few.
    """
    sizes = [abs(one) for one in differences if one]
    if not sizes:
        return 1.0
    if min(sizes) == max(sizes):
        return _sign_test(sum(one > 0 for one in differences), len(sizes))
    return _permutation_test(sizes, abs(sum(differences)))


def _sign_test(num_better: int, num: int) -> float:
    fewer = min(num_better, num - num_better)
    logs = [
        math.lgamma(num + 1) - math.lgamma(k + 1) - math.lgamma(num - k + 1) - num * math.log(2)
        for k in range(fewer + 1)
    ]
    return min(1.0, 2 * sum(map(math.exp, logs)))


def _permutation_test(sizes: Sequence[float], total: float) -> float:
    import numpy as np

    values = np.asarray(sizes)
    reached = total * (1 - 1e-12)
    if len(sizes) <= 14:
        bits = np.arange(2 ** len(sizes))[:, None] >> np.arange(len(sizes)) & 1
        return float(np.mean(np.abs((2 * bits - 1) @ values) >= reached))
    draw = np.random.default_rng(0)
    num_reached, at_once = 0, max(1, AT_ONCE // len(sizes))
    for first in range(0, FLIPS, at_once):
        size = min(at_once, FLIPS - first)
        signs = draw.integers(0, 2, (size, len(sizes)), dtype=np.int8) * 2 - 1
        num_reached += int(np.sum(np.abs(signs @ values) >= reached))
    return (num_reached + 1) / (FLIPS + 1)
