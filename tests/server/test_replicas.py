"""`lmprog serve` with several runtimes: whatever happens to one of them, no request fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from lmprog.cli import main
from tests.model.small_checkpoint import write_checkpoint
from tests.server.process import Served, served, serving

pytestmark = pytest.mark.slow
TOKENS = 24


def replicas(server: Served) -> dict[str, int]:
    """The process of each runtime that the metrics show, by its replica's name."""
    text = server.http.get("/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("lmprog_replica_up{")]
    return {
        line.split('replica="')[1].split('"')[0]: int(float(line.split()[-1])) for line in lines
    }


def restarts(server: Served) -> float:
    """Of runtimes that died or hung."""
    lines = server.http.get("/metrics").text.splitlines()
    return float(next(one for one in lines if "engine_restarts_total{" in one).split()[-1])


def runtime_pids(server: Served) -> list[int]:
    """Of the children that compute."""
    children = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    return [pid for pid in pids if b"lmprog.runtime.main" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def until_all_up(server: Served, count: int = 2) -> None:
    server.until(lambda: list(replicas(server).values()) == [1] * count)


def asked(number: int, stream: bool) -> dict[str, Any]:
    """A request whose answer is known once it was answered: with a seed."""
    return {
        "prompt": f"Story number {number % 8}. Once upon a time",
        "max_tokens": TOKENS,
        "temperature": 1.0,
        "seed": number % 8,
        "ignore_eos": True,
        "stream": stream,
    }


def answer(server: Served, number: int, stream: bool) -> str:
    """The text of an answer; fails where the request does, and where a stream ends early."""
    body = asked(number, stream)
    if not stream:
        response = server.http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, response.read()
        data = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]", data[-1]
    return "".join(json.loads(one)["choices"][0]["text"] for one in data[:-1])


class Askers:
    """Threads that ask until they are told to stop, and note what each request was answered."""

    def __init__(self, server: Served, count: int) -> None:
        self.answers: list[tuple[int, str]] = []
        self.failures: list[str] = []
        self._server = server
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self, number: int) -> None:
        while not self._stop.wait(0.2):
            try:
                text = answer(self._server, number, stream=number % 2 == 0)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                self.failures.append(repr(error))
                return
            self.answers.append((number % 8, text))
            number += 5

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120.0)
            assert not thread.is_alive(), "a request hangs"


def test_no_request_fails_when_one_of_two_runtimes_is_killed_stopped_or_drained() -> None:
    with served("--replicas", "2", "--stall", "5", "--kv-memory-mb", "64") as server:
        until_all_up(server)
        alone = {number: answer(server, number, stream=False) for number in range(8)}
        askers = Askers(server, 6)
        for number in (signal.SIGKILL, signal.SIGSTOP):
            server.until(lambda: len(askers.answers) > 6 or askers.failures)
            old = runtime_pids(server)
            assert len(old) == 2
            os.kill(old[0], number)
            server.until(lambda old=old: old[0] not in runtime_pids(server))
            assert server.status("/ready") == 200
            done = len(askers.answers)
            server.until(lambda done=done: len(askers.answers) > done + 6 or askers.failures)
            until_all_up(server)
        died = restarts(server)
        assert died >= 2
        old = runtime_pids(server)
        assert main(["fleet", "drain", server.url, "replica-1", "--seconds", "0"]) == 0
        server.until(lambda: not set(old) <= set(runtime_pids(server)))
        until_all_up(server)
        askers.stop()
        assert askers.failures == []
        assert {(number, text) for number, text in askers.answers} <= set(alone.items())
        metrics = server.http.get("/metrics").text
        moved = next(line for line in metrics.splitlines() if "programs_moved_total{" in line)
        assert float(moved.split()[-1]) > 0
        assert restarts(server) == died  # being drained is no failure
        assert 'lmprog_generation_tokens_total{model_name="nano",replica="replica-2"}' in metrics
        without_any(server)
        server.signal(signal.SIGTERM)
        assert server.process.wait(120) == 0
        server.until_read()
        assert not [line for line in server.logged if "connection to the runtime is lost" in line]


def test_no_request_fails_and_none_is_of_two_models_while_the_model_is_updated(
    tmp_path: Path,
) -> None:
    folder = write_checkpoint(tmp_path / "model")
    other = write_checkpoint(tmp_path / "other" / "model", seed=1)
    options = ("--threads", "1", "--kv-memory-mb", "32")
    with serving(str(other), *options) as server:
        later = {number: answer(server, number, stream=False) for number in range(8)}
    with serving(str(folder), "--replicas", "2", *options) as server:
        until_all_up(server)
        first = {number: answer(server, number, stream=False) for number in range(8)}
        askers = Askers(server, 6)
        server.until(lambda: len(askers.answers) > 12 or askers.failures)
        shutil.rmtree(folder)
        shutil.copytree(other, folder)
        assert main(["fleet", "update", server.url]) == 0
        server.until(lambda: generations(server) == [1, 1] or askers.failures)
        done = len(askers.answers)
        server.until(lambda: len(askers.answers) > done + 12 or askers.failures)
        askers.stop()
        assert askers.failures == []
        assert set(askers.answers) <= set(first.items()) | set(later.items())
        assert set(askers.answers[done + 6 :]) <= set(later.items())
        assert restarts(server) == 0


def test_one_command_starts_several_models_and_a_death_is_its_own_models_only(
    tmp_path: Path,
) -> None:
    folders = {
        name: str(write_checkpoint(tmp_path / name, seed=seed))
        for seed, name in enumerate(("small", "large"))
    }
    models = [f"--models={name}={folder}" for name, folder in folders.items()]

    def said(server: Served, name: str) -> str:
        response = server.http.post("/v1/completions", json={**asked(1, False), "model": name})
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    with serving(*models, "--threads", "1", "--kv-memory-mb", "32") as server:
        until_all_up(server)
        assert sorted(replicas(server)) == ["large-1", "small-1"]
        listed = server.http.get("/v1/models").json()["data"]
        assert [one["id"] for one in listed] == ["small", "large"]
        before = {name: said(server, name) for name in folders}
        assert before["small"] == said(server, "") != before["large"]
        pids = [one for one in runtime_pids(server) if folders["large"].encode() in _command(one)]
        assert len(pids) == 1
        os.kill(pids[0], signal.SIGKILL)
        assert {name: said(server, name) for name in folders} == before
        until_all_up(server)
        assert restarts(server) == 1
        assert main(["fleet", "update", server.url, "--seconds", "1"]) == 0
        server.until(lambda: generations(server) == [1, 1])
        assert {name: said(server, name) for name in folders} == before
        server.signal(signal.SIGTERM)
        assert server.process.wait(120) == 0


def generations(server: Served) -> list[int]:
    return [one["generation"] for one in server.http.get("/fleet").json()["replicas"]]


def without_any(server: Served) -> None:
    """Without any runtime the server is not ready, and requests wait for one."""
    for pid in runtime_pids(server):
        os.kill(pid, signal.SIGKILL)
    server.until(lambda: server.status("/ready") == 503)
    assert answer(server, 1, stream=False)
    assert server.status("/ready") == 200
