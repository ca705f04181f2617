"""What new users of the language try first: notebooks, methods, addresses, mixed programs."""

from __future__ import annotations

import asyncio
import copy
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.connecting import default
from lmprog.errors import (
    IncompleteValue,
    InvalidParameter,
    LmprogError,
    NotSupported,
    ProgramError,
    TokenBudgetExceeded,
)
from lmprog.lang.ops.expressions import ToolOptions
from lmprog.launch.runtime_process import configured
from lmprog.testing import Hold, Scripted
from tests.backends.programs import on
from tests.backends.scripted_api import ScriptedApi


@lmprog.function
def plain(s: lmprog.Branch, word: str) -> str:
    s.append(word)
    return s.gen("a").value


@lmprog.function
async def awaiting(s: lmprog.Branch, word: str) -> str:
    s.append(word)
    return await s.gen("a")


@pytest.mark.parametrize("program", [plain, awaiting])
def test_map_and_run_batch_work_in_a_notebook(program: lmprog.Program[[str], str]) -> None:
    async def cell() -> list[list[str]]:
        mapped = program.map(["a", "b"], backend=scripted)
        batch = program.run_batch([{"word": "a"}, {"word": "b"}], backend=scripted)
        return [list(mapped), [run.value for run in batch]]

    with Scripted(str.upper) as scripted:
        assert asyncio.run(cell()) == [["A", "B"]] * 2


@pytest.mark.parametrize("program", [plain, awaiting])
def test_amap_does_not_stop_the_loop(program: lmprog.Program[[str], str]) -> None:
    async def main() -> list[str]:
        task = asyncio.create_task(program.amap(["a", "b"], backend=scripted))
        while len(scripted.runtime.held()) < 2:
            await asyncio.sleep(0.001)  # the loop goes on beside them
        scripted.release("x")
        scripted.release("x")
        return list(await task)

    with Scripted([Hold(), Hold()]) as scripted:
        assert asyncio.run(main()) == ["x", "x"]


def test_amap_that_is_cancelled_ends_its_runs() -> None:
    async def main() -> None:
        task = asyncio.create_task(awaiting.amap(["a", "b"], backend=scripted))
        while len(scripted.runtime.held()) < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert scripted.runtime.open_branches() == 0

    with Scripted([Hold(), Hold()]) as scripted:
        asyncio.run(main())


def test_map_inside_an_async_program_says_what_to_write() -> None:
    @lmprog.function
    async def outer(s: lmprog.Branch) -> None:
        awaiting.map(["a"])

    with Scripted() as scripted, pytest.raises(ProgramError, match=r"await program\.amap"):
        outer.using(backend=scripted).run()


def test_a_plain_program_goes_on_with_the_branch_of_an_async_one() -> None:
    main_thread = threading.get_ident()

    @lmprog.function
    def part(s: lmprog.Branch, word: str) -> str:
        assert threading.get_ident() != main_thread
        s.append(word)
        return s.gen("part").value

    @lmprog.function
    async def outer(s: lmprog.Branch) -> str:
        s.append("so ")
        return await part.acall(s, "it is ")

    with Scripted(["good"]) as scripted:
        run = outer.using(backend=scripted).run()
    assert (run.value, run.text(), run["part"]) == ("good", "so it is good", "good")


class Clerk:
    def __init__(self, name: str) -> None:
        self.name = name

    @lmprog.function
    def sign(self, s: lmprog.Branch, letter: str) -> str:
        s.append(f"{letter} {self.name}")
        return s.gen().value

    @lmprog.function
    async def asign(self, s: lmprog.Branch, letter: str) -> str:
        s.append(f"{letter} {self.name}")
        return await s.gen()


def test_methods_are_programs() -> None:
    with Scripted(lambda prompt: prompt + "!") as scripted:
        ada, bob = Clerk("Ada"), Clerk("Bob")
        assert ada.sign.using(backend=scripted).run("Yours,").value == "Yours, Ada!"
        assert bob.asign.using(backend=scripted).run(letter="Dear").value == "Dear Bob!"
        assert list(bob.asign.map(["x", "y"], backend=scripted)) == ["x Bob!", "y Bob!"]


