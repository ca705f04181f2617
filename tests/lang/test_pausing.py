"""`s.pause(question)` stops a run until it is resumed with an answer; what is outside of the model is
asked once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import lmprog
from lmprog.errors import ProgramError
from lmprog.testing import Scripted


def _asked(s: lmprog.Branch, text: str) -> str:
    return f"{s.pause(f'Is {text!r} right?')} {s.pause('And now?')}"


@lmprog.function
def plain_pausing(s: lmprog.Branch, text: str) -> str:
    s.append(text)
    text = s.gen().value
    answers = _asked(s, text)
    s.append("y")
    return f"{text} {answers} {s.gen().value}"


@lmprog.function
async def async_pausing(s: lmprog.Branch, text: str) -> str:
    s.append(text)
    text = await s.gen()
    answers = _asked(s, text)
    s.append("y")
    return f"{text} {answers} {await s.gen()}"


@lmprog.function
async def branch_pausing(s: lmprog.Branch, text: str) -> str:
    async def steps(b: lmprog.Branch) -> str:
        found = await b.gen()
        return f"{found} {_asked(b, found)}"

    s.append(text)
    async with s.fork(1) as branches:
        (found,) = await branches.map(steps)
    s.append("y")
    return f"{found} {await s.gen()}"


@lmprog.function
async def nested_pausing(s: lmprog.Branch, text: str) -> str:
    found = (await inner_pausing.arun(text)).value
    s.append("y")
    return f"{found} {await s.gen()}"


@lmprog.function
async def inner_pausing(s: lmprog.Branch, text: str) -> str:
    s.append(text)
    found = await s.gen()
    return f"{found} {_asked(s, found)}"


PAUSING = {
    "plain": plain_pausing,
    "async": async_pausing,
    "branch": branch_pausing,
    "nested": nested_pausing,
}


@pytest.mark.parametrize("kind", ["plain", "async", "branch", "nested"])
def test_a_paused_run_goes_on_with_the_answer(kind: str, tmp_path: Path) -> None:
    program, path = PAUSING[kind], tmp_path / "run.jsonl"
    with Scripted(lambda prompt: prompt[-1] + "!") as scripted:
        with pytest.raises(lmprog.Paused) as paused:
            program.using(backend=scripted).run("x")
        assert paused.value.question == "Is 'x!' right?"
        paused.value.checkpoint(path)
        with pytest.raises(lmprog.Paused) as again:
            lmprog.resume(path, program, backend=scripted)
        assert again.value.question == "Is 'x!' right?"
        asked = len(scripted.prompts)
        with pytest.raises(lmprog.Paused, match="And now"):
            lmprog.resume(path, program, backend=scripted, answer={"ok": True})
        run = lmprog.resume(path, program, backend=scripted, answer="yes")
        assert run.value == "x! {'ok': True} yes y!"
        assert len(scripted.prompts) == asked + 1, "only what comes after the answers is asked"
        with pytest.raises(ProgramError, match="no question"):
            lmprog.resume(path, program, backend=scripted, answer="yes")


def test_a_program_cannot_go_on_as_if_it_were_not_paused() -> None:
    @lmprog.function
    def deaf(s: lmprog.Branch) -> str:
        try:
            s.pause("May I?")
        except Exception:  # noqa: BLE001
            s["x"] = 1
        return "done"

    with Scripted([]) as scripted, pytest.raises(lmprog.Paused):
        deaf.using(backend=scripted).run()


def test_functions_and_tools_are_not_called_twice(tmp_path: Path) -> None:
    path, called = tmp_path / "run.jsonl", []

    def weather(city: str) -> dict[str, str]:
        called.append(city)
        return {"sky": "rain"}

    @lmprog.function
    async def acting(s: lmprog.Branch) -> str:
        now = s.once(lambda: called.append("now") or (1, 2))
        later = await s.once(_later, called)
        s.user(f"The weather? {now} {later}")
        acted = await s.act([weather])
        s.pause("Go on?")
        return f"{acted.text} {acted.results[0].value}"

    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    with Scripted([call, "It rains."]) as scripted, pytest.raises(lmprog.Paused) as paused:
        acting.using(backend=scripted).run()
    paused.value.checkpoint(path)
    assert called == ["now", "later", "Oslo"]
    with Scripted([]) as scripted:
        run = lmprog.resume(path, acting, backend=scripted, answer=None)
    assert run.value == "It rains. {'sky': 'rain'}"
    assert called == ["now", "later", "Oslo"]
    assert "[1, 2] [3]" in run.text(), "as JSON has it"


async def _later(called: list[object]) -> tuple[int]:
    called.append("later")
    return (3,)
