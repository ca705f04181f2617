"""A confined answer after free reasoning: two calls on a branch of their own, one result."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend
from lmprog.errors import ContextOverflow, ModelError
from lmprog.launch import greet
from lmprog.testing import Hold, Scripted
from lmprog.tool_calls.thoughts import Marks
from tests.lang.small_runtime import Real


@dataclass
class Kite:
    name: str
    sizes: list[int]


KITE = '{"name": "a red kite", "sizes": [3, 14]}'


@lmprog.function
async def number(s: lmprog.Branch) -> tuple[int, str | None]:
    s.append("Q: ")
    gen = s.gen(
        int, name="n", reasoning=True, max_tokens=50, temperature=0.5, min_tokens=1, logprobs=1
    )
    s.append(" so ")  # nothing is awaited before
    s.gen(name="end")
    return await gen, gen.reasoning


def test_thoughts_are_free_and_the_answer_has_its_type() -> None:
    with Scripted(["two and\ntwo ", "4", "done"]) as scripted:
        run = number.using(backend=scripted).run()
    assert run.value == (4, "two and\ntwo")
    assert (run["n"], run["n_reasoning_content"]) == (4, "two and\ntwo")
    assert run.text() == "Q: 4 so done"
    assert scripted.prompts == ["Q: <think>", "Q: <think>two and\ntwo </think>", "Q: 4 so "]
    thought, answer, _ = (asked.op for asked in scripted.asked)
    assert isinstance(thought, wire.Generate)
    assert isinstance(answer, wire.Generate)
    assert (thought.constraint, thought.sampling.stop) == (None, ("</think>",)), (
        "a line's end does not end it"
    )
    assert isinstance(answer.constraint, wire.JsonSchema)
    assert answer.sampling.stop == ("\n",)
    assert (thought.sampling.min_tokens, thought.sampling.logprobs) == (0, None)
    assert (answer.sampling.min_tokens, answer.sampling.logprobs) == (1, 1)
    assert thought.sampling.temperature == answer.sampling.temperature == 0.5
    assert thought.sampling.seed != answer.sampling.seed


@pytest.mark.parametrize(
    ("options", "answer", "value"),
    [
        ({"regex": "[a-c]+"}, "abc", "abc"),
        ({"choices": ["yes", "no"]}, "no", "no"),
        ({"schema": {"type": "null"}}, "null", "null"),
        ({"grammar": 'start: "a"'}, "a", "a"),
        ({"dtype": Literal["yes", "no"]}, "yes", "yes"),
    ],
)
def test_every_constraint_can_be_reasoned_about(
    options: dict[str, object], answer: str, value: object
) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> object:
        s.user("Why?")
        with s.assistant():
            gen = s.gen(reasoning=("[[", "]]"), **options)  # type: ignore[call-overload]
            assert gen.reasoning == "hm"
            return gen.value

    with Scripted(["hm", answer]) as scripted:
        run = program.using(backend=scripted).run()
    assert run.value == value
    assert run.messages()[1] == {"role": "assistant", "content": answer}
    assert scripted.prompts[1].endswith("[[hm]]")


def test_where_the_prompt_opened_the_reasoning_it_is_not_opened_again() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("Q: <think>")
        asked = lmprog.sglang.gen_int("n")
        s += lmprog.sglang.separate_reasoning(asked, marks=Marks(opened=True))

    with Scripted(["hm", "3"]) as scripted:
        run = program.using(backend=scripted).run()
    assert (run["n"], run["n_reasoning_content"]) == (3, "hm")
    assert scripted.prompts == ["Q: <think>", "Q: <think>hm</think>"]


def test_a_stream_tells_thoughts_then_the_growing_answer() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> Kite:
        return await s.gen(Kite, name="kite", reasoning=True)

    with Scripted(["a kite? ", KITE]) as scripted:
        events = list(program.using(backend=scripted).stream())
    kinds = [type(event).__name__ for event in events]
    assert kinds[0] == "Thought"
    assert set(kinds[kinds.index("Text") :]) == {"Text", "Partial", "Value", "Done"}
    assert {event.var for event in events if not isinstance(event, lmprog.Done)} == {"kite"}
    assert (
        "".join(event.delta for event in events if isinstance(event, lmprog.Thought)) == "a kite?"
    )
    assert "".join(event.delta for event in events if isinstance(event, lmprog.Text)) == KITE
    values = [event.value for event in events if isinstance(event, lmprog.Value)]
    assert values == [Kite("a red kite", [3, 14])], "what was thought is no value"


def test_a_reference_and_a_join_take_the_answer_without_waiting() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        first = s.gen(int, reasoning=True)
        async with s.fork(2) as branches:
            branches += f"[{first}]" + lmprog.gen(int, reasoning=True)
            branches.join("concate_and_append")
        return await s.gen()

    def script(prompt: str) -> str:
        return (
            "hm"
            if prompt.endswith("<think>")
            else str(prompt.count("["))
            if prompt.endswith("</think>")
            else "end"
        )

    with Scripted(script) as scripted:
        assert program.using(backend=scripted).run().value == "end"
        assert scripted.runtime.open_branches() == 0
    assert scripted.prompts[-1] == "0[0]1[0]1"


def test_n_answers_share_one_thought() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[int]:
        return s.gen(int, n=3, keep="majority", reasoning=True).values

    with Scripted(["hm", ["5", "7", "7"]]) as scripted:
        assert program.using(backend=scripted).run().value == [7, 5, 7]


def test_a_failure_while_reasoning_is_the_answers() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        gen = s.gen(int, reasoning=True)
        with pytest.raises(ModelError, match="not finite") as caught:
            gen.value
        assert "test_typed_reasoning.py" in caught.value.__notes__[0]
        with pytest.raises(ModelError, match="not finite"):
            s.gen().value

    with Scripted([ModelError("not finite")]) as scripted:
        program.using(backend=scripted).run()


def test_thoughts_that_were_refused_refuse_the_answer_and_leave_the_branch_usable() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("Q: ")
        with pytest.raises(ContextOverflow, match="too long"):
            s.gen(int, reasoning=True).value
        return s.gen().value

    with Scripted([ContextOverflow("too long"), "3", "fine"]) as scripted:
        assert program.using(backend=scripted).run().value == "fine"
    assert scripted.prompts[-1] == "Q: "


def test_a_failure_that_nobody_read_ends_the_run_once() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.gen(int, reasoning=True)

    with (
        Scripted([ModelError("not finite")]) as scripted,
        pytest.raises(ModelError, match="not finite"),
    ):
        program.using(backend=scripted).run()


def test_cancelling_the_answer_cancels_the_thoughts() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        with s.copy() as other:
            waiting = asyncio.ensure_future(other.gen(int, reasoning=True).wait_async())
            while not scripted.runtime.held():
                await asyncio.sleep(0.001)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        while scripted.runtime.held():
            await asyncio.sleep(0.001)
        return await s.gen()

    with Scripted([Hold(), "fine"]) as scripted:
        assert program.using(backend=scripted).run().value == "fine"


def test_the_work_is_counted_and_shown() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> lmprog.Gen[int]:
        s.append("Q: ")
        return s.gen(int, name="n", reasoning=True)

    with Scripted(["one two three", "4"]) as scripted:
        run = program.using(backend=scripted).run()
    assert run.value.meta.reasoning_tokens == 3
    assert run.value.meta.usage.generated == 1
    assert run.usage.generated == 4
    assert "3 more were reasoning, which is not shown" in run.transcript[1].note
    assert program.preview()["n_reasoning_content"].text == "Q: <think>"
    assert [call.label for call in program.explain().calls] == ["n_reasoning_content", "n"]


def test_on_a_real_runtime_the_answer_comes_also_where_the_thoughts_have_no_end(real: Real) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> tuple[str, str | None, str]:
        s.append("abc ")
        gen = s.gen(regex="[0-9]{3}", reasoning=Marks("[", "]"), max_tokens=30, ignore_eos=True)
        s.append("!")
        await s.gen(max_tokens=1)
        return await gen, gen.reasoning, await s.atext()

    with RuntimeBackend(greet(real.channel.connect())) as backend:
        run = program.using(backend=backend, seed=1).run()
    answer, reasoning, text = run.value
    assert len(answer) == 3
    assert answer.isdigit()
    assert reasoning
    assert text.startswith(f"abc {answer}!")
    assert run.usage.cached > 0