def test_a_backend_may_be_an_address() -> None:
    with ScriptedApi(lambda prompt: " Rome") as api:
        first = plain.run("Italy?", backend=api.base_url)  # type: ignore[call-arg]
        second = plain.using(backend=api.base_url).run("Italy?")
        assert first.value == second.value == " Rome"
        assert first.scope.backend is second.scope.backend is default.backend_at(api.base_url)
        first.scope.backend.close()


def test_several_failures_on_one_branch_are_raised_as_the_first() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("Q")
        s.gen("a")
        s.gen("b")

    with (
        Scripted([NotSupported("no a"), NotSupported("no b")]) as scripted,
        pytest.raises(NotSupported, match="no a") as caught,
    ):
        program.using(backend=scripted).run()
    assert any("no b" in note for note in caught.value.__notes__)


def test_the_token_budget_has_an_error_of_its_own() -> None:
    long = Scripted(["one two three"], strict=False)
    with long as scripted, pytest.raises(TokenBudgetExceeded):
        plain.using(backend=scripted, max_total_tokens=2).run("a b c")


def test_select_can_draw() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("Q")
        s.select("a", "b", sample=True)
        s.select("a", "b", sample=True, temperature=0.5)
        s.select("a", "b")

    with Scripted(["a", "b", "a"]) as scripted:
        program.using(backend=scripted).run()
    ops = [asked.op for asked in scripted.asked]
    assert [op.temperature for op in ops if isinstance(op, wire.Select)] == [1.0, 0.5, 0.0]
    with pytest.raises(InvalidParameter, match="sample=True draws"):
        lmprog.select("x", ["a", "b"], sample=True, temperature=0.0)


def test_a_notebook_shows_previews_and_explanations() -> None:
    with Scripted() as scripted:
        program = plain.using(backend=scripted)
        assert "&lt;b&gt;" in program.preview("<b>")._repr_html_()
        assert "<pre" in program.explain("<b>")._repr_html_()


def test_a_result_that_is_written_twice_is_warned_of() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.user("Q")
        s.assistant(s.gen())

    with Scripted(["a"]) as scripted, pytest.warns(UserWarning, match="written twice"):
        program.using(backend=scripted).run()


def test_a_typed_value_that_the_token_limit_ended_is_incomplete() -> None:
    @lmprog.function
    def number(s: lmprog.Branch, on_incomplete: str) -> int:
        s.append("Q")
        return s.gen(int, max_tokens=1, on_incomplete=on_incomplete).value  # type: ignore[call-overload,no-any-return]

    with ScriptedApi(lambda prompt: "12 34") as api, on(api, dialect="vllm") as backend:
        program = number.using(backend=backend)
        with pytest.raises(IncompleteValue, match="ended the value early") as caught:
            program.run("raise")
        assert caught.value.text == "12"
        assert program.run("keep").value == 12


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda gen: gen.upper(), "is a pending result without 'upper'.*read its .value, or await"),
        (lambda gen: gen + "x", "is a pending result.*read its .value, or await.*f-string"),
        (lambda gen: "x" + gen, "is a pending result.*read its .value"),
        (lambda gen: gen[0], "is a pending result.*read its .value"),
        (lambda gen: len(gen), "is a pending result.*read its .value"),
        (lambda gen: gen > 3, "is a pending result.*read its .value"),
        (lambda gen: int(gen), "is a pending result.*read its .value"),
        (lambda gen: "x" in gen, "is a pending result.*read its .value"),
    ],
)
def test_whoever_computes_with_a_pending_result_is_told_to_read_it(
    use: Callable[[Any], object], said: str
) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        use(s.gen())

    with (
        Scripted(lambda prompt: "x") as scripted,
        pytest.raises((TypeError, AttributeError), match=said),
    ):
        program.run(backend=scripted)


