"""Rules of the replay of agents."""

from __future__ import annotations

import json
import random
from array import array
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from benchmarks.agent_sessions import Call, coding, recorded, teams
from benchmarks.agents import (
    COSTS,
    FOR_ALL,
    SIDES,
    Asked,
    Replay,
    fitting,
    found_in_tree,
    least_computed,
    main,
    optimum,
)
from benchmarks.virtual_time import PAGE
from lmprog.errors import ContextOverflow
from lmprog.runtime.scheduling.active_programs import Pin


def part_of_the_last(calls: list[Call]) -> list[float]:
    return [
        len(before.prompt) / len(after.prompt)
        for before, after in pairwise(calls)
        if after.prompt[: len(before.prompt)] == before.prompt
    ]


def test_made_sessions_are_like_the_recorded_ones() -> None:
    """Of Mini-SWE-agent: 22 calls in the median, 94 % of a prompt from the one before it, at most
    36,000 tokens; of Magentic agents 33 calls."""
    sessions = coding(random.Random(1), 40)
    assert 18 <= median(map(len, sessions)) <= 26
    parts = [part for calls in sessions for part in part_of_the_last(calls)]
    assert len(parts) == sum(len(calls) - 1 for calls in sessions)
    assert 0.9 <= sum(parts) / len(parts) <= 0.97
    assert 15_000 <= max(len(call.prompt) for calls in sessions for call in calls) <= 60_000
    teamed = teams(random.Random(1), 40)
    assert 27 <= median(map(len, teamed)) <= 36
    assert {call.agent for calls in teamed for call in calls} == {0, 1, 2}


def test_recorded_sessions_keep_what_prompts_share(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 3_000_000, "input": "a" * 40 + "b" * 20, "output": "c" * 8},
        {"timestamp": 1_000_000, "input": "a" * 40, "output": "c" * 400},
    ]
    (tmp_path / "one.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    ((first, second),) = recorded(tmp_path, 9)
    assert (len(first.prompt), first.answer, first.think) == (10, 100, 0.0)
    assert second.prompt[:10] == first.prompt
    assert round(second.think, 3) == 0.7  # of two seconds, one and 0.3 are the model's


def test_a_replay_answers_each_call_and_finds_what_memory_has() -> None:
    sessions = [calls[:3] for calls in coding(random.Random(2), 3)]
    for side in SIDES.values():
        replay = Replay(sessions, side, 200_000, 1.0, COSTS["cheap"])
        outcome = replay.run()
        assert 0.5 < outcome.hits < 1.0
        assert 0.0 < outcome.mean <= outcome.p90
        replay.scheduler.check()


def test_sessions_that_never_fit_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A call that memory can never hold would wait for ever: a runtime refuses it, and so does a
    replay."""
    short, long = [Call(array("i", range(40)), 9)], [Call(array("i", range(400)), 9)]
    assert fitting([short, long], 320) == [short]
    assert fitting([short, long], 432) == [short, long]  # 25.6 pages, and one for a copy
    assert fitting([short, long], 416) == [short]
    for side in SIDES.values():
        with pytest.raises(ContextOverflow):
            Replay([short, long], side, 320, 1.0, COSTS["cheap"]).run()
    for name, size in (("a", 160), ("b", 1600)):
        line = {"timestamp": 0, "input": name * size, "output": "c" * 40}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(line))
    main(trace=tmp_path, memory=(48, 320, 2000), costs=("cheap",), sides="alone")
    told = capsys.readouterr().out
    assert [told.count(f"{count} of 2 left out") for count in (1, 2)] == [1, 1]


def test_blocks_are_found_while_the_tree_has_room_for_them() -> None:
    ones, twos = (array("i", [n, n + 1]) for n in (1, 11))
    requests = [Asked(float(n), blocks) for n, blocks in enumerate([ones, twos, ones, twos])]
    assert found_in_tree(requests, 4) == 0.5
    assert found_in_tree(requests, 2) == 0.0
    assert optimum(requests, 4) == 0.5
    assert optimum(requests, 3) == 0.375  # of the first two blocks again, and one of the others


def test_an_answer_is_made_though_the_same_one_is_kept() -> None:
    """Of those that ask the same twice the prompt's pages are found at best, but for its last token."""
    tokens = array("i", range(5 * PAGE))
    assert least_computed([(tokens, 3 * PAGE), (tokens, 3 * PAGE)], FOR_ALL) == 8 * PAGE


def test_a_program_keeps_what_its_next_call_begins_with() -> None:
    prompt = array("i", range(4 * PAGE))
    ends = list[int]()

    class Watched(Replay):
        def _pin(self, tokens: array[int], prompt: array[int], program: int) -> Pin:
            pin = super()._pin(tokens, prompt, program)
            ends.append(pin.end)
            return pin

    calls = [Call(prompt, 2 * PAGE), Call(prompt, 2 * PAGE, 1.0)]
    Watched([calls], SIDES["programs"], FOR_ALL, 1.0, COSTS["cheap"]).run()
    assert ends == [len(prompt)]


def test_sessions_that_fit_one_after_another_do_not_wait_for_memory() -> None:
    """What all of them will have added in the end exceeds the memory by far; never at a time."""
    sessions = [calls[:8] for calls in coding(random.Random(5), 12)]
    largest = sum(len(calls[-1].prompt) for calls in sessions)
    tokens = largest * 3 // 5
    times = {}
    for memory, side in ((FOR_ALL, "pins"), (tokens, "programs")):
        times[side] = Replay(sessions, SIDES[side], memory, 1.0, COSTS["cheap"]).run().mean
    assert times["programs"] < 1.03 * times["pins"]
