"""One real server before nano for all tests that want one, and fake runtimes for the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import openai
import pytest

from tests.server.fake_runtime import Fake
from tests.server.live import Live


@dataclass(frozen=True)
class Served:
    """A server process: where it is, and where its runtime is."""

    url: str
    runtime: str
    process: subprocess.Popen[str]


def start(*arguments: str) -> Served:
    """`python -m lmprog.server` on a free port, once it serves."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lmprog.server", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"the server ended with {process.wait(60)}"
        said = json.loads(line)
        return Served(said["url"], said["runtime"], process)
    except (
        BaseException
    ):  # a time limit of the test may strike here, and nobody else knows of the process
        process.kill()
        process.wait()
        process.stdout.close()
        raise


def stop(served: Served) -> int:
    """Asks it to end; its exit code."""
    served.process.terminate()
    try:
        return served.process.wait(60)
    finally:
        served.process.kill()
        if served.process.stdout is not None:
            served.process.stdout.close()


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    """A server before nano, shared by all tests: leave it as you found it. It drafts nothing, so
    that a long answer, which repeats itself, lasts as many steps as it has tokens.
    """
    served = start("--model", "nano", "--options", '{"speculation": "off"}')
    yield served
    assert stop(served) == 0


@pytest.fixture(scope="session")
def live(server: Served) -> Iterator[Live]:
    """A plain client of that server."""
    live = Live(server.url)
    with live.http:
        yield live


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A fake runtime of this test's own."""
    with Fake() as runtime:
        yield runtime


@pytest.fixture
def client(server: Served) -> openai.OpenAI:
    """The `openai` package on the real server."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120.0)
