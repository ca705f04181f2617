"""The planted bugs fit the sources as they are, and a trial tells a bug from none."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.house import parsed
from tests.mutation.__main__ import MUTANTS, ROOT, copied, trial
from tests.mutation.mutant import ROOMS, Mutant


@pytest.mark.parametrize("one", MUTANTS, ids=lambda one: one.name)
def test_a_mutant_changes_one_place_and_can_be_imported(one: Mutant) -> None:
    path = ROOT / "lmprog" / one.path
    planted = one.planted_in(path.read_text())
    assert ast.dump(ast.parse(planted)) != as_it_is(path)


@cache
def as_it_is(path: Path) -> str:
    return ast.dump(parsed(path))


def test_there_are_enough_of_them_in_every_room() -> None:
    assert len(MUTANTS) >= 60
    assert {one.room for one in MUTANTS} == set(ROOMS)
    assert len({one.name for one in MUTANTS}) == len(MUTANTS)
    for tests in ROOMS.values():
        assert all((ROOT / place).exists() for place in tests.split())


def test_a_bug_is_found_and_no_bug_is_not(tmp_path: Path) -> None:
    house = copied(tmp_path)
    served = next(one for one in MUTANTS if one.room == "inbox")
    assert trial(served, house, 60)[0] == "tests"
    harmless = Mutant("none", "inbox", "radix/references.py", "a stack: ", "a pile: ")
    assert trial(harmless, house, 3)[0] is None
