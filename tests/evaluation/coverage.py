"""How often an interval contains the truth, and how often `compare`'s test finds a difference, on
simulated scores whose truth is known:

    .venv/bin/python -m tests.evaluation.coverage [TRIALS]

With 2,000 trials (the default) it takes some minutes; the suite does a few of each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import numpy as np

from lmprog.evaluation.statistics import (
    Interval,
    difference_interval,
    mean_interval,
    paired_probability,
)

Draw = np.random.Generator
TRIALS = 2_000
BETTER, WORSE = 0.07, 0.02
"""Of paired answers: how many rows one program alone has right, and the other alone. The share of
rows on which two wordings of a task differ is small, as they answer the same rows with one seed.
"""

SCORES: dict[str, tuple[Callable[[Draw, int], object], float, int]] = {
    "right or wrong, 0.5": (lambda draw, n: draw.random(n) < 0.5, 0.5, 100),
    "right or wrong, 0.85": (lambda draw, n: draw.random(n) < 0.85, 0.85, 200),
    "right or wrong, 0.95": (lambda draw, n: draw.random(n) < 0.95, 0.95, 400),
    "share of fields, of 3": (lambda draw, n: draw.binomial(3, 0.8, n) / 3, 0.8, 60),
    "between 0 and 1, skewed": (lambda draw, n: draw.beta(6, 2, n), 0.75, 60),
    "lengths, very skewed": (lambda draw, n: draw.gamma(2, 50, n), 100.0, 200),
}


def coverage(name: str, trials: int) -> float:
    make, truth, num = SCORES[name]
    draw = np.random.default_rng(1)
    found = (mean_interval(list(map(float, make(draw, num)))) for _ in range(trials))  # type: ignore[call-overload]
    return _share(found, truth)


def coverage_of_differences(trials: int, num: int = 400) -> float:
    draw = np.random.default_rng(2)
    found = (difference_interval(differences(draw, num, BETTER)) for _ in range(trials))
    return _share(found, BETTER - WORSE)


def differences(draw: Draw, num: int, better: float) -> list[float]:
    chance = draw.random(num)
    return [1.0 if one < better else -1.0 if one < better + WORSE else 0.0 for one in chance]


def _share(found: Iterable[Interval], truth: float) -> float:
    inside = [one.low <= truth <= one.high for one in found]
    return sum(inside) / len(inside)


def power(trials: int, better: float = BETTER, num: int = 400) -> float:
    """How often the test says that they differ."""
    draw = np.random.default_rng(3)
    found = [paired_probability(differences(draw, num, better)) for _ in range(trials)]
    return sum(one < 0.05 for one in found) / trials


def main(trials: int) -> None:
    for name in SCORES:
        print(f"{coverage(name, trials):.3f}  {name}, {SCORES[name][2]} rows")
    print(f"{coverage_of_differences(trials):.3f}  difference of 5 points, 400 rows")
    print(f"{power(trials):.3f}  a difference of 5 points at 400 rows is found")
    print(f"{power(trials, WORSE):.3f}  none is there, and one is found")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else TRIALS)
