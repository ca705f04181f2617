"""The default backend: a runtime process started when the first program needs it, with the shipped
model.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lmprog
from lmprog.backends.connecting.embedded import Runtime
from lmprog.cli import main
from lmprog.errors import InvalidParameter, RuntimeGone

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "lmprog" / "nano" / "model.safetensors").exists(),
    reason="the shipped model is not in this checkout",
)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime("nano") as made:
        yield made


REPEATS = {"properties": {"a": {"type": "string", "pattern": r"^(x|y)\1"}}}


@lmprog.function
def lenient(s: lmprog.Branch) -> tuple[str, ...]:
    s += "JSON: "
    return s.gen(schema=REPEATS, strict=False, max_tokens=60).meta.left_out


def test_a_result_says_what_of_its_schema_was_left_out(runtime: Runtime) -> None:
    (reason,) = lenient.run(backend=runtime).value
    assert "#/properties/a/pattern" in reason


@lmprog.function
async def program(s: lmprog.Branch) -> tuple[str, list[int], str]:
    s.system("You are kind.")
    s.user("Hello!")
    with s.assistant():
        hello = await s.gen(max_tokens=8)
    async with s.fork(2) as branches:
        numbers = await branches.map(lambda b: b.gen(int, max_tokens=8))
    kind = await s.select("yes", "no")
    return hello, numbers, kind


def test_a_program_runs_on_the_shipped_model(runtime: Runtime) -> None:
    run = program.using(backend=runtime, temperature=0).run()
    hello, numbers, kind = run.value
    assert hello
    assert numbers[0] == numbers[1]  # greedy
    assert kind in ("yes", "no")
    assert hello in run.text()
    assert run.usage.cached > 0
    assert lmprog.get_server_info(runtime)["open_branches"] == 0
    lmprog.flush_cache(runtime)
    assert program.using(backend=runtime, temperature=0).run().value == run.value, (
        "the cache never changes the answer"
    )


def test_one_model_is_named_once() -> None:
    with pytest.raises(InvalidParameter, match="give one of them"):
        Runtime("nano", model_path="nano")


def test_a_second_client_reaches_it_by_its_address(runtime: Runtime) -> None:
    with lmprog.connect(runtime.address) as other:
        assert other.client.welcome == runtime.client.welcome


def test_a_runtime_that_is_killed_fails_every_waiting_call_within_two_seconds() -> None:
    @lmprog.function
    def forever(s: lmprog.Branch) -> None:
        s.append("x")
        while True:
            with s.copy() as other:
                other.gen(max_tokens=64, ignore_eos=True).value

    with Runtime(model_path="nano") as doomed:
        killed: list[float] = []

        def kill() -> None:
            killed.append(time.monotonic())
            os.kill(doomed.process.pid, signal.SIGKILL)

        threading.Timer(0.5, kill).start()
        with pytest.raises(RuntimeGone):
            forever.using(backend=doomed).run()
        assert time.monotonic() - killed[0] < 2


def test_a_program_without_a_backend_starts_a_runtime_and_leaves_none_behind() -> None:
    code = (
        "import lmprog\n"
        "@lmprog.function\n"
        "def hello(s):\n"
        "    s += 'Hello' + lmprog.gen('a', max_tokens=3)\n"
        "hello.run()\n"
        "print(int(lmprog.get_server_info()['pid']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    (told,) = done.stderr.splitlines()
    assert "nothing names a model, so this runs on nano, the toy model" in told
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_a_saved_run_is_replayed_by_the_command(
    runtime: Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.using(backend=runtime).run().save(tmp_path / "run.json")
    lmprog.flush_cache(runtime)
    assert main(["replay", str(tmp_path / "run.json"), "--address", runtime.address]) == 0
    assert "the same, token for token" in capsys.readouterr().out
