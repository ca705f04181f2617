"""Programs in the manner of SGLang's frontend, with only their import changed."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"
from __future__ import annotations

import lmprog.sglang as sgl
from lmprog import wire
from lmprog.testing import Scripted


def test_a_chat_of_several_turns() -> None:
    @sgl.function
    def multi_turn(s, question_1, question_2):
        s += sgl.system("You are a helpful assistant.")
        s += sgl.user(question_1)
        s += sgl.assistant(sgl.gen("answer_1", max_tokens=256))
        s += sgl.user(question_2)
        s += sgl.assistant_begin() + sgl.gen("answer_2", max_tokens=256) + sgl.assistant_end()

    with Scripted(["Paris.", "Berlin."]) as backend:
        sgl.set_default_backend(backend)
        try:
            state = multi_turn.run(question_1="France?", question_2="Germany?", temperature=0)
        finally:
            sgl.set_default_backend(None)
        assert [turn["role"] for turn in state.messages()] == [
            "system",
            "user",
            "assistant",
            "user",
            "assistant",
        ]
        assert state["answer_2"] == "Berlin."
        assert "Germany?" in state.text()


def test_tips_that_are_expanded_in_parallel_and_put_back_as_text() -> None:
    @sgl.function
    def tips(s, n):
        s += "Tips for staying healthy: 1. Eat well. 2. Move.\n\n"
        forks = s.fork(n)
        for i, f in enumerate(forks):
            f += f"Now expand tip {i + 1}:\n"
            f += sgl.gen("detail", max_tokens=256, stop="\n\n")
        for i in range(n):
            s += f"Tip {i + 1}: " + forks[i]["detail"] + "\n"
        s += "In summary" + sgl.gen("summary")

    with Scripted(["apples", "run", ", eat and run."]) as backend:
        state = tips.run(n=2, backend=backend)
    assert backend.prompts[-1].endswith("Tip 1: apples\nTip 2: run\nIn summary")
    assert state["summary"] == ", eat and run."
    assert backend.runtime.open_branches() == 0


def test_control_flow_on_a_choice() -> None:
    @sgl.function
    def tool_use(s, question):
        s += "To answer: " + question + ". I need a "
        s += sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
        if s["tool"] == "calculator":
            s += "The expression is" + sgl.gen("expression", stop="\n")
        elif s["tool"] == "search engine":
            s += "The key words are" + sgl.gen("words", stop="\n")

    with Scripted(["calculator", " 1 + 1"]) as backend:
        state = tool_use.run(question="one and one?", backend=backend)
    assert isinstance(backend.asked[0].op, wire.Select)
    assert "expression" in state
    assert "words" not in state


def test_a_character_by_regular_expression_and_a_batch() -> None:
    pattern = r'\{"name": "[a-zA-Z ]{1,16}", "age": [0-9]{1,3}\}'

    @sgl.function
    def character(s, name):
        s += f"{name} is a character. As JSON:\n"
        s += sgl.gen("json", max_tokens=64, regex=pattern)

    def script(prompt: str) -> str:
        return f'{{"name": "{prompt.split()[0]}", "age": 11}}'

    with Scripted(script) as backend:
        states = character.run_batch(
            [{"name": "Ann"}, {"name": "Bob"}], backend=backend, temperature=0, num_threads=2
        )
    assert [state["json"] for state in states] == [script("Ann"), script("Bob")]


def test_a_judge_with_dimensions_in_forks_a_group_append_and_a_join() -> None:
    dimensions = ["clarity", "style"]

    @sgl.function
    def judge(s, essay):
        s += "Judge this essay:\n" + essay + "\n\n"
        forks = s.fork(len(dimensions))
        forks += [f"Judge its {dimension}: " for dimension in dimensions]
        forks += sgl.gen("judgement", max_tokens=64, stop="END")
        forks.join()
        s += "\n".join(s["judgement"])
        s += "\nGrade: " + sgl.select(
            "grade", choices=["A", "B"], choices_method=sgl.greedy_token_selection
        )
        return s["grade"]

    with Scripted(["clear", "plain", "B"]) as backend:
        assert judge.run(essay="...", backend=backend).ret_value == "B"
    assert backend.prompts[-1].endswith("clear\nplain\nGrade: ")


def test_streaming_a_bound_program() -> None:
    @sgl.function
    def writer(s, style, topic):
        with s.user():
            s += f"Write in a {style} style about {topic}."
        with s.assistant():
            s += sgl.gen("text", max_tokens=64)

    with Scripted(["Once upon a time"]) as backend:
        state = writer.bind(style="dry").run(topic="tax", backend=backend, stream=True)
        assert list(state.text_iter("text")) == ["Once", " upon", " a", " time"]
        assert state.get_meta_info("text")["completion_tokens"] == 4


def test_beam_like_copies_and_variables_set_by_hand() -> None:
    @sgl.function
    def program(s):
        s += "Start:"
        with s.copy() as other:
            other += sgl.gen("a")
            value = other["a"]
        s["note"] = value.upper()
        s += s["note"] + sgl.gen("b", n=2)
        assert s["b"] == ["one", "two"]

    with Scripted(["abc", ["one", "two"]]) as backend:
        assert program.run(backend=backend).text() == "Start:ABCone"
