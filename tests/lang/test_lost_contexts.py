"""A run inside of a run finds its backend by the context of the thread. A thread of the user's own
may not have it: then nothing else answers in silence.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog.backends.connecting import default
from lmprog.cli import main
from lmprog.errors import InvalidParameter, ModelError, ProgramError
from lmprog.launch import RuntimeProcess
from lmprog.testing import Scripted


@lmprog.function
def inner(s: lmprog.Branch, word: str) -> str:
    s.append(word)
    return s.gen().value


@pytest.fixture(autouse=True)
def no_other_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The embedded runtime must not start here; nor does a run of this file go on after its
    test.
    """

    def start(self: object) -> None:
        raise AssertionError("the embedded runtime was started")

    monkeypatch.setattr(default._Default, "_start", start)
    yield
    assert default._default.running == {}


def in_pool(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def body() -> None:
        try:
            found.append(function())
        except ProgramError as error:
            found.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def in_executor(function: Callable[[], Any]) -> Any:
    async def body() -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, function)

    return asyncio.run(body())


def with_context(function: Callable[[], Any]) -> Any:
    context = contextvars.copy_context()
    return in_pool(lambda: context.run(function))


def to_thread(function: Callable[[], Any]) -> Any:
    async def body() -> Any:
        return await asyncio.to_thread(function)

    return asyncio.run(body())


ASKING: dict[str, Callable[[], Any]] = {
    "run": lambda: inner.run("x").value,
    "map": lambda: list(inner.map(["x"])),
    "arun": lambda: asyncio.run(inner.arun("x")).value,
    "preview": lambda: inner.preview("x"),
    "info": lmprog.get_server_info,
}


@pytest.mark.parametrize("what", ASKING)
@pytest.mark.parametrize("where", [in_pool, in_thread, in_executor])
def test_in_a_thread_without_the_context_the_error_names_the_cures(
    where: Callable[[Callable[[], Any]], Any], what: str
) -> None:
    @lmprog.function
    def outer(s: lmprog.Branch) -> Any:
        return where(ASKING[what])

    with Scripted() as scripted, pytest.raises(ProgramError) as caught:
        outer.run(backend=scripted)
    for cure in ("contextvars.copy_context().run", "asyncio.to_thread", "using(backend=...)"):
        assert cure in caught.value.message
    assert "Scripted ('scripted')" in caught.value.message


@pytest.mark.parametrize("where", [with_context, to_thread])
def test_a_thread_with_the_context_asks_the_backend_of_the_run(
    where: Callable[[Callable[[], Any]], Any],
) -> None:
    @lmprog.function
    def outer(s: lmprog.Branch) -> Any:
        return where(ASKING["run"])

    with Scripted(["yes"]) as scripted:
        run = outer.run(backend=scripted)
    assert run.value == "yes"
    assert run.usage.generated == 1, "its work is the run's"


@pytest.mark.parametrize("where", [in_pool, in_thread, in_executor])
def test_a_backend_that_was_named_is_asked_from_any_thread(
    where: Callable[[Callable[[], Any]], Any],
) -> None:
    with Scripted(["named"]) as other:

        @lmprog.function
        def outer(s: lmprog.Branch) -> Any:
            return where(lambda: inner.using(backend=other).run("x").value)

        with Scripted() as scripted:
            assert outer.run(backend=scripted).value == "named"


def test_a_default_that_was_set_is_asked_from_any_thread() -> None:
    @lmprog.function
    def outer(s: lmprog.Branch) -> Any:
        return in_pool(ASKING["run"])

    with Scripted(["default"]) as chosen, Scripted() as scripted:
        lmprog.set_default_backend(chosen)
        try:
            assert outer.run(backend=scripted).value == "default"
        finally:
            lmprog.set_default_backend(None)


def test_calls_about_a_runtime_are_about_that_of_the_program(tmp_path: Path) -> None:
    @lmprog.function
    def outer(s: lmprog.Branch) -> tuple[str, bool]:
        lmprog.flush_cache()
        return lmprog.get_server_info()["model"], lmprog.replay(tmp_path / "run.json").is_same

    with Scripted(lambda prompt: "yes") as scripted:
        inner.run("x", backend=scripted).save(tmp_path / "run.json")
        program = outer.using(backend=scripted)
        assert program.run().value == ("scripted", True)
        assert program.using(cache=tmp_path).run().value == ("scripted", True)


def test_a_run_that_has_ended_refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it has ended."""

    @lmprog.function
    async def waiting(s: lmprog.Branch) -> None:
        await asyncio.Event().wait()

    with Scripted([ModelError("no"), "yes"]) as scripted:
        with pytest.raises(ModelError):
            inner.run("x", backend=scripted)
        inner.run("x", backend=scripted)
        with pytest.raises(lmprog.errors.DeadlineExceeded):
            waiting.using(backend=scripted, timeout=0.01).run()
    monkeypatch.setattr(default._Default, "_start", lambda self: Scripted(["nano"]))
    monkeypatch.setattr(default._default, "_embedded", None)
    assert inner.run("x").value == "nano"
    embedded: Any = default._default._embedded
    embedded.close()


def test_a_run_on_the_default_backend_refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    @lmprog.function
    def outer(s: lmprog.Branch) -> Any:
        return in_pool(ASKING["run"])

    monkeypatch.setattr(default._Default, "_start", lambda self: Scripted(["nano"]))
    monkeypatch.setattr(default._default, "_embedded", None)
    assert outer.run().value == "nano"
    embedded: Any = default._default._embedded
    embedded.close()


def test_an_empty_model_is_no_default(capsys: pytest.CaptureFixture[str]) -> None:
    for start in (
        lambda: lmprog.Runtime(""),
        lambda: lmprog.Runtime(" "),
        lambda: lmprog.Runtime(model_path=""),
        lambda: RuntimeProcess(""),
        lambda: lmprog.sglang.Engine(model_path=""),
    ):
        with pytest.raises(InvalidParameter, match="names no model; give the name of a model"):
            start()
    assert main(["run", "examples/hello.py::hello", "--model", ""]) == 2
    assert "names no model" in capsys.readouterr().err
