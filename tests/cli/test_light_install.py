"""What a plain `pip install lmprog` brings is enough for programs on the native engine; whatever
needs more says what to install.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest

import lmprog
from lmprog.native import library

ROOT = Path(lmprog.__file__).parents[1]
ABSENT = ["torch", "transformers", "safetensors", "uvloop", "openai", "anthropic", "llguidance"]
ABSENT += ["ray"]
PROGRAM = """
import sys
import lmprog

@lmprog.function
def reads(s: lmprog.Branch) -> str:
    s += "Mia lives in Oslo.\\nQ: Where does Mia live?\\nA:"
    return str(s.gen(max_tokens=4, stop="\\n", temperature=0))

with lmprog.Runtime("nano", **eval(sys.argv[1])) as backend:
    print(reads.using(backend=backend).run().value)
"""
needs_kernels = pytest.mark.skipif(library("engine") is None, reason="no C++ compiler")


@pytest.fixture
def light(tmp_path: Path) -> dict[str, str]:
    """An environment in which only what `lmprog` itself asks for can be imported, by children too."""
    absent = "".join(f"sys.modules[{name!r}] = None\n" for name in ABSENT)
    (tmp_path / "sitecustomize.py").write_text("import sys\n" + absent)
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    return {**os.environ, "PYTHONPATH": paths}


def ran(light: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=light, capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_plain_install_brings_a_server_and_no_torch() -> None:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {one.partition(">")[0] for one in described["dependencies"]}
    assert not names & {*ABSENT, "numba", "scipy"}
    assert {"msgspec", "fastapi", "uvicorn"} <= names


@needs_kernels
def test_the_server_answers_a_chat(light: dict[str, str]) -> None:
    command = [sys.executable, "-m", "lmprog.cli", "serve", "nano", "--port", "0"]
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    head = {"content-type": "application/json"}
    with subprocess.Popen(
        command, env=light, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as serving:
        try:
            assert serving.stdout is not None
            url = next(line.split()[1] for line in serving.stdout if line.split()[:1] == ["url"])
            sent = urllib.request.Request(
                f"{url}/v1/chat/completions", json.dumps(body).encode(), head
            )
            with urllib.request.urlopen(sent, timeout=120) as answer:
                assert json.load(answer)["choices"]
        finally:
            serving.terminate()


@needs_kernels
def test_a_program_runs(light: dict[str, str]) -> None:
    done = ran(light, "-c", PROGRAM, "{}")
    assert (done.returncode, done.stdout.strip() != "") == (0, True), done.stderr


@needs_kernels
@pytest.mark.parametrize("command", ["doctor", "--version", "demo"])
def test_commands_work(light: dict[str, str], command: str) -> None:
    done = ran(light, "-m", "lmprog.cli", command)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "options", ["dict(engine='torch')", "dict(device='emulated')", "dict(attention='reference')"]
)
def test_what_needs_torch_says_so(light: dict[str, str], options: str) -> None:
    done = ran(light, "-c", PROGRAM, options)
    assert done.returncode == 1
    assert "needs torch, which is not installed: pip install 'lmprog[torch]'" in done.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["doctor", "--gpu"], "cuda"),
        (["serve", "nano", "--port", "0", "--ray"], "ray"),
        (["serve", "--port", "0", "--join", "ray:stories"], "ray"),
        (["serve", "nano", "--port", "0", "--tp", "2"], "torch"),
        (["serve", "nano", "--port", "0", "--engine", "torch"], "torch"),
    ],
)
def test_a_command_that_needs_more_says_what_to_install(
    light: dict[str, str], command: list[str], extra: str
) -> None:
    done = ran(light, "-m", "lmprog.cli", *command)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert f"pip install 'lmprog[{extra}]'" in done.stderr


def test_a_file_that_cannot_be_written_is_a_sentence(light: dict[str, str], tmp_path: Path) -> None:
    absent = str(tmp_path / "absent" / "worlds.jsonl")
    done = ran(
        light, "-m", "lmprog.cli", "sim", "--worlds", "1", "--steps", "5", "--record", absent
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == f"lmprog: {absent}: No such file or directory"


@pytest.mark.parametrize("command", ["constraint", "cache", "fleet"])
def test_help_of_a_command_with_verbs_says_what_each_does(
    light: dict[str, str], command: str
) -> None:
    said = ran(light, "-m", "lmprog.cli", command, "--help").stdout
    verbs = {"constraint": ["explain"], "cache": ["list", "clear"], "fleet": ["keys", "drain"]}
    for verb in verbs[command]:
        assert any(line.split()[:1] == [verb] and line.split()[1:] for line in said.splitlines())


def test_the_license_and_what_an_index_shows_are_told() -> None:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert described["license"] == "Apache-2.0"
    assert described["license-files"] == ["LICENSE"]
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert described["authors"]
    assert {one.partition(" :: ")[0] for one in described["classifiers"]} >= {
        "Operating System",
        "Topic",
    }
