"""`lmprog bench`: a table of what clients waited for."""

from __future__ import annotations

import math

import pytest

from lmprog.cli import main
from lmprog.cli.bench import _milliseconds, percentile


def test_a_percentile_is_a_value_that_was_seen() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, percent) for percent in (0, 25, 50, 75, 99, 100)] == [
        1,
        1,
        2,
        3,
        4,
        4,
    ]
    assert math.isnan(percentile([], 50))


def test_all_requests_are_counted(
    served: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--clients", "2", "--requests", "5", "--max-tokens", "4", "--api-key", served[1]]
    assert main(["bench", served[0], *arguments]) == 0
    said = capsys.readouterr().out
    assert "2 clients, 5 requests of 4 tokens" in said.replace("\n", " ")
    for row in ("first text", "between texts", "whole"):
        assert row in said
    assert " nan" not in said


def test_what_was_never_seen_is_a_dash() -> None:
    assert _milliseconds([], 50) == "-"
    assert _milliseconds([0.0015], 50) == "1.5"


def test_failures_are_told_and_make_it_fail(
    served: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--requests", "2", "--max-tokens", "1000000", "--api-key", served[1]]
    assert main(["bench", served[0], *arguments]) == 1
    said = capsys.readouterr()
    assert "2 failed; the first: The server answered 400" in said.err
    assert said.out == ""  # no table of nothing
