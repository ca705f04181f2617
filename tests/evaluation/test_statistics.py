"""Intervals contain the truth as often as they say, and tests find what is there."""

from __future__ import annotations

import itertools
import math
from math import comb

import pytest

from lmprog.evaluation.statistics import difference_interval, mean_interval, paired_probability
from tests.evaluation.coverage import SCORES, coverage, coverage_of_differences, power

TRIALS = 300
SLACK = 0.03
"""Of so few trials: 2.4 standard errors besides the 2 points that are allowed."""


@pytest.mark.parametrize("name", SCORES)
def test_an_interval_contains_the_truth_in_95_of_100_trials(name: str) -> None:
    trials = TRIALS if name.startswith("right") else TRIALS // 3
    assert abs(coverage(name, trials) - 0.95) <= 0.02 + SLACK


def test_so_does_that_of_a_difference_and_the_test_finds_five_points_at_400_rows() -> None:
    assert abs(coverage_of_differences(TRIALS) - 0.95) <= 0.02 + SLACK
    assert power(TRIALS) >= 0.80
    assert power(TRIALS, better=0.02) <= 0.05 + SLACK, "where nothing is there to be found"


def test_right_or_wrong_is_sure_of_nothing_where_all_are_right() -> None:
    low, high = mean_interval([1.0] * 20)
    assert 0.8 < low < 0.9
    assert high == 1.0
    low, high = difference_interval([0.0] * 20)
    assert -0.2 < low < 0 < high < 0.2


def test_a_resample_of_equal_numbers_does_not_widen_an_interval_of_few() -> None:
    low, high = mean_interval([28.0, *[30.0] * 5])
    assert 20 < low < 29.67 < high < 32


def test_one_row_says_nothing() -> None:
    assert mean_interval([1.0]) == (-math.inf, math.inf)


def test_the_sign_test_is_exact() -> None:
    for num, better in ((1, 1), (6, 6), (9, 7), (20, 3)):
        fewer = min(better, num - better)
        exact = min(1.0, 2 * sum(comb(num, k) for k in range(fewer + 1)) / 2**num)
        differences = [1.0] * better + [-1.0] * (num - better) + [0.0] * 5
        assert paired_probability(differences) == pytest.approx(exact)
    assert paired_probability([0.0, 0.0]) == 1.0


def test_the_permutation_test_is_exact_for_few_and_near_it_for_many() -> None:
    sizes = [0.5, 0.25, -0.125, 1.0, 0.3]
    flips = itertools.product((1, -1), repeat=len(sizes))
    reached = [
        abs(sum(sign * abs(size) for sign, size in zip(signs, sizes, strict=True)))
        >= abs(sum(sizes)) - 1e-12
        for signs in flips
    ]
    assert paired_probability(sizes) == pytest.approx(sum(reached) / len(reached))
    many = [0.1 * (nth % 7 - 2) for nth in range(40)]
    flipped = [-one for one in many]
    assert paired_probability(many) == pytest.approx(paired_probability(flipped))
    assert 0.005 < paired_probability(many) < 0.2
