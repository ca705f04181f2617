"""The vendors' JavaScript clients as generators of events: a process of Node, started with the
first request, that several streams share. `make test-javascript` installs what it needs.
"""

from __future__ import annotations

import itertools
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

Json = dict[str, Any]
FOLDER = Path(__file__).parent
DIALECTS = ("chat", "completion", "response", "response helper", "message", "message helper")
IS_THERE = shutil.which("node") is not None and (FOLDER / "node_modules" / "openai").is_dir()
PATIENCE = 60.0


class JavaScriptError(Exception):
    """What a client threw, with the names that the Python clients have for it."""

    def __init__(self, raised: Json) -> None:
        super().__init__(f"{raised['name']}: {raised['message']}")
        self.name: str = raised["name"]
        self.status_code = raised.get("status")
        self.request_id = raised.get("request")
        self.body: Json = raised.get("error") or {}
        within: Json = self.body.get("error") or self.body
        self.type = raised.get("type") or within.get("type")
        self.code = raised.get("code") or within.get("code")
        self.error_code = (within.get("details") or {}).get("error_code")


class _Node:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["node", str(FOLDER / "clients.mjs")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._numbers = itertools.count()
        self._said: dict[int, queue.SimpleQueue[Json]] = {}
        threading.Thread(target=self._read, name="node", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said: Json = json.loads(line)
            self._said[said["id"]].put(said)

    def ask(self, request: Json) -> Iterator[Json]:
        number = next(self._numbers)
        said = self._said[number] = queue.SimpleQueue()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, **request}) + "\n")
        self._process.stdin.flush()
        while True:
            found = said.get(timeout=PATIENCE)
            if "raised" in found:
                raise JavaScriptError(found["raised"])
            if "done" in found:
                return
            yield found["event"]


@cache
def _node() -> _Node:
    return _Node()


def events(dialect: str, url: str, more: Json, key: str) -> Iterator[Json]:
    """Of a stream; raises JavaScriptError where the client throws."""
    yield from _node().ask({"dialect": dialect, "url": url, "more": more, "key": key})