def test_a_pending_result_can_be_copied() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        return copy.copy(s.gen()).value

    with Scripted(["x"]) as scripted:
        assert program.run(backend=scripted).value == "x"


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (lambda: lmprog.gen(int, regex="a+"), "give either <class 'int'> or the constraint"),  # type: ignore[call-overload]
        (lambda: lmprog.gen("Write a poem"), "append it first"),
        (lambda: lmprog.gen("Who?"), "append it first"),
        (lambda: lmprog.gen(name=int), r"a type comes first: gen\(int"),  # type: ignore[call-overload]
        (lambda: lmprog.gen("x", choices=[1, 2]), "1 is of type int"),  # type: ignore[list-item]
        (lambda: lmprog.select(["a", "\ud800"]), "lone surrogate"),
        (lambda: lmprog.gen("x", stop=["a", "\ud800"]), "lone surrogate"),
        (lambda: lmprog.gen("x", regex="\ud800+"), "lone surrogate"),
        (lambda: lmprog.gen("x", schema={"const": "\ud800"}), "lone surrogate"),
        (lambda: lmprog.Runtime(kv_memory=5), "did you mean 'kv_memory_mb'"),  # type: ignore[call-arg]
        (lambda: lmprog.Runtime(modl="nano"), "did you mean 'model'"),  # type: ignore[call-arg]
        (lambda: lmprog.OpenAI("m", api_kei="x"), "did you mean 'api_key'"),  # type: ignore[call-arg]
    ],
)
def test_a_beginners_mistake_is_told_what_is_meant(op: Callable[[], object], said: str) -> None:
    with pytest.raises(LmprogError, match=said) as caught:
        op()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda s: s.append("half: \ud83d"), "lone surrogate"),
        (lambda s: s.assistant(None), r"s.assistant\(None\) says nothing"),
        (lambda s: s.extend([{"content": "x"}]), "message 0 has no role"),
        (lambda s: s.extend([{"role": "user", "content": [{"type": "image_url"}]}]), "image_url"),
        (lambda s: s.extend([{"role": "assistant", "tool_calls": [{}]}]), "has tool_calls"),
    ],
)
def test_what_cannot_be_written_is_told_why(write: Callable[[Any], object], said: str) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        write(s)

    with Scripted() as scripted, pytest.raises(LmprogError, match=said):
        program.run(backend=scripted)


def test_the_messages_of_a_chat_are_appended_by_one_verb() -> None:
    history = [
        {"role": "system", "content": "Be short."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Who "}, {"type": "text", "text": "are you?"}],
        },
        {"role": "assistant", "content": "I."},
    ]

    @lmprog.function
    def program(s: lmprog.Branch) -> list[dict[str, str]]:
        s.extend(history)
        return s.messages()

    with Scripted() as scripted:
        found = program.run(backend=scripted).value
    assert [message["content"] for message in found] == ["Be short.", "Who are you?", "I."]


def test_an_argument_in_the_place_of_a_setting_leads_to_bind() -> None:
    @lmprog.function
    def program(s: lmprog.Branch, item: int, doc: str) -> str:
        return f"{item}{doc}"

    with Scripted() as scripted:
        with pytest.raises(InvalidParameter, match=r"program.bind\(doc=...\)"):
            program.map([1], doc="x", backend=scripted)  # type: ignore[call-arg]
        assert program.bind(doc="x").map([1], backend=scripted)[0] == "1x"
        with pytest.raises(TypeError, match="no parameter 'dok'; did you mean 'doc'"):
            program.bind(dok="x")
        with pytest.raises(TypeError, match="no setting of a run; did you mean 'temperature'"):
            program.run(1, "x", temprature=1)  # type: ignore[call-arg]


def test_a_checkpoint_that_is_not_there_is_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        lmprog.resume(tmp_path / "none")


def test_a_result_shows_only_what_programs_use() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[list[str], bool]:
        gen = s.gen()
        shown = dir(gen)
        return shown, all(hasattr(type(gen), name) or name in vars(gen) for name in shown)

    with Scripted(["x"]) as scripted:
        shown, are_there = program.run(backend=scripted).value
    assert {"value", "text", "meta", "cancel"} <= set(shown)
    assert not {"key", "origin", "wanted", "compared_text", "root"} & set(shown)
    assert are_there


def test_help_names_the_keywords_of_gen_and_of_a_runtime() -> None:
    for gen in (lmprog.gen, lmprog.Branch.gen):
        named = inspect.signature(gen).parameters
        assert {"name_or_type", "max_tokens", "temperature", "stop", "schema", "tools"} <= {*named}
        for name in named.keys() - {"self", "name_or_type", "tools"}:
            assert name in {"name", "max_tokens", *ToolOptions.__annotations__}
    named = inspect.signature(lmprog.Runtime).parameters
    assert [*named][:2] == ["model", "device"]
    for name, one in named.items():
        if name not in ("self", "model") and one.default not in (None, one.empty):
            configured("nano", {name: one.default})
