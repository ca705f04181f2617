"""Every example: values of the right types and numbers, constraints kept, work shared, and the
shape of what it prints.

Which answers are right is the model's business and is tested where the model is; here a right
answer is asked for only where the shipped model gives it without doubt. The figures are the
runtime's own.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import lmprog
from examples import (
    act_tools,
    approve,
    ask_again,
    async_programs,
    batch_progress,
    beam_search,
    drafted_extraction,
    extract_json,
    few_shot_select,
    fork_tips,
    hello,
    judge,
    multi_turn_chat,
    pattern_pieces,
    plan_and_execute,
    react_tools,
    reflection,
    skeleton_of_thought,
    streaming,
    trace_and_keep,
    tree_of_thought,
    two_models,
    use_adapters,
)
from lmprog.runtime.engine.model.locate import NANO
from lmprog.testing import Scripted
from tests.adapters.peft_files import Made, write_adapter

FOLDER = Path(__file__).parents[2] / "examples"
ALL = (
    act_tools, approve, ask_again, async_programs, batch_progress, beam_search, drafted_extraction,
    extract_json, few_shot_select, fork_tips, hello, judge, multi_turn_chat, pattern_pieces,
    plan_and_execute, react_tools, reflection, skeleton_of_thought, streaming, trace_and_keep,
    tree_of_thought, two_models, use_adapters,
)  # fmt: skip


def printed_by(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> str:
    example.main()
    return capsys.readouterr().out


def lines_of(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> list[str]:
    return printed_by(example, capsys).splitlines()


# --- all of them ----------------------------------------------------------------------------------


def test_every_file_of_the_folder_is_tested_here() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted(
        name_of(example) for example in ALL
    )


def name_of(example: ModuleType) -> str:
    return example.__name__.rpartition(".")[2]


@pytest.mark.parametrize("example", ALL, ids=name_of)
def test_an_example_is_short_and_says_how_it_is_run(example: ModuleType) -> None:
    assert len(inspect.getsource(example).splitlines()) < 90
    name = name_of(example)
    assert f"python examples/{name}.py [--model NAME_OR_FOLDER]" in (example.__doc__ or "")
    [program] = re.findall(rf"lmprog run examples/{name}.py::(\w+)", example.__doc__ or "")
    assert isinstance(getattr(example, program), lmprog.Program)


@pytest.mark.parametrize("example", ALL, ids=name_of)
def test_the_program_that_an_example_names_runs_without_arguments(example: ModuleType) -> None:
    [shown] = re.findall(r"\.py::(\w+)", example.__doc__ or "")
    parameters = list(inspect.signature(getattr(example, shown).function).parameters.values())[1:]
    assert all(parameter.default is not parameter.empty for parameter in parameters)


def test_a_file_runs_as_a_script_with_a_model() -> None:
    command = [sys.executable, str(FOLDER / "hello.py"), "--model", "nano"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ}, check=True
    )
    assert "value: " in done.stdout
    assert done.stderr == ""


def test_the_command_runs_a_program_of_an_example(nano: lmprog.Runtime) -> None:
    where = [f"{FOLDER / 'hello.py'}::hello", "--arg", "question=What animal does Mia have?"]
    command = [sys.executable, "-m", "lmprog.cli", "run", *where, "--address", nano.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "Q: What animal does Mia have?\nA:" in done.stdout
    assert "\nresult: " in done.stdout


# --- one by one -----------------------------------------------------------------------------------


def test_one_call_fills_a_form(capsys: pytest.CaptureFixture[str]) -> None:
    city, animal = pattern_pieces.read.run().value
    assert city == "Oslo"
    assert animal in ("dog", "cat", "horse")
    first, second = lines_of(pattern_pieces, capsys)
    assert first == f"Mia lives in Oslo, and Tom has a {animal}."
    forced, generated = map(int, re.findall(r"\d+", second))
    assert 0 < forced < generated


def test_each_adapter_finds_only_what_it_has_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(2, targets=("q_proj", "down_proj"), strength=0.5)
    folder = write_adapter(NANO, tmp_path / "x", made)
    with lmprog.Runtime("nano", lora={"mine": folder}) as runtime:
        monkeypatch.setattr(use_adapters, "told", use_adapters.told.using(backend=runtime))
        use_adapters.main(("mine",))
    lines = capsys.readouterr().out.splitlines()
    names = [line.partition(":")[0] for line in lines]
    assert names == ["the base", "mine", "the base", "mine"]
    cached = [int(re.findall(r", (\d+) tokens from its cache$", line)[0]) for line in lines]
    assert cached[:2] == [0, 0]
    assert min(cached[2:]) > 0
    answers = [line.rpartition(",")[0] for line in lines]
    assert answers[:2] == answers[2:]


def test_drafts_save_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with lmprog.Runtime("nano", speculation="always") as runtime:
        run = drafted_extraction.person.using(backend=runtime).run()
    usage = run.usage
    assert run.value == drafted_extraction.Person("Mia", 31, "Oslo")
    assert usage.forced == 0
    assert 0 < usage.accepted <= usage.drafted
    assert usage.generated - usage.accepted < usage.generated / 2
    # By default drafts are made where they pay, which is measured while running.
    generated, steps = map(int, re.findall(r"\d+", lines_of(drafted_extraction, capsys)[1]))
    assert 0 < steps <= generated


def test_calls_are_constrained_to_the_signatures(capsys: pytest.CaptureFixture[str]) -> None:
    run = act_tools.where.run()
    assert run.value in ("Oslo", "Lima", "Rome")
    called = [turn["content"] for turn in run.messages() if turn["role"] == "assistant"]
    assert "look_up" in called[0]
    assert "answer" in called[-1]
    lines = lines_of(act_tools, capsys)
    generated, forced = map(int, re.findall(r"\d+", lines[-1]))
    assert generated / 2 < forced < generated


def test_a_draft_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(reflection.reflected.run().value, int)
    first, second = lines_of(reflection, capsys)
    assert first == "23 + 45 = 68"
    assert "checks included" in second


def test_steps_of_a_plan_are_computed(capsys: pytest.CaptureFixture[str]) -> None:
    run = plan_and_execute.solve.run()
    steps = re.findall(r"Step \d: (\d+) ([+-]) (\d+) = (-?\d+)\n", run.text())
    assert len(steps) == 2
    for a, sign, b, result in steps:
        assert int(result) == (int(a) + int(b) if sign == "+" else int(a) - int(b))
    assert run.value == int(steps[-1][3])
    assert "forced by the pattern" in lines_of(plan_and_execute, capsys)[-1]


def test_a_judge_is_asked_on_the_text_of_the_branch(capsys: pytest.CaptureFixture[str]) -> None:
    reasoning = " Right is 23 + 45 = 68. It says 70: no."
    with Scripted([reasoning, " bad"]) as judge:
        run = two_models.checked.run(judge=judge)  # type: ignore[arg-type]
        assert judge.prompts[0].startswith(
            f"Question: What is 23 + 45?\nAnswer: {run.value[0]}\nIs "
        )
        assert judge.prompts[1] == f"{judge.prompts[0]}{reasoning}\nJudgment:"
    assert run.value[1] is False
    assert set(run.usage_by_model) > {"scripted"}
    assert lines_of(two_models, capsys)[0] == "23 + 45 = 68: right, says the judge"


def test_hello_answers_from_the_text_and_finds_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert hello.hello.run().value == "Oslo"
    second = hello.hello.run("How old is Mia?")
    assert second.usage.cached > second.usage.prompt / 2
    lines = lines_of(hello, capsys)
    assert lines[1:3] == ["Q: Where does Mia live?", "A: Oslo"]
    assert "value: 'Oslo'" in lines
    assert re.fullmatch(r"work:  \d+ prompt tokens, \d+ of them found in the tree", lines[-1])


def test_few_shot_select_gives_probabilities_and_computes_its_examples_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = few_shot_select.label.map(few_shot_select.REVIEWS)
    assert len(results) == len(few_shot_select.REVIEWS)
    for chosen in results:
        assert sum(chosen.probabilities.values()) == pytest.approx(1)
        assert chosen.probabilities[chosen] == max(chosen.probabilities.values())
    assert results.usage.computed < results.usage.prompt / 2
    lines = lines_of(few_shot_select, capsys)
    labelled = [line for line in lines if re.match(r"(positive|negative)  +\d+%  \w", line)]
    assert len(labelled) == len(few_shot_select.REVIEWS)


def test_fork_tips_expands_each_tip_on_the_shared_list(capsys: pytest.CaptureFixture[str]) -> None:
    run = fork_tips.fork_tips.run("better sleep", number=4)
    assert len(run.value) == 4
    assert all(isinstance(tip.short, str) and "\n" not in tip.short + tip.long for tip in run.value)
    assert run.usage.cached > run.usage.prompt / 2
    assert [line[:2] for line in lines_of(fork_tips, capsys) if line[:1].isdigit()][:3] == [
        "1.",
        "2.",
        "3.",
    ]


def test_extract_json_gives_objects_of_the_type_and_of_the_schema(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = lmprog.get_server_info()
    run = extract_json.person.run(
        "Ben is 45 years old. Ben lives in Lima. Ben likes cooking. Ben is sad today."
    )
    after = lmprog.get_server_info()
    assert after["generated_tokens"] - before["generated_tokens"] == run.usage.generated
    assert after["forced_tokens"] - before["forced_tokens"] == run.usage.forced
    found = run.value
    assert isinstance(found, extract_json.Person)
    assert isinstance(found.age, int)
    assert all(isinstance(hobby, str) for hobby in found.hobbies)
    assert found.mood in ("happy", "sad", "angry", "calm", "tired")
    assert run.usage.forced > run.usage.generated / 3
    assert json.loads(run.text().rpartition("JSON: ")[2])["name"] == found.name
    assert sorted(extract_json.place.run().value) == ["name", "town"]
    assert printed_by(extract_json, capsys).startswith("Person(name='")


def test_ask_again_finds_the_secret_whatever_is_guessed_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for secret in ("red", "white"):
        run = ask_again.guess.run(secret)
        answers = [turn["content"] for turn in run.messages() if turn["role"] == "assistant"]
        assert run.value == answers[-1] == secret
        assert len(set(answers)) == len(answers) <= 4
        assert run.messages()[2::2] == [
            {"role": "user", "content": f"That is not right: It is not {wrong}. Answer again."}
            for wrong in answers[:-1]
        ]
    assert "of them from the cache" in printed_by(ask_again, capsys)


def test_what_is_kept_on_disk_is_not_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(trace_and_keep, capsys)
    first, second = (line for line in lines if not line.startswith(" "))
    assert first == "['Oslo', 'Lima']: 0 of 2 answers from the folder"
    assert second == "['Oslo', 'Lima', '31']: 2 of 3 answers from the folder"
    calls = [line for line in lines if line.startswith("  fork0[")]
    generated = [int(re.findall(r", (\d+) tokens generated$", line)[0]) for line in calls]
    assert len(generated) == 5
    assert sorted(generated)[:2] == [0, 0]  # the two that are kept
    assert sum(map(bool, generated)) == 3


def test_approve_goes_on_from_its_file_without_asking_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked, value, work = lines_of(approve, capsys)
    assert asked == "asked: Book a flight to Oslo?"
    assert value == "value: a flight to Oslo for Mia, 31"
    assert work.startswith("1 call from the checkpoint, ")


def test_multi_turn_chat_remembers_and_never_computes_a_turn_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = multi_turn_chat.chat.run()
    turns = len(multi_turn_chat.TURNS)
    assert len(run.value) == turns
    assert [message["role"] for message in run.messages()] == [
        "system",
        *["user", "assistant"] * turns,
    ]
    assert run.usage.cached > run.usage.prompt / 2
    assert "Mia" in run.value[3]
    assert "red" in run.value[4]
    assert (
        sum(line.startswith("assistant: ") for line in lines_of(multi_turn_chat, capsys)) == turns
    )


def test_react_tools_only_ever_names_tools_and_observes_what_they_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = react_tools.react.run(most=3)
    assert 1 <= len(run.value) <= 3
    for step in run.value:
        assert step.observation == react_tools.TOOLS[step.tool](step.argument)
        assert f"{step.tool}[{step.argument}]" in run.text()
    assert run.value[0].tool == "lookup"
    assert run.value[0].argument == "Mia"
    assert run.usage.cached > run.usage.prompt / 2
    assert "Action 1: lookup[Mia]" in lines_of(react_tools, capsys)


@pytest.mark.parametrize(
    ("expression", "result"),
    [("12 * 7", "84"), ("7-12", "-5"), ("__import__", "This cannot be computed.")],
)
def test_react_tools_computes_only_what_it_reads(expression: str, result: str) -> None:
    assert react_tools.calc(expression) == result


def test_tree_of_thought_keeps_the_best_few_of_each_level(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tree_of_thought.solve.using(seed=1).run(depth=2, proposals=3, width=2)
    answer, best = run.value
    assert answer == "15"
    assert len({thought.values for thought in best}) == len(best) in (1, 2), (
        "equal proposals are one thought"
    )
    for thought in best:
        assert all(re.fullmatch(tree_of_thought.STEP, f" {step}\n") for step in thought.values)
        assert len(thought.values) == 2
    assert best[0].score >= best[-1].score > 0
    assert run.usage.cached > run.usage.prompt / 2
    assert tree_of_thought.solve.using(seed=1).run().value[0] == answer
    lines = lines_of(tree_of_thought, capsys)
    assert lines[0] == tree_of_thought.QUESTION
    assert "answer: 15" in lines


def test_skeleton_of_thought_expands_every_point_it_wrote(
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = skeleton_of_thought.answer.using(temperature=0).run()
    assert re.fullmatch(skeleton_of_thought.POINTS, state["skeleton"])
    assert len(state["paragraph"]) == 3
    points = state["skeleton"].splitlines()
    assert state.ret_value == "\n".join(
        f"{p}.{t}" for p, t in zip(points, state["paragraph"], strict=True)
    )
    assert state.usage.cached > state.usage.prompt / 2
    assert printed_by(skeleton_of_thought, capsys).startswith(state["skeleton"])


def test_beam_search_finds_the_town_and_its_rivals(capsys: pytest.CaptureFixture[str]) -> None:
    run = beam_search.readings.run()
    texts, scores = zip(*run.value, strict=True)
    assert texts[0].strip() == "Bonn"
    assert list(scores) == sorted(scores, reverse=True)
    assert len(texts) == 4
    lines = lines_of(beam_search, capsys)
    assert re.fullmatch(r" *-\d+\.\d{3}  Bonn", lines[0])
    assert re.fullmatch(r"\d+ tokens computed for the \d+ of the results", lines[-1])


def test_judge_weighs_both_orders(capsys: pytest.CaptureFixture[str]) -> None:
    question, first, second = judge.PAIRS[2]
    verdicts = [
        judge.judge.run(question, a, b).value for a, b in ((first, second), (second, first))
    ]
    forward, backward = (one.sure if one.better == first else 1 - one.sure for one in verdicts)
    assert forward == pytest.approx(backward)  # of the same answer, whichever was named first
    assert all(0.5 <= one.sure <= 1 for one in verdicts)
    assert re.findall(r"^  better: ([12]) \(\d+%\)$", printed_by(judge, capsys), re.MULTILINE) == [
        "2",
        "1",
        "1",
    ]


def test_batch_progress_shows_a_bar_and_keeps_what_went_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    batch_progress.main(items=12)
    printed = capsys.readouterr()
    assert "100%" in printed.err
    assert "12/12" in printed.err
    lines = printed.out.splitlines()
    assert lines[0] == "item 6 failed: ValueError: -1 is below zero"
    assert sum(bool(re.fullmatch(r"\d+ \+ \d+ = -?\d+", line)) for line in lines) == 5
    assert lines[-2].startswith("11 of 12 done")


def test_streaming_shows_the_value_in_pieces_and_ends_with_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events = list(streaming.story.using(temperature=0).stream())
    deltas = [
        event.delta for event in events if isinstance(event, lmprog.Text) and event.var == "ending"
    ]
    values = {event.var: event.value for event in events if isinstance(event, lmprog.Value)}
    assert "".join(deltas) == values["ending"]
    assert values["mood"] in (" positive", " negative", " neutral")
    assert isinstance(events[-1], lmprog.Done)
    printed = printed_by(streaming, capsys)
    assert printed.startswith(f"{values['ending']}\n[ending is there: ")


def test_async_programs_run_together_in_time_and_in_a_race(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = lines_of(async_programs, capsys)
    for question, line in zip(async_programs.QUESTIONS, lines, strict=False):
        assert line.startswith(question)
    assert lines[0] == "Where does Mia live? Oslo"
    assert any(line.startswith("too slow: ") for line in lines)
    assert lines[-1].startswith("the race: ")
    assert lines[-1].endswith("1 cancelled")
    assert lmprog.get_server_info()["open_branches"] == 0
