"""The planted bugs fit the sources as they are, and a trial tells a bug from none."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation.__main__ import MUTANTS, ROOT, copied, trial
from tests.mutation.mutant import ROOMS, Mutant


@pytest.mark.parametrize("one", MUTANTS, ids=lambda one: one.name)
def test_a_mutant_changes_one_place_and_can_be_imported(one: Mutant) -> None:
    source = (ROOT / "lmprog" / one.path).read_text()
    planted = one.planted_in(source)
    assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(source))


def test_there_are_enough_of_them_in_every_room() -> None:
    assert len(MUTANTS) >= 60
    assert {one.room for one in MUTANTS} == set(ROOMS)
    assert len({one.name for one in MUTANTS}) == len(MUTANTS)
    for tests in ROOMS.values():
        assert all((ROOT / place).exists() for place in tests.split())


def test_a_bug_is_found_and_no_bug_is_not(tmp_path: Path) -> None:
    house = copied(tmp_path)
    newest = next(one for one in MUTANTS if one.name == "the newest is evicted first")
    assert trial(newest, house, 60)[0] == "tests"
    harmless = Mutant("none", "inbox", "radix/references.py", "a stack: ", "a pile: ")
    assert trial(harmless, house, 5)[0] is None
