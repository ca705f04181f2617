"""The chats in too little memory: in virtual time, and on a real model."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.chat_admission import Case, ChatRun, Pressure, table, verdicts
from benchmarks.virtual_time import (
    CONFIG,
    PAGE,
    Outcome,
    QueueRun,
    Request,
    outcome,
    random_tokens,
    states_of,
)
from lmprog.radix.frames import WindowPool


@pytest.mark.parametrize("seed", [0, 1])
def test_a_program_that_lost_its_place_finds_its_pages_if_nobody_needed_them(seed: int) -> None:
    """Short answers and long pauses: machine and half the memory would do for all."""
    assert outcome("programs that fit", seed, 8, 100.0, 0.5, 0.25).hits > 0.97


@pytest.mark.parametrize(("answer", "think"), [(8, 10.0), (384, 0.0)])
def test_chats_with_recurrent_states_compute_hardly_more_than_without(
    answer: int, think: float
) -> None:
    """States take 15 % of memory, each as much as 32 tokens: of chats of 400 and 800 tokens."""
    plain, found = (
        [outcome(name, seed, answer, think, 0.5, 0.25) for seed in range(3)]
        for name in ("programs that fit", "programs that fit, states of 32")
    )
    computed, bound = (sum(one.computed for one in runs) for runs in (found, plain))
    assert computed <= 1.02 * bound
    hits, possible = (sum(one.hits for one in runs) for runs in (found, plain))
    assert hits >= 0.97 * possible


def few_shot(dice: random.Random) -> tuple[list[array[int]], list[array[int]], list[float]]:
    """Ten headers, thirty questions to each in any order: the parts, the prompts, when they come."""
    heads = [random_tokens(dice, dice.randrange(75, 384)) for _ in range(10)]
    own = [random_tokens(dice, dice.randrange(15, 45)) for _ in range(300)]
    prompts = [heads[number % 10] + one for number, one in enumerate(own)]
    dice.shuffle(prompts)
    return heads + own, prompts, [0.05 * at for at in range(len(prompts))]


def forks(dice: random.Random) -> tuple[list[array[int]], list[array[int]], list[float]]:
    """Thirty texts, ten branches of each, which part from it in two places."""
    parts: list[array[int]] = []
    prompts: list[array[int]] = []
    times: list[float] = []
    for at in range(30):
        stem, second = (random_tokens(dice, dice.randrange(150, 400)) for _ in range(2))
        own = [random_tokens(dice, 30) for _ in range(10)]
        parts += [stem, second, *own]
        prompts += [stem, *(stem + one for one in own[:5]), stem + second]
        prompts += [stem + second + one for one in own[5:]]
        times += [at + 0.1 * max(0, number - 1) for number in range(12)]
    return parts, prompts, times


@pytest.mark.parametrize("workload", [few_shot, forks])
def test_with_recurrent_states_in_half_the_memory_what_is_shared_is_found(workload: Any) -> None:
    """95 % of possible hits, 1.1 times the least that must be computed, in 15 % of memory."""
    computed, least, possible = 0, 0, 0
    for seed in range(3):
        parts, prompts, times = workload(random.Random(seed))
        num_distinct = sum(map(len, parts))
        config = replace(CONFIG, num_pages=num_distinct // 2 // PAGE)
        run = QueueRun(config, state=16)
        pool = states_of(config, 16)
        assert pool is not None
        bytes_of_states = 16 * pool.num_slots
        assert bytes_of_states <= 0.15 * (bytes_of_states + config.num_pages * PAGE)
        run.run([Request(at, "", one, 1) for at, one in zip(times, prompts, strict=True)])
        computed, least = computed + run.num_computed, least + num_distinct
        possible += sum(map(len, prompts)) - num_distinct
    assert computed <= 1.1 * least
    assert possible + least - computed >= 0.95 * possible


@pytest.mark.parametrize(("workload", "window"), [(few_shot, 32), (few_shot, 128), (forks, 32)])
def test_with_windows_in_half_the_memory_what_is_shared_is_found(
    workload: Any, window: int
) -> None:
    """Half of what the texts take in all layers; five of six layers have windows."""
    computed, least, possible = 0, 0, 0
    for seed in range(2):
        parts, prompts, times = workload(random.Random(seed))
        num_distinct = sum(map(len, parts))
        config = replace(CONFIG, num_pages=num_distinct // 2 // PAGE)
        run = QueueRun(config, windows=WindowPool(window, config.num_pages, 1, 5))
        run.run([Request(at, "", one, 1) for at, one in zip(times, prompts, strict=True)])
        computed, least = computed + run.num_computed, least + num_distinct
        possible += sum(map(len, prompts)) - num_distinct
    assert computed <= 1.05 * least
    assert possible + least - computed >= 0.99 * possible


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
