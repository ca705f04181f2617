"""The comparison with peers: every side gets the same tokens, and a side that fails is named."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

import lmprog
from benchmarks import harness, runner
from benchmarks.peers.compare import ABOUT, Cases, Side, can_answer, chart, note, table
from benchmarks.peers.whole_prompts import answered
from lmprog.lang.branches.slots import Filling, Tuned
from lmprog.runtime.engine.model.locate import NANO
from lmprog.runtime.text.tokenizer import load_tokenizer

FAKE = """
from benchmarks.peers.side_loop import serve
def run(case):
    if case["out"] == 99: raise RuntimeError("broken")
    return [one * {times} for one in case["own"]]
serve(run)
"""


def side(name: str, times: int) -> Side:
    return Side(name, [sys.executable, "-c", FAKE.format(times=times)])


def test_tokens_are_those_of_the_texts_that_lmprog_is_given() -> None:
    cases, tokenizer = Cases(NANO, 0.1), load_tokenizer(NANO)
    made = cases.of_round(1)
    assert list(made) == list(ABOUT)
    for case in made.values():
        for own in case["own"]:
            joined = tokenizer.decode(case["shared"]) + tokenizer.decode(own)
            assert tokenizer.encode(joined) == case["shared"] + own
    assert made["a"]["shared"] != cases.of_round(2)["a"]["shared"], "no cache helps the next round"


def test_sides_answer_in_turn_and_one_that_fails_is_named() -> None:
    sides = [side("lmprog f32", 1), side("llama.cpp f32", 2), Side("gone", ["/bin/false"])]
    case = {"shared": [5], "own": [[6, 7], [8]], "out": 2, "turns": [], "choices": []}
    for one in sides:
        one.start()
    for name, out in (("a", 2), ("b", 2), ("c", 99)):
        answers = {one.name: one.answer(case | {"out": out}) for one in sides}
        note(sides, name, answers, tuple)
    for one in sides:
        one.close()
    assert [one.missing for one in sides] == ["it ended before its time"] * 2 + ["it did not start"]
    assert list(sides[0].seconds) == ["a", "b"]
    assert sides[1].equal == {"a": [0.0], "b": [0.0]}
    assert sides[0].equal["a"] == [1.0]


def test_a_side_without_log_probabilities_is_not_asked_for_choices() -> None:
    made = Cases(NANO, 0.1).of_round(1)
    assert not can_answer(Side("OpenVINO f32", []), made["d"])
    assert not can_answer(Side("vLLM bf16", []), made["d"])
    assert can_answer(Side("OpenVINO f32", []), made["a"])
    assert can_answer(Side("llama.cpp f32", []), made["d"])


def test_transformers_computes_every_case() -> None:
    side_module = pytest.importorskip("benchmarks.peers.transformers")
    transformers, made = side_module.Side(str(NANO), 1), Cases(NANO, 0.0).of_round(1)
    empty = {"turns": [], "choices": [], "out": 3}
    forked = transformers.run({"shared": [5, 6], "own": [[7], [8, 9], [7]]} | empty)
    assert len(forked) == 3
    assert forked[0] == forked[2], "each branch goes on with its own text"
    assert len(transformers.run({"shared": [5, 6], "own": [[]]} | empty)) == 1
    turns = [[[5], [6]], [[7, 8], [9]]]
    assert len(transformers.run({"shared": [], "own": []} | empty | {"turns": turns})) == 4
    chosen = transformers.run(made["d"] | {"shared": [5, 6]})
    assert [len(one) for one in chosen] == [1] * len(made["d"]["own"])
    assert all(one[0] in range(4) for one in chosen)


def test_the_report_shows_what_is_missing() -> None:
    found = {
        "model": "random Llama T",
        "cases": {"a": "one", "d": "two"},
        "sides": {
            "lmprog f32": {
                "missing": "",
                "seconds": {"a": 1.0, "d": 2.0},
                "equal": {"a": 1.0, "d": 1.0},
            },
            "OpenVINO f32": {"missing": "", "seconds": {"a": 3.0}, "equal": {"a": 0.5}},
            "llama.cpp f32": {"missing": "it did not start", "seconds": {}, "equal": {}},
        },
    }
    lines = table(found).splitlines()
    assert lines[2] == "| lmprog f32 | 1.00 | 2.00 | 100% |"
    assert lines[3] == "| OpenVINO f32 | 3.00 | - | 50% |"
    assert lines[4].startswith("| llama.cpp f32 | it did not start |")
    drawn = ElementTree.fromstring(chart(found))
    bars = [node for node in drawn.iter() if node.tag.endswith("rect")]
    assert len(bars) == 1 + 3  # the ground, and a bar for each figure


def test_the_published_figures_are_those_of_the_table() -> None:
    import json

    docs = Path(__file__).parents[2] / "docs"
    found = json.loads((docs / "peers.json").read_text())
    assert table(found) in (docs / "peers.md").read_text()
    assert chart(found) == (docs / "images" / "peers.svg").read_text()


def test_whole_prompts_stand_on_what_was_computed_before() -> None:
    asked: list[tuple[list[list[int]], int]] = []

    def generate(prompts: Sequence[list[int]], num_new: int) -> list[list[int]]:
        asked.append((list(prompts), num_new))
        return [[100 + len(prompt)] * num_new for prompt in prompts]

    forked = {"shared": [5], "own": [[6, 7], [8]], "out": 2, "turns": [], "choices": []}
    assert answered(forked, generate) == [[103, 103], [102, 102]]
    assert asked == [([[5]], 1), ([[5, 6, 7], [5, 8]], 2)]
    asked.clear()
    chats = forked | {"own": [], "out": 1, "turns": [[[1], [2, 2]], [[3], [4]]]}
    assert answered(chats, generate) == [[101], [104], [101], [103]]
    assert asked == [([[1], [3]], 1), ([[1, 101, 2, 2], [3, 101, 4]], 1)]
    asked.clear()
    assert answered(forked | {"own": [[]]}, generate) == [[101, 101]]
    assert asked == [([[5]], 2)], "what nobody shares is computed once"


@pytest.mark.parametrize("name", harness.TASKS)
def test_the_double_of_a_service_knows_more_where_it_is_shown_more(name: str) -> None:
    """And DSPy's prompts are the texts of our programs."""
    program, _, metric = harness.OURS[name]
    rows = harness.rows_for(name, "held_out")[:40]
    shown = Filling(rows=tuple(harness.rows_for(name, "train")[:4]))
    with harness.scripted(name) as place, place.connect() as backend:
        plain = program.using(backend=backend)
        tuned = plain.using(tuned=Tuned(name, {"shots": shown}))
        less, more = (lmprog.evaluate(one, rows, metric).score for one in (plain, tuned))
    assert less < 0.5 < 0.6 < more


def test_without_dspy_the_comparison_says_so() -> None:
    with pytest.raises(runner.WrongOptions, match="cannot import dspy"):
        harness.tuning(dspy="no-such-python")
