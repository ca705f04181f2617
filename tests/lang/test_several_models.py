"""`s.with_(backend=other)` and `s.on("name")`: the branch's text goes to another backend, and what is
generated there comes back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog.backends.client import RuntimeBackend, describe
from lmprog.errors import InvalidParameter, NotSupported, ProgramError, UnknownName
from lmprog.launch import greet
from lmprog.testing import Hold, Scripted
from tests.backends.programs import chat, on
from tests.backends.scripted_api import ScriptedApi
from tests.lang.small_runtime import Real


@lmprog.function
async def drafted(s: lmprog.Branch, topic: str) -> str:
    s.user(f"A line about {topic}.")
    draft = await s.gen(name="draft")
    s.user("Is it good?")
    verdict = await s.on("judge").select("yes", "no", name="verdict")
    s.user("Why?")
    return f"{draft}/{verdict}/{await s.gen()}"


def test_another_backend_sees_the_whole_branch_and_its_answer_stays_in_it() -> None:
    with Scripted(["roses", "because"]) as home, Scripted(["yes"]) as other:
        run = drafted.using(backend=home, backends={"judge": other}).run("love")
        assert run.value == "roses/yes/because"
        assert other.prompts == [
            "<|user|>\nA line about love.\n<|assistant|>\nroses\n<|user|>\nIs it good?\n<|assistant|>\n"
        ]
        assert home.prompts[1] == f"{other.prompts[0]}yes\n<|user|>\nWhy?\n<|assistant|>\n"
        assert run["verdict"] == "yes"
        assert [turn["content"] for turn in run.messages()][3] == "yes"
        assert other.runtime.open_branches() == 0


def test_work_adds_up_by_model() -> None:
    class Named(Scripted):
        def __init__(self, answers: Any, model: str) -> None:
            super().__init__(answers)
            self.runtime.info = self._client.welcome = type(self.runtime.info)(
                1, model, 100, 0, 1, 1, 0
            )

    with Named(["roses", "because it is"], "small") as home, Named(["yes"], "large") as other:
        run = drafted.using(backend=home, backends={"judge": other}).run("love")
    by_model = run.usage_by_model
    assert {model: usage.generated for model, usage in by_model.items()} == {"small": 4, "large": 0}
    assert by_model["large"].prompt > 0
    assert run.usage.prompt == by_model["small"].prompt + by_model["large"].prompt


def test_nested_runs_on_other_backends_count_by_model_too() -> None:
    @lmprog.function
    async def inner(s: lmprog.Branch) -> str:
        s.append("In")
        return await s.gen()

    @lmprog.function
    async def outer(s: lmprog.Branch, other: Scripted) -> str:
        s.append("Out")
        return (await inner.using(backend=other).arun()).value + await s.gen()

    with Scripted(["b"]) as home, Scripted(["a"]) as other:
        run = outer.using(backend=home).run(other)
    assert run.usage_by_model == {"scripted": run.usage}
    assert run.usage.generated == 2


def test_a_view_and_a_fork_may_be_elsewhere_and_come_back() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch, other: Scripted) -> list[str]:
        s.append("Say ")
        async with s.fork(2, backend=other) as branches:
            there = await branches.map(lambda b: b.gen())
        away = s.with_(backend=other)
        assert await away.gen() == "c"
        back = away.with_(backend=None)
        return [*there, await back.gen()]

    with Scripted(["d"]) as home, Scripted(lambda prompt: "ab"[0]) as other:
        other._function = None
        other._script = ["a", "b", "c"]
        assert program.using(backend=home).run(other).value == ["a", "b", "d"]
        assert home.prompts == ["Say c"]


def test_a_plain_program_waits_for_what_goes_elsewhere() -> None:
    @lmprog.function
    def program(s: lmprog.Branch, other: Scripted) -> str:
        s.append("One ")
        s.gen()
        s.with_(backend=other).gen()
        return s.gen().value

    with Scripted(["two", "four"]) as home, Scripted([" three "]) as other:
        assert program.using(backend=home).run(other).value == "four"
        assert other.prompts == ["One two"]
        assert home.prompts == ["One ", "One two three "]


def test_on_an_event_loop_what_is_carried_must_be_there() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch, other: Scripted) -> None:
        s.append("One ")
        s.gen()
        s.with_(backend=other).gen()

    with (
        Scripted([Hold()]) as home,
        Scripted([]) as other,
        pytest.raises(ProgramError, match="would stop the event loop"),
    ):
        program.using(backend=home).run(other)


def test_a_failure_elsewhere_is_raised_where_it_is_read_or_at_the_end() -> None:
    @lmprog.function
    def program(s: lmprog.Branch, other: Scripted) -> None:
        s.append("One")
        s.with_(backend=other).gen()

    with (
        Scripted([]) as home,
        Scripted([NotSupported("not here")]) as other,
        pytest.raises(NotSupported, match="not here"),
    ):
        program.using(backend=home).run(other)


def test_a_chat_is_messages_on_an_api() -> None:
    answers = {"A line about love.": "roses", "Is it good?": "yes"}
    with Scripted(["roses", "so"]) as home, ScriptedApi(chat(answers)) as api, on(api) as judge:

        @lmprog.function
        async def program(s: lmprog.Branch) -> str:
            s.user("A line about love.")
            await s.gen()
            s.user("Is it good?")
            verdict = await s.on("judge").gen()
            s.user("Why?")
            return verdict + await s.gen()

        run = program.using(backend=home, backends={"judge": judge}).run()
        assert run.value == "yesso"
        [request] = api.requests
        assert [turn["role"] for turn in request["messages"]] == ["user", "assistant", "user"]
        assert set(run.usage_by_model) == {"scripted", "m"}


def test_a_rehearsal_asks_no_other_backend() -> None:
    with Scripted([]) as home, Scripted([]) as other:
        program = drafted.using(backend=home, backends={"judge": other})
        assert [call.label for call in program.explain("love").calls] == [
            "draft",
            "verdict",
            "gen 3",
        ]
        assert other.asked == []


def test_a_saved_run_replays_with_the_answers_of_others_as_text(tmp_path: Path) -> None:
    with Scripted(["roses", "because"]) as home, Scripted(["yes"]) as other:
        run = drafted.using(backend=home, backends={"judge": other}).run("love")
        run.save(tmp_path / "run.json")
    with Scripted(["roses", "because"]) as again:
        replayed = lmprog.replay(tmp_path / "run.json", backend=again)
    assert replayed.is_same
    assert replayed.num_calls == 2
    assert again.prompts == home.prompts


def test_a_stream_shows_what_is_said_elsewhere() -> None:
    with Scripted(["roses", "because"]) as home, Scripted(["yes"]) as other:
        events = list(drafted.using(backend=home, backends={"judge": other}).stream("love"))
    values = [event.value for event in events if isinstance(event, lmprog.Value)]
    assert values == ["roses", "yes", "because"]


def test_two_runtimes_leave_no_branch_open(real: Real) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch, other: RuntimeBackend) -> str:
        s.append("One two three ")
        first = await s.with_(backend=other).gen(max_tokens=4)
        return first + await s.gen(max_tokens=4)

    made = Real()
    try:
        with (
            RuntimeBackend(greet(real.channel.connect())) as home,
            RuntimeBackend(greet(made.channel.connect())) as other,
        ):
            run = program.using(backend=home, seed=1).run(other)
            assert run.usage.generated == 8
            assert describe(home)["open_branches"] == describe(other)["open_branches"] == 0
    finally:
        made.end()


def test_unknown_backends_are_refused() -> None:
    with Scripted([]) as home:
        with pytest.raises(UnknownName, match="there is no backend 'judge'"):
            drafted.using(backend=Scripted(["a"])).run("love")

        @lmprog.function
        def program(s: lmprog.Branch) -> None:
            s.with_(backend="http://x")  # type: ignore[typeddict-item]

        with pytest.raises(InvalidParameter):
            program.using(backend=home).run()
