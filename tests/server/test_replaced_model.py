"""A server whose model is replaced under its name, between the calls of programs over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

import lmprog
from lmprog.backends.blackbox.server_backend import RuntimeEndpoint
from lmprog.errors import CheckpointMismatch, RuntimeGone
from lmprog.launch import RuntimeProcess
from lmprog.native import compiler
from lmprog.server.http.http_server import bind, url_of
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.service import ServerService
from lmprog.server.supervision.supervised_fleet import joined_runtimes
from tests.model.small_checkpoint import write_checkpoint

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

PATIENCE = 120.0


class Replaceable:
    """A server's only runtime, which is ended and begun again at its address."""

    def __init__(self, folder: Path) -> None:
        self.url = ""
        self._options: dict[str, Any] = {"threads": 1, "kv_memory_mb": 32}
        self.runtime = RuntimeProcess(str(folder), address="tcp://127.0.0.1:*", **self._options)

    def replace(self, folder: Path) -> None:
        """Until the server serves the model of `folder`."""
        before, address = self.card()["fingerprint"], self.runtime.address
        self.runtime.close()
        self.runtime = RuntimeProcess(str(folder), address=address, **self._options)
        deadline = time.monotonic() + PATIENCE
        while self.card().get("fingerprint", before) == before:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def card(self) -> dict[str, Any]:
        answer = httpx2.get(f"{self.url}/v1/models", trust_env=False)
        card: dict[str, Any] = answer.json()["data"][0] if answer.status_code == 200 else {}
        return card

    def post(self, **body: Any) -> httpx2.Response:
        return httpx2.post(f"{self.url}/v1/programs", json=body, trust_env=False, timeout=PATIENCE)


def served(folder: Path, use: Callable[[Replaceable], None]) -> None:
    """`use` runs in a thread beside the server."""

    async def run() -> None:
        there = await asyncio.to_thread(Replaceable, folder)
        bound = bind(settings := ServerSettings(port=0))
        service = ServerService(settings, joined_runtimes([there.runtime.address], None))
        up = asyncio.Event()
        serving = asyncio.create_task(service.run(bound, lambda facts: up.set()))
        there.url = url_of(bound)
        try:
            async with asyncio.timeout(PATIENCE):
                await up.wait()
            await asyncio.to_thread(use, there)
            service.ask_to_stop()
            assert await asyncio.wait_for(serving, PATIENCE)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            there.runtime.close(0.0)

    asyncio.run(run())


def nothing() -> None:
    """Between the calls of a program that nobody disturbs."""


@lmprog.function
def halves(s: lmprog.Branch, between: Callable[[], None]) -> str:
    s += "It begins: "
    s += lmprog.gen("first", max_tokens=8, ignore_eos=True, temperature=0)
    first = str(s["first"])
    between()
    s += lmprog.gen("second", max_tokens=8, ignore_eos=True, temperature=0)
    return first + str(s["second"])


@lmprog.function
def paused(s: lmprog.Branch) -> str:
    s += "It begins: "
    s += lmprog.gen("first", max_tokens=8, ignore_eos=True, temperature=0)
    assert s["first"]
    s.pause("Go on?")
    return str(s.gen(max_tokens=8, ignore_eos=True))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two models of one name."""
    one, other = (write_checkpoint(tmp_path / str(at) / "model", seed=at) for at in range(2))
    return one, other


def test_a_program_over_http_is_of_one_model_and_the_next_is_of_the_new_one(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    def use(there: Replaceable) -> None:
        with RuntimeEndpoint(there.url) as backend:
            program = halves.using(backend=backend)
            of_one = program.run(nothing).value
            cached = program.using(cache=tmp_path / "cache")

            def replaced_and_noticed() -> None:
                there.replace(folders[0])
                with pytest.raises(RuntimeGone, match="model was replaced"):
                    program.run(nothing)

            with pytest.raises(RuntimeGone, match="model was replaced"):
                program.run(lambda: there.replace(folders[1]))
            of_other = program.run(nothing).value  # the backend serves on
            assert of_other != of_one
            assert cached.run(nothing).value == of_other
            with pytest.raises(RuntimeGone, match="model was replaced"):
                program.using(cache=tmp_path / "empty").run(replaced_and_noticed)
            again = cached.run(nothing)
            assert (again.value, again.num_from_cache) == (of_one, 0)

    served(folders[0], use)


def test_a_stopped_run_over_http_is_refused_by_another_model_of_its_name(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    def use(there: Replaceable) -> None:
        with RuntimeEndpoint(there.url) as backend, pytest.raises(lmprog.Paused):
            paused.using(backend=backend, checkpoint=tmp_path / "run").run()
        there.replace(folders[1])
        with (
            RuntimeEndpoint(there.url) as backend,
            pytest.raises(CheckpointMismatch, match="another weights"),
        ):
            lmprog.resume(tmp_path / "run", paused, backend=backend, answer="yes")

    served(folders[0], use)


def test_a_program_may_say_with_which_model_it_has_begun(folders: tuple[Path, Path]) -> None:
    ops = [{"op": "open", "branch": "b"}, {"op": "gen", "branch": "b", "call": "c"}]
    ops[1]["max_tokens"] = 2  # type: ignore[assignment]

    def use(there: Replaceable) -> None:
        mark = there.card()["fingerprint"]["digest"]
        answer = there.post(ops=ops, fingerprint=mark)
        assert answer.status_code == 200, answer.text
        for is_streamed in (False, True):
            answer = there.post(ops=ops, fingerprint="0" * 32, stream=is_streamed)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (412, "runtime_gone")
            assert error["param"] == "fingerprint"

    served(folders[0], use)
