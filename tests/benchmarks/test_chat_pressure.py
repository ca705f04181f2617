"""The chats in too little memory: in virtual time, and on a real model."""

from __future__ import annotations

import pytest

from benchmarks.chat_admission import Case, ChatRun, Pressure, table, verdicts
from benchmarks.virtual_time import Outcome, outcome


@pytest.mark.parametrize("seed", [0, 1])
def test_a_program_that_lost_its_place_finds_its_pages_if_nobody_needed_them(seed: int) -> None:
    """Short answers and long pauses: machine and half the memory would do for all."""
    assert outcome("programs that fit", seed, 8, 100.0, 0.5, 0.25).hits > 0.97


@pytest.mark.parametrize("admission", ["programs", "unlimited"])
def test_the_chats_on_a_model_are_all_answered_and_their_counts_agree(admission: str) -> None:
    found = ChatRun(Case("nano", 8, 10.0, 1.0, 0.05), admission=admission).run()
    assert found.hits == 1.0, "the memory holds everything"
    assert found.computed == 1.0
    assert found.wall > 0.9 * found.busy, "pauses take no processor time"


def test_each_bar_is_told_apart() -> None:
    base = Outcome(hits=0.5, computed=2.0, steps=100, wall=10.0, busy=8.0)
    good = Outcome(hits=0.96, computed=1.05, steps=120, wall=10.4, busy=5.0)
    slow = Outcome(hits=0.94, computed=1.2, steps=120, wall=10.6, busy=7.0)
    assert [met for _, met in verdicts(0.0, good, base, good)] == [True, True, True]
    assert [met for _, met in verdicts(10.0, good, base, good)] == [True, True]
    assert [met for _, met in verdicts(0.0, slow, base, good)] == [False, False, False]
    assert [met for _, met in verdicts(10.0, slow, base, good)] == [False, False]


def test_the_table_has_the_runtime_and_the_simulator_side_by_side() -> None:
    asked = Pressure("nano", [8.0], [0.0, 10.0], [2.0], 0.05)
    head, rule, *lines = table(asked)
    cells = [line.strip("| ").split(" | ") for line in [head, *lines]]
    assert {len(one) for one in cells} == {len(rule.strip("|").split("|"))}
    assert [one[:2] for one in cells[1:]] == [["200%", "8, 0"], ["200%", "8, 10"]]
    for line in cells[1:]:
        assert all(cell.startswith("100% / 1.00 / ") for cell in line[2:5]), "all is in memory"
        assert all(len(cell.split(" / ")) == 5 for cell in line[5:7])
        assert "met" in line[7] or "missed" in line[7]
