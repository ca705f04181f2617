"""Slots are filled by what does best on rows, and a gain within noise changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog.errors import InvalidParameter, ProgramError, UnknownName
from lmprog.evaluation.tuning import _Search
from lmprog.lang.branches.slots import Filling, Tuned, nearest
from lmprog.testing import Scripted, StrictOpenAI
from tests.house import ROOT

ROWS = [{"word": f"w{index}", "answer": f"W{index}"} for index in range(120)]


@lmprog.function
def shout(s: lmprog.Branch, word: str) -> str:
    s.instruction("task", "Repeat.\n")
    s.examples("shots", format="{word} -> {answer}\n", answer="answer", like=word)
    s += f"{word} ->"
    return s.gen("said", max_tokens=8).value.strip()


def helped(prompt: str) -> str:
    """A model that follows one instruction, or what it is shown; and some rows anyway."""
    word = prompt.rpartition("\n")[2].removesuffix(" ->")
    shown = prompt.count("-> W")
    knows = "Shout." in prompt or shown >= 4 or int(word[1:]) % 3 == 0
    return word.upper() if knows else word


def unhelped(prompt: str) -> str:
    word = prompt.rpartition("\n")[2].removesuffix(" ->")
    return word.upper() if int(word[1:]) % 3 == 0 else word


def test_an_empty_slot_changes_nothing() -> None:
    @lmprog.function
    def bare(s: lmprog.Branch, word: str) -> str:
        s += "Repeat.\n"
        s += f"{word} ->"
        return s.gen("said", max_tokens=8).value.strip()

    with Scripted(helped) as model:
        for program in (shout, bare, shout.using(tuned=None)):
            assert program.using(backend=model).run("w3").value == "W3"
    assert len(set(model.prompts)) == 1
    assert model.frames[0] == model.frames[0]


def test_what_is_shown_and_told_comes_from_a_readable_file(tmp_path: Path) -> None:
    with Scripted(helped) as model:
        program = shout.using(backend=model)
        found = program.tune(ROWS, "answer", budget=900, seed=1)
        assert found.is_better
        assert found.comparison.difference > 0.3
        assert found.score == 1.0
        assert "beyond noise" in str(found)
        found.save(tmp_path / "tuned.json")
        told = json.loads((tmp_path / "tuned.json").read_text())
        assert told["about"]["score"] == 1.0
        assert told["about"]["model"] == "scripted"
        assert told["slots"]["task"]["default"] == "Repeat.\n"
        tuned = program.using(tuned=tmp_path / "tuned.json")
        assert tuned.run("w1").value == "W1"
        assert "-> W" in model.prompts[-1]
        assert program.run("w1").value == "w1"


def test_a_gain_within_noise_keeps_the_program_as_it_was() -> None:
    with Scripted(unhelped) as model:
        found = shout.using(backend=model).tune(ROWS, "answer", budget=900)
        assert not found.is_better
        assert found.tuned.fillings == {}
        assert "the program stays as it was" in str(found)
        assert found.program.run("w1").value == "w1"
        assert "\n\n" not in model.prompts[-1]


def test_instructions_are_tried_and_proposed() -> None:
    def model(prompt: str) -> Any:
        proposing = "Write a better instruction" in prompt
        return ["Shout.\n", "Shout.\n", "Whisper.\n"] if proposing else helped(prompt)

    @lmprog.function
    def told(s: lmprog.Branch, word: str) -> str:
        s.instruction("task", "Repeat.\n")
        s += f"\n{word} ->"
        return s.gen(max_tokens=8).value.strip()

    with Scripted(model) as backend:
        program = told.using(backend=backend)
        given = program.tune(ROWS, "answer", budget=900, instructions={"task": ["Shout.\n"]})
        proposed = program.tune(ROWS, "answer", budget=900, propose=3)
        with pytest.raises(UnknownName, match="no slot 'tsak'; did you mean 'task'"):
            program.tune(ROWS, "answer", instructions={"tsak": ["x"]})
    assert given.tuned.fillings["task"].text == "Shout.\n"
    assert proposed.tuned.fillings["task"].text == "Shout."


def test_rows_held_out_are_never_shown_and_never_decide() -> None:
    with Scripted(helped) as model:
        found = shout.using(backend=model).tune(ROWS, "answer", budget=2000)
    held = {row.row["word"] for row in found.comparison.a}
    assert len(held) == 36
    shown = {
        row["word"]
        for one in found.candidates
        for filling in one.tuned.fillings.values()
        for row in filling.rows
    }
    assert shown
    assert not shown & held
    asked = [prompt.rpartition("\n")[2].removesuffix(" ->") for prompt in model.prompts]
    assert all(asked.count(word) == 2 for word in held), "by the winner, and by the default"


def test_losers_are_dropped_round_by_round_and_the_budget_holds() -> None:
    with Scripted(helped) as model:
        found = shout.using(backend=model).tune(ROWS, "answer", budget=400, candidates=8)
        assert found.num_calls == len(model.prompts) <= 400
    nums = [len(one.scores) for one in found.candidates]
    assert nums == sorted(nums, reverse=True)
    assert nums[0] > nums[-1] == 8
    with Scripted(helped) as model:
        few = shout.using(backend=model).tune(ROWS, "answer", budget={"tokens": 20_000})
    usage = few.usage
    assert usage.computed + usage.generated <= 20_000


def test_pages_of_candidates_that_were_dropped_are_free_when_the_next_round_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[tuple[float, float]] = []
    evaluated = _Search._evaluated

    def counted(self: _Search, *given: Any) -> Any:
        info = lmprog.get_server_info(runtime)
        free = info["pages_free"] + info["pages_evictable"]
        held.append((info["open_branches"], info["pages"] - free))
        return evaluated(self, *given)

    monkeypatch.setattr(_Search, "_evaluated", counted)
    with lmprog.Runtime("dummy:tiny", dtype="float32", threads=1, kv_memory_mb=8) as runtime:
        found = shout.using(backend=runtime).tune(ROWS, "answer", budget=250, candidates=6)
        computed = lmprog.get_server_info(runtime)["computed_tokens"]
    assert found.num_calls > 60
    assert computed > 1000
    assert len(held) >= 3
    assert set(held) == {(0, 0)}


def test_one_seed_gives_one_result_at_any_concurrency() -> None:
    found = []
    for concurrency in (1, 64):
        with Scripted(helped) as model:
            program = shout.using(backend=model)
            found.append(program.tune(ROWS, "answer", budget=600, concurrency=concurrency))
    assert found[0].winner.as_json() == found[1].winner.as_json()
    assert [one.scores for one in found[0].candidates] == [
        one.scores for one in found[1].candidates
    ]


def test_it_tunes_on_a_service_with_its_prices_its_cache_and_speculation(tmp_path: Path) -> None:
    @lmprog.function
    def spelled(s: lmprog.Branch, word: str) -> str:
        s.examples("shots", format="{word} -> {said}\nDone: yes\n", answer="said")
        s += f"{word} ->"
        said = s.gen("said", max_tokens=8, stop="\n", temperature=0)
        s += "\nDone:"
        s.gen("done", max_tokens=8, stop="\n", temperature=0)
        return said.value.strip()

    def service(body: dict[str, Any]) -> str:
        asked = body["prompt"].rpartition("\nDone:")
        if asked[1] and asked[2] == "":
            return " yes"
        line = body["prompt"].rpartition("\n")[2]
        said = helped(body["prompt"])
        return f" {said}\nDone: yes\n" if line.endswith("->") else " yes"

    rows = [{"word": row["word"], "said": row["answer"]} for row in ROWS[:20]]
    options: dict[str, Any] = {"budget": 60, "candidates": 1, "shots": [2]}
    options |= {"prices": {"strict": (2.0, 1.0, 8.0)}}
    found, num_requests = [], []
    with StrictOpenAI(service) as api, api.connect(is_chat_model=False) as backend:
        for extra in ({}, {"num_api_spec_tokens": 32}, {"cache": tmp_path}, {"cache": tmp_path}):
            before = len(api.requests)
            program = spelled.using(backend=backend, **extra)
            found.append(program.tune(rows, "said", **options))
            num_requests.append(len(api.requests) - before)
    plain, guessed, _, again = found
    assert plain.winner.fillings
    assert all(one.winner.as_json() == plain.winner.as_json() for one in found)
    usage = plain.usage
    assert plain.cost == pytest.approx((2 * usage.prompt + 8 * usage.generated) / 1e6)
    assert "; cost 0." in str(plain)
    assert num_requests[0] == plain.num_calls
    assert num_requests[1] <= num_requests[0] / 2 + 1, "one request says both"
    assert guessed.cost is not None
    assert guessed.cost < (plain.cost or 0)
    assert num_requests[3] == 0, "all answers are in the folder"
    assert again.cost == 0


def test_a_tuned_program_is_refused_where_its_slots_changed(tmp_path: Path) -> None:
    @lmprog.function
    def renamed(s: lmprog.Branch, word: str) -> str:
        s.instruction("tasks", "Repeat.\n")
        return s.gen(max_tokens=8).value

    @lmprog.function
    def reworded(s: lmprog.Branch, word: str) -> str:
        s.instruction("task", "Say again.\n")
        return s.gen(max_tokens=8).value

    with Scripted(helped) as model:
        found = shout.using(backend=model).tune(ROWS, "answer", budget=300)
    found.winner.save(tmp_path / "tuned.json")
    with Scripted([]) as model:
        for program, why in (
            (renamed, "knows no slot 'tasks'; did you mean 'task'"),
            (reworded, "default was 'Repeat.\\\\n' and is 'Say again.\\\\n'"),
        ):
            with pytest.raises(ProgramError, match=why):
                program.using(backend=model, tuned=tmp_path / "tuned.json").run("w1")
        with pytest.raises(InvalidParameter, match="a file that is there"):
            shout.using(tuned=tmp_path / "none.json")
        (tmp_path / "other.json").write_text("{}")
        with pytest.raises(ProgramError, match="no tuned program"):
            shout.using(tuned=tmp_path / "other.json")


def test_what_cannot_be_tuned_is_said() -> None:
    @lmprog.function
    def plain(s: lmprog.Branch, word: str) -> str:
        return s.gen(max_tokens=8).value

    @lmprog.function
    def twice(s: lmprog.Branch, word: str) -> str:
        s.instruction("a", "x")
        s.instruction("a", "y")
        return s.gen(max_tokens=8).value

    with Scripted(lambda prompt: "x") as model:
        with pytest.raises(ProgramError, match="has no slots"):
            plain.using(backend=model).tune(ROWS, "answer")
        with pytest.raises(InvalidParameter, match="at least 20 rows"):
            shout.using(backend=model).tune(ROWS[:5], "answer")
        with pytest.raises(InvalidParameter, match="budget"):
            shout.using(backend=model).tune(ROWS, "answer", budget={"hours": 1})  # type: ignore[dict-item]
        with pytest.raises(TypeError, match="did you mean 'shots'"):
            shout.using(backend=model).tune(ROWS, "answer", shot=[3])  # type: ignore[call-arg]
        found = lmprog.evaluate(twice.using(backend=model), ROWS[:1], "answer")
        assert found.rows[0].failure == "" or "two slots" in found.rows[0].message


def test_the_most_alike_is_shown_last() -> None:
    rows = [{"q": text} for text in ("the cat sat", "a dog ran far", "seven plus two", "cats sit")]
    assert nearest(rows, "The cat sits", 2) == [{"q": "cats sit"}, {"q": "the cat sat"}]
    tuned = Tuned("shout", {"shots": Filling(rows=tuple(ROWS[:9]), nearest=1)})
    with Scripted(helped) as model:
        shout.using(backend=model, tuned=tuned).run("w5")
    assert model.prompts == ["Repeat.\nw5 -> W5\nw5 ->"]


def test_demonstrations_may_be_turns_and_show_what_the_program_named() -> None:
    @lmprog.function
    def chat(s: lmprog.Branch, word: str) -> str:
        s.examples(
            "shots",
            format=lambda row: [lmprog.user(row["word"]), lmprog.assistant(row["thought"])],
        )
        s.user(word)
        return s.gen("thought", max_tokens=8).value

    tuned = Tuned("chat", {"shots": Filling(rows=({"word": "a", "thought": "b"},))})
    with Scripted(["x"]) as model:
        run = chat.using(backend=model, tuned=tuned).run("w")
    assert [one["content"] for one in run.messages()][:3] == ["a", "b", "w"]


def proposing(prompt: str) -> Any:
    is_asked = "Write a better instruction" in prompt
    return ["Shout.\n", "Whisper.\n"] if is_asked else helped(prompt)


KILLED = """
import os, sys
sys.path.insert(0, {root!r})
import lmprog
from lmprog.testing import Scripted, StrictOpenAI
from tests.evaluation.test_tuning import ROWS, proposing, shout

log, num = open({log!r}, "a", buffering=1), 0
def model(prompt):
    global num
    num += 1
    if num == {after}:
        os.kill(os.getpid(), 9)
    log.write(repr(prompt) + "\\n")
    return proposing(prompt)

with Scripted(model) as backend:
    found = shout.using(backend=backend).tune(
        ROWS, "answer", budget=300, propose=2, concurrency=1, checkpoint={file!r})
print(found.comparison.difference)
"""


def test_after_a_kill_tuning_goes_on_and_asks_nothing_twice(tmp_path: Path) -> None:
    log = tmp_path / "log"
    ended = []
    for after in (40, 60, 0):
        code = KILLED.format(
            root=str(ROOT), log=str(log), after=after, file=str(tmp_path / "tune.jsonl")
        )
        ended.append(
            subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                check=False,
            )
        )
    assert [one.returncode for one in ended] == [-9, -9, 0], ended[-1].stderr
    with Scripted(proposing) as model:
        whole = shout.using(backend=model).tune(ROWS, "answer", budget=300, propose=2)
    assert ended[-1].stdout == f"{whole.comparison.difference}\n"
    assert sorted(log.read_text().splitlines()) == sorted(map(repr, model.prompts))
