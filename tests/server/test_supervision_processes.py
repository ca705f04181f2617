"""The server that stays: its runtime is killed and stopped, it is told to end, and clients are told
the truth.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.server.process import PATIENCE, Served, served, streams

pytestmark = pytest.mark.slow
LONG = 3900
"""Tokens that take longer than any test waits before it interferes."""
MANY = 64
ASKED = [{"role": "user", "content": "x"}]


class Knocker:
    """Asks the server's health again and again, on new connections: none may be refused."""

    def __init__(self, server: Served) -> None:
        self.answers: list[int] = []
        self.refused: list[str] = []
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            try:
                headers = {"connection": "close"}
                self.answers.append(self._server.http.get("/health", headers=headers).status_code)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                self.refused.append(repr(error))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def test_a_killed_runtime_is_an_error_and_not_an_outage() -> None:
    with served() as server:
        running = streams(server, 8, LONG)
        knocker = Knocker(server)
        killed = time.monotonic()
        os.kill(server.runtime_pid(), signal.SIGKILL)
        for stream in running:
            stream.join()
            assert stream.error is not None, stream.events[-1]
            assert stream.error["code"] == "runtime_restarted"
            assert stream.error["type"] == "service_unavailable"
            assert stream.events.count("[DONE]") == 0
            assert sum("error" in event for event in stream.events) == 1
        told = max(stream.ended_at for stream in running) - killed
        server.until(
            lambda: server.status("/ready") == 503 or "serves after" in "".join(server.logged[-3:])
        )
        server.until_ready()
        after = streams(server, 1, 4)[0]
        after.join()
        assert after.events[-1] == "[DONE]"
        knocker.stop()
        assert knocker.refused == []
        assert set(knocker.answers) == {200}
        assert told < 2.0 + PATIENCE * 0.1, (
            "the promise is two seconds; more only on a machine that is busy"
        )


def test_a_stopped_runtime_is_found_and_replaced() -> None:
    with served("--stall", "2") as server:
        (running,) = streams(server, 1, LONG)
        old = server.runtime_pid()
        os.kill(old, signal.SIGSTOP)
        running.join()
        assert running.error is not None
        assert running.error["code"] == "runtime_restarted"
        server.until(lambda: not os.path.exists(f"/proc/{old}"))
        server.until_ready()
        assert server.runtime_pid() != old
        after = streams(server, 1, 4)[0]
        after.join()
        assert after.events[-1] == "[DONE]"
        logged = "".join(server.logged)
        assert "computes nothing" in logged
        assert "most recent call first" in logged, "where its threads stood"


def test_sigterm_lets_everything_finish_and_takes_nothing_new() -> None:
    with served("--drain-seconds", "100") as server:
        running = streams(server, 4, 1500)
        server.signal(signal.SIGTERM)
        server.until(lambda: any("finishing" in line for line in server.logged))
        refused = [
            server.http.get("/ready"),
            server.http.post("/v1/completions", json={"prompt": "x"}),
        ]
        for stream in running:
            stream.join()
            assert stream.events[-1] == "[DONE]"
        for response in refused:
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "draining"
            assert int(response.headers["retry-after"]) >= 1
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.timeout(1800)
def test_sixty_four_streams_finish_within_the_drain_and_nothing_new_is_taken() -> None:
    with served("--drain-seconds", "900") as server:
        running = streams(server, MANY, 300)
        server.signal(signal.SIGTERM)
        server.until(lambda: any("finishing" in line for line in server.logged))
        paths = ["/v1/completions", "/v1/chat/completions", "/generate", "/v1/messages"]
        bodies = [
            {"prompt": "x"},
            {"messages": ASKED},
            {"text": "x"},
            {"messages": ASKED, "max_tokens": 2},
        ]
        refused = [
            server.http.post(path, json=body) for path, body in zip(paths, bodies, strict=True)
        ]
        assert [response.status_code for response in refused] == [503] * len(paths)
        assert server.status("/ready") == 503
        for stream in running:
            stream.join(900.0)
            assert stream.events[-1] == "[DONE]"
            assert json.loads(stream.events[-2])["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.timeout(1800)
def test_a_second_sigterm_ends_sixty_four_streams_at_once_each_with_a_last_word() -> None:
    # All of them begin at once, though their whole texts would not fit the memory together.
    with served("--drain-seconds", "900", "--admission", "unlimited") as server:
        running = streams(server, MANY, LONG)
        server.signal(signal.SIGTERM)
        server.until(lambda: any("finishing" in line for line in server.logged))
        assert server.process.poll() is None
        server.signal(signal.SIGTERM)
        began = time.monotonic()
        assert server.process.wait(PATIENCE) == 1
        assert time.monotonic() - began < 2.0 + PATIENCE * 0.1, "the promise is two seconds"
        for stream in running:
            stream.join()
            assert stream.error is not None


def test_a_second_sigterm_ends_at_once_with_a_last_word_and_exit_code_1() -> None:
    with served() as server:
        (running,) = streams(server, 1, LONG)
        server.signal(signal.SIGTERM)
        server.until(lambda: any("finishing" in line for line in server.logged))
        assert server.process.poll() is None
        server.signal(signal.SIGTERM)
        began = time.monotonic()
        assert server.process.wait(PATIENCE) == 1
        assert time.monotonic() - began < 2.0 + PATIENCE * 0.1, "the promise is two seconds"
        running.join()
        assert running.error is not None


def test_what_does_not_finish_in_time_is_cut_off_and_told() -> None:
    with served("--drain-seconds", "0.5") as server:
        (running,) = streams(server, 1, LONG)
        server.signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 1
        running.join()
        assert running.error is not None


def test_sighup_reads_the_keys_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[alice]\nkey = "old"\n')
    with served("--api-key-file", str(keys)) as server:

        def status(key: str) -> int:
            headers = {"x-api-key": key}
            code: int = server.http.get("/v1/models", headers=headers).status_code
            return code

        assert (status("old"), status("new")) == (200, 401)
        keys.write_text('[alice]\nkey = "new"\n')
        server.signal(signal.SIGHUP)
        server.until(lambda: status("new") == 200)
        assert status("old") == 401
