"""What the tables of drafts tell: medians beside the first runtime of the same round."""

from __future__ import annotations

import pytest

from benchmarks.speculation import HEAD, Round, compared, in_turn


def test_ratios_are_those_of_one_round_and_their_median_counts() -> None:
    """A machine that is slow in one round is so for both."""
    off = [Round(100, seconds, 0, 0, ["a"]) for seconds in (1.0, 8.0, 1.2)]
    auto = [Round(50, seconds, 9, 5, ["a"]) for seconds in (0.5, 4.0, 1.2)]
    without, with_drafts = compared({"off": off, "auto": auto})
    assert (without.fewer, without.less) == (1.0, 1.0)
    assert (with_drafts.fewer, with_drafts.less) == (2.0, 2.0)
    assert (with_drafts.steps, with_drafts.seconds) == (50, 1.2)
    assert with_drafts.cells() == ("auto", "50", "2.00", "1,200", "2.00", "9", "5")
    assert len(with_drafts.cells()) == len(HEAD)


def test_a_runtime_that_says_something_else_is_found() -> None:
    with pytest.raises(RuntimeError, match="auto says something else"):
        compared({"off": [Round(1, 1.0, 0, 0, ["a"])], "auto": [Round(1, 1.0, 1, 1, ["b"])]})


def test_the_order_of_a_round_is_that_of_the_one_before_backwards() -> None:
    assert in_turn("abc", 1) == in_turn("abc", 0)[::-1]
