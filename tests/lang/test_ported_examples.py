"""Programs of the shapes that SGLang's own examples have, with only their import changed: on a
script and on nano.

On nano the values are the model's business; here it counts that every program runs to its end and
keeps its form.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"
from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lmprog.sglang as sgl
from lmprog.backends import Backend
from lmprog.testing import Scripted

NANO = Path(__file__).parents[2] / "lmprog" / "nano" / "model.safetensors"
KITE = (
    r'\{\n    "name": "[\w ]{1,12}",\n    "color": "(red|blue|green)",\n'
    r'    "tail": \{\n        "knots": [0-9]{1,2}\n    \}\n\}'
)
NUMBER = r"(25[0-5]|2[0-4]\d|[01]?\d\d?)"


@sgl.function
def tool_choice(s, question):
    s += "To answer this question: " + question + ". "
    s += "I need to use a " + sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
    if s["tool"] == "calculator":
        s += "The math expression is" + sgl.gen("expression", max_tokens=12, stop="\n")
    elif s["tool"] == "search engine":
        s += "The key word to search is" + sgl.gen("word", max_tokens=12, stop="\n")


@sgl.function
def tip_suggestion(s):
    s += "Two tips for a healthy life: 1. Balanced diet. 2. Regular exercise.\n\n"
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"Now, expand tip {i + 1} into a paragraph:\n"
        f += sgl.gen("detailed_tip", max_tokens=16, stop="\n\n")
    s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
    s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
    s += "In summary" + sgl.gen("summary", max_tokens=16)


@sgl.function
def address(s):
    s += "Q: What is the address of this machine?\n"
    s += "A: " + sgl.gen(
        "answer",
        temperature=0,
        regex=r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)",
    )


@sgl.function
def text_qa(s, question):
    s += "Q: " + question + "\n"
    s += "A:" + sgl.gen("answer", max_tokens=12, stop="\n")


@sgl.function
def multi_turn(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=16))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=16))


@sgl.function
def few_shot(s, review):
    for text, label in [("I loved it.", "good"), ("What a waste.", "bad"), ("A delight.", "good")]:
        s += "Review: " + text + "\nLabel: " + label + "\n\n"
    s += "Review: " + review + "\nLabel: " + sgl.select("label", ["good", "bad"])


@sgl.function
def kite(s, name):
    s += name + " is a kite. Please fill in the following information about it.\n"
    s += sgl.gen("json_output", max_tokens=96, regex=KITE)


def _propose(s, question, num_branches):
    s += sgl.user("A plan for this question, in a few words: " + question)
    forks = s.fork(num_branches)
    forks += sgl.assistant(sgl.gen("plan", max_tokens=8, temperature=0.3))
    return forks


def _solve(s, num_branches):
    s += sgl.user("Good. Now the answer.")
    forks = s.fork(num_branches)
    forks += sgl.assistant(sgl.gen("answer", max_tokens=8, temperature=0.3))
    return forks


def _reflect(s, num_branches):
    s += sgl.user("How good is that, from 1 to 5?")
    forks = s.fork(num_branches)
    forks += sgl.assistant(sgl.gen("score", max_tokens=4, temperature=0.3))
    return forks


@sgl.function
def tree_search(s, question, num_branches):
    to_join = [_propose(s, question, num_branches)]
    solutions = []
    for plan in to_join[0]:
        forks = _solve(plan, num_branches)
        to_join.append(forks)
        solutions.extend(forks)
    to_join += [_reflect(solution, num_branches) for solution in solutions]
    for forks in reversed(to_join):
        forks.join()


@sgl.function
def parallel_sample(s, question, n):
    s += (
        "Question: 1 + 2 = ?\nReasoning: I add 1 and 2.\nAnswer = 3\n\nQuestion: "
        + question
        + "\nReasoning:"
    )
    forks = s.fork(n)
    forks += (
        sgl.gen("reasoning", stop="\n", max_tokens=12)
        + "\nAnswer = "
        + sgl.gen("answer", stop="\n", max_tokens=4)
    )
    forks.join()


@pytest.fixture
def scripted(request: pytest.FixtureRequest) -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(answers: Any) -> Scripted:
        made.append(Scripted(answers))
        sgl.set_default_backend(made[-1])
        return made[-1]

    yield make
    sgl.set_default_backend(None)
    for backend in made:
        backend.close()
        backend.check()


def test_tool_choice(scripted: Callable[..., Scripted]) -> None:
    scripted(["search engine", " kites"])
    state = tool_choice.run(question="What is a kite?")
    assert (state["tool"], state["word"]) == ("search engine", " kites")


def test_tip_suggestion(scripted: Callable[..., Scripted]) -> None:
    backend = scripted([" Eat.", " Run.", " do both."])
    assert tip_suggestion.run()["summary"] == " do both."
    assert backend.prompts[2].endswith("Tip 1: Eat.\nTip 2: Run.\nIn summary")


def test_regex_and_a_streamed_answer(scripted: Callable[..., Scripted]) -> None:
    scripted(["10.0.0.1", " In the city."])
    assert address.run()["answer"] == "10.0.0.1"
    state = text_qa.run(question="Where?", temperature=0.1, stream=True)
    assert "".join(state.text_iter()) == "Q: Where?\nA: In the city."


def test_a_batch_with_a_bar(
    scripted: Callable[..., Scripted], capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(lambda prompt: prompt.split()[-2])
    states = text_qa.run_batch(
        [{"question": "the first"}, {"question": "the second"}], progress_bar=True
    )
    assert [state["answer"] for state in states] == ["first", "second"]
    assert "2/2" in capsys.readouterr().err


def test_multi_turn_few_shot_and_json(scripted: Callable[..., Scripted]) -> None:
    answer = (
        '{\n    "name": "Kay",\n    "color": "red",\n    "tail": {\n        "knots": 7\n    }\n}'
    )
    scripted(["Oslo.", "Lima.", "bad", answer])
    state = multi_turn.run(question_1="Norway?", question_2="Peru?", max_new_tokens=256)
    assert [turn["content"] for turn in state.messages()][2::2] == ["Oslo.", "Lima."]
    state = few_shot.run(review="Never again.")
    assert state["label"] == "bad"
    assert len(state.get_meta_info("label")["input_token_logprobs"]) == 2
    assert json.loads(kite.run(name="Kay")["json_output"])["tail"] == {"knots": 7}


def test_tree_search_gathers_level_by_level(scripted: Callable[..., Scripted]) -> None:
    scripted(lambda prompt: str(prompt.count("<|assistant|>")))
    [state] = tree_search.run_batch(
        [{"question": "3 + 4?", "num_branches": 2}], temperature=0, num_threads=4
    )
    assert state["plan"] == ["1", "1"]
    assert state["answer"] == [["2", "2"], ["2", "2"]]
    assert state["score"] == [[["3", "3"], ["3", "3"]], [["3", "3"], ["3", "3"]]]


def test_parallel_sample(scripted: Callable[..., Scripted]) -> None:
    scripted([" I add.", "7", " I count.", "7"])
    state = parallel_sample.run(question="3 + 4 = ?", n=2)
    assert sorted(state["reasoning"]) == [" I add.", " I count."]
    assert state["answer"] == ["7", "7"]


@pytest.fixture(scope="module")
def nano() -> Iterator[Backend]:
    if not NANO.exists():
        pytest.skip("the shipped model is not in this checkout")
    with sgl.Runtime(model_path="nano") as runtime:
        sgl.set_default_backend(runtime)
        yield runtime
        sgl.set_default_backend(None)


def test_all_of_them_run_on_nano(nano: Backend) -> None:
    assert tool_choice.run(question="What is 5 + 5?", temperature=0)["tool"] in (
        "calculator",
        "search engine",
    )
    assert "In summary" in tip_suggestion.run(temperature=0).text()
    assert re.fullmatch(r"(\d{1,3}.){3}\d{1,3}", address.run()["answer"])
    states = text_qa.run_batch([{"question": "Who?"}, {"question": "Where?"}], temperature=0)
    assert all("\n" not in state["answer"] for state in states)
    chat = multi_turn.run(question_1="Hello!", question_2="And now?", temperature=0)
    assert [turn["role"] for turn in chat.messages()] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    label = few_shot.run(review="I loved it.").get_meta_info("label")
    assert len(label["normalized_prompt_logprobs"]) == 2
    assert json.loads(kite.run(name="Kay", temperature=0)["json_output"])["color"] in (
        "red",
        "blue",
        "green",
    )
    tree = tree_search.run(question="3 + 4?", num_branches=2, temperature=0)
    assert [[len(scores) for scores in level] for level in tree["score"]] == [[2, 2], [2, 2]]
    assert len(parallel_sample.run(question="3 + 4 = ?", n=3)["answer"]) == 3
