"""Reasoning told apart from the answer: in values, streams, chats, references, forks, and by
SGLang's names.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend
from lmprog.errors import InvalidParameter, ModelError, ProgramError
from lmprog.testing import Hold, Scripted, Scripting
from lmprog.tool_calls.thoughts import Marks, Splitter

THOUGHT = "<think>\none two three\n</think>\n\nthe answer"


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        (THOUGHT, "one two three", "the answer"),
        ("<think></think>42", "", "42"),
        ("no marks at all", "", "no marks at all"),
        ("<think>cut short", "cut short", ""),
        (" \n<think>a</think>b", "a", "b"),
        ("<think>a</think>b</think>c", "a", "b</think>c"),
        ("a <think>b</think>c", "", "a <think>b</think>c"),
        ("<thi", "", "<thi"),
        ("", "", ""),
    ],
)
def test_what_stands_between_the_marks_is_reasoning(text: str, reasoning: str, answer: str) -> None:
    assert Marks().split(text) == (reasoning, answer)


def test_where_the_prompt_opened_it_the_text_begins_as_reasoning() -> None:
    opened = Marks(opened=True)
    assert opened.split("a</think>b") == ("a", "b")
    assert opened.split("<think>a</think>b") == ("a", "b")
    assert opened.split("cut short") == ("cut short", "")


@given(
    st.text(alphabet="<>/think ab\n", max_size=30),
    st.lists(st.integers(1, 5), max_size=30),
    st.booleans(),
)
def test_pieces_are_told_apart_like_the_whole(text: str, sizes: list[int], opened: bool) -> None:
    for whole in (text, f"<think>{text}</think>{text}"):
        marks = Marks(opened=opened)
        splitter, rest, reasoning, answer = Splitter(marks), whole, "", ""
        for size in [*sizes, len(whole)]:
            told = splitter.push(rest[:size])
            rest, reasoning, answer = rest[size:], reasoning + told.reasoning, answer + told.answer
        told = splitter.finish()
        assert (reasoning + told.reasoning, answer + told.answer) == marks.split(whole)


def test_the_value_is_the_answer_and_the_branch_goes_on_from_it() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> tuple[str, str | None, str, str]:
        s.append("Q: ")
        gen = s.gen(name="a", reasoning=True, max_tokens=99)
        answer = await gen
        s.append(" so ")
        return answer, gen.reasoning, await s.gen(), await s.atext()

    with Scripted([THOUGHT, "done"]) as scripted:
        run = program.using(backend=scripted).run()
    assert run.value == ("the answer", "one two three", "done", "Q: the answer so done")
    assert scripted.prompts == ["Q: ", "Q: the answer so "], (
        "later calls do not see what was thought"
    )
    assert run["a"] == "the answer"
    assert run["a_reasoning_content"] == "one two three"


def test_reasoning_tokens_are_counted() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> lmprog.Gen[str]:
        s.append("Q: ")
        return s.gen(name="a", reasoning=True)

    with Scripted(["<think> one two </think> the answer"]) as scripted:
        run = program.using(backend=scripted).run()
    assert run.value.meta.reasoning_tokens == 4, (
        "the marks are counted with what stands between them"
    )
    assert run.value.meta.usage.generated == 6
    assert run.get_meta_info("a")["reasoning_tokens"] == 4


def test_other_marks_can_be_given() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        return s.gen(reasoning=("[[", "]]")).value

    with Scripted(["[[hm]] yes"]) as scripted:
        assert program.using(backend=scripted).run().value == "yes"
    for wrong in (("", "x"), ("x", ""), 3):
        with pytest.raises(InvalidParameter, match="reasoning"):
            lmprog.gen("x", reasoning=wrong)  # type: ignore[arg-type]


def test_a_stream_tells_thoughts_and_text_apart() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        return await s.gen(name="a", reasoning=True)

    async def main() -> list[object]:
        return [event async for event in program.using(backend=scripted).stream()]

    with Scripted([THOUGHT]) as scripted:
        events = asyncio.run(main())
    thoughts = [event.delta for event in events if isinstance(event, lmprog.Thought)]
    texts = [event.delta for event in events if isinstance(event, lmprog.Text)]
    assert len(thoughts) > 1
    assert ("".join(thoughts), "".join(texts)) == ("one two three", "the answer")
    assert lmprog.Value("a", "the answer") in events


def test_following_a_branch_gives_the_text_without_the_reasoning() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("Q: ")
        s += lmprog.sglang.separate_reasoning(lmprog.gen("a"), model_type="qwen3")
        s.append("!")

    for answer, text in ((THOUGHT, "Q: the answer!"), ("<thi", "Q: <thi!")):
        with Scripted([answer]) as scripted:
            state = program.run(backend=scripted, stream=True)  # type: ignore[call-arg]
            assert "".join(state.text_iter()) == text
            assert state.text() == text


def test_a_chat_keeps_the_answer_only() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += lmprog.user("Why?")
        s += lmprog.assistant(
            lmprog.sglang.separate_reasoning(
                lmprog.gen("answer", max_tokens=32), model_type="deepseek-r1"
            )
        )
        s += lmprog.user("And?")
        s += lmprog.assistant(lmprog.gen("more"))

    with Scripted(["hm, hm</think>Because.", "So."]) as scripted:
        support = wire.ToolSupport(thought=wire.ThoughtForm("<think>", "</think>", "open"))
        welcome = scripted.client.welcome
        scripted.client.welcome = msgspec.structs.replace(welcome, tools=support)
        state = program.using(backend=scripted).run()
    assert state["answer"] == "Because."
    assert state["answer_reasoning_content"] == "hm, hm"
    assert [turn["content"] for turn in state.messages()] == ["Why?", "Because.", "And?", "So."]
    assert "hm" not in scripted.prompts[1]


def test_sglangs_spelling_reaches_every_generation_of_an_expression() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += lmprog.sglang.separate_reasoning(
            "A: " + lmprog.gen("a") + " B: " + lmprog.gen("b"), model_type="qwen3"
        )

    with Scripted(["<think>1</think>x", "<think>2</think>y"]) as scripted:
        state = program.using(backend=scripted).run()
    assert [state[name] for name in ("a", "b", "a_reasoning_content", "b_reasoning_content")] == [
        "x",
        "y",
        "1",
        "2",
    ]
    assert state.text() == "A: x B: y"


def test_a_reference_to_the_answer_is_the_answer() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        first = s.gen(reasoning=True)
        with s.copy() as other:
            other.append(f"[{first}]", first)
            other.gen(name="x")

    with Scripted([THOUGHT, "ok"]) as scripted:
        program.using(backend=scripted).run()
    assert scripted.prompts[1] == "the answer[the answer]the answer"


def test_on_an_event_loop_the_answer_is_awaited_before_the_branch_goes_on() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.gen(reasoning=True)
        return await s.gen()

    with Scripted([THOUGHT]) as scripted, pytest.raises(ProgramError, match="await"):
        program.using(backend=scripted).run()


def test_branches_of_a_fork_reason_for_themselves_and_join() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s += "Q"
        forks = s.fork(2)
        forks += lmprog.sglang.separate_reasoning(lmprog.gen("a"))
        forks.join("concate_and_append")
        return s.text()

    with Scripted(["<think>1</think>x", "<think>2</think>y"]) as scripted:
        assert program.using(backend=scripted).run().value == "Qxy"
        assert scripted.runtime.open_branches() == 0


def test_a_failure_while_reasoning_is_raised_where_it_is_read_and_by_what_follows() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        first = s.gen(reasoning=True)
        with pytest.raises(ModelError, match="not finite"):
            first.value
        with pytest.raises(ModelError, match="not finite"):
            s.gen().value

    with Scripted([ModelError("not finite")]) as scripted:
        program.using(backend=scripted).run()


def test_a_cancelled_branch_stops_its_reasoning() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[int]:
        try:
            with s.fork(2) as branches:
                branches[1].gen(reasoning=True)
                branches[0].gen().value
        except ModelError:
            s.gen().value
        return scripted.runtime.held()

    def script(prompt: str) -> Scripting:
        return [Hold(), ModelError("not finite"), "and on"][len(scripted.asked) - 1]  # type: ignore[return-value]

    with Scripted(script) as scripted:
        assert program.using(backend=scripted).run().value == [], (
            "while the run goes on, nobody thinks for nobody"
        )
    assert len(scripted.asked) == 3


def test_a_budget_counts_reasoning_and_the_events_still_come_complete() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        return s.gen(name="a", reasoning=True, max_tokens=8).value

    with Scripted(["<think>a</think>b <"]) as scripted:
        events = list(program.using(backend=scripted, max_total_tokens=50).stream())
    assert "".join(event.delta for event in events if isinstance(event, lmprog.Text)) == "b <"


def test_a_real_runtime_leaves_the_thoughts_on_their_own_branch(backend: RuntimeBackend) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[str | None, str]:
        s.append("abc")
        gen = s.gen(reasoning=Marks("", "b", opened=True), max_tokens=60, ignore_eos=True)
        answer = gen.value
        s.append("!")
        s.gen(max_tokens=1)
        reply = s.cursor.read().wait(10)
        assert isinstance(reply, wire.TextIs)
        assert reply.text.startswith(f"abc{answer}!")
        return gen.reasoning, answer

    run = program.using(backend=backend, seed=1).run()
    reasoning, answer = run.value
    assert reasoning
    assert "b" not in reasoning
    assert len(reasoning) + len(answer) <= 59
    assert run.usage.cached > 0, "the branch shares what stands before the thoughts"


def test_a_shown_run_says_how_much_was_reasoning_and_shows_the_answer() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("Q: ")
        s.gen(name="a", reasoning=True)
        s.append(" so ")
        s.gen()

    with Scripted(["<think> one two </think> the answer", "end"]) as scripted:
        run = program.using(backend=scripted).run()
    assert "".join(part.text for part in run.transcript) == "Q: the answer so end" == run.text()
    assert "4 of them were reasoning, which is not shown" in run.transcript[1].note
