"""Plans of consecutive steps: what is patched is what planning anew gives, in another order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lmprog.runtime.engine.device.items import CHUNK, AttentionItems, Tiling, plan_items
from lmprog.runtime.engine.device.step_arrays import ItemPlans, StepRules
from tests.cuda.test_items import TILINGS, read_once
from tests.cuda.trees import Row, batch_of, fork, random_rows

PAGE = 16
MANY = 1 << 20


def in_order(items: AttentionItems) -> list[list[list[int]]]:
    """All that a plan says, its items sorted."""
    parts = [sorted(part.tolist()) for part in (items.small, items.large)]
    rest = (items.queries, items.part_starts, items.first_parts)
    return [*parts, [one.tolist() for one in rest], [[items.chunk]]]


def grown(rows: list[Row], new_page: Callable[[], int]) -> list[Row]:
    """The rows of the next step: each decodes one token more."""
    found = []
    for row in rows:
        end = row.start + row.count
        pages = row.pages if end < len(row.pages) * PAGE else (*row.pages, new_page())
        found.append(Row(end, 1, pages))
    return found


def new_pages() -> Callable[[], int]:
    return iter(range(100_000, 200_000)).__next__


@pytest.mark.parametrize("seed", range(24))
def test_a_patched_plan_is_the_plan_made_anew(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, page_size=PAGE, num_rows=9, longest=3 * CHUNK)
    tiling, window = TILINGS[seed % len(TILINGS)], [None, None, 300, 5000][seed // 4 % 4]
    most = [MANY, 60][seed % 2]
    has_sinks = seed % 3 == 0
    plans = ItemPlans(StepRules(tiling, (), most, has_sinks), window)
    new_page = new_pages()
    for _ in range(40):
        batch = batch_of(rows, PAGE)
        items = plans.of(batch)
        assert in_order(items) == in_order(plan_items(batch, tiling, window, most, has_sinks))
        rows = grown(rows, new_page)
    read_once(batch, items, window, int(has_sinks))


def test_steps_that_decode_are_patched() -> None:
    """Over chunks and pages too: all but the first."""
    rows = fork(CHUNK + 64, 6, CHUNK - 70, PAGE)
    plans, new_page = ItemPlans(StepRules(Tiling(group=4), (), MANY), None), new_pages()
    for step in range(80):
        batch = batch_of(rows, PAGE)
        items = plans.of(batch)
        assert plans.num_patched == step
        rows = grown(rows, new_page)
    read_once(batch, items, None)


def changed(rows: list[Row]) -> dict[str, list[Row]]:
    """What may follow a step besides the same rows decoding."""
    first, second = rows[:2]
    return {
        "a row has ended": rows[1:],
        "a row has come": [*rows, Row(7, 1, (999,))],
        "two rows have changed places": [second, first, *rows[2:]],
        "a row brings two tokens": [Row(first.start, 2, first.pages), *rows[1:]],
        "a row has gone back": [Row(first.start - 1, 1, first.pages), *rows[1:]],
        "a row stands elsewhere": [Row(first.start, 1, (998, *first.pages[1:])), *rows[1:]],
        "two rows share a new page": [
            Row(one.start + PAGE, 1, (*one.pages, 997)) for one in (first, second)
        ],
    }


@pytest.mark.parametrize("what", changed(fork(300, 4, 24, PAGE)))
def test_a_step_that_does_not_go_on_is_planned_anew(what: str) -> None:
    rows, tiling = fork(300, 4, 24, PAGE), Tiling(group=4)
    plans = ItemPlans(StepRules(tiling, (), MANY), None)
    plans.of(batch_of(rows, PAGE))
    batch = batch_of(changed(grown(rows, new_pages()))[what], PAGE)
    items = plans.of(batch)
    assert plans.num_patched == 0
    assert in_order(items) == in_order(plan_items(batch, tiling, None, MANY))
