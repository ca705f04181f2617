"""`lmprog batch`: answers a file of requests in OpenAI's batch format into an output file, and
resumes after an interruption.

Each line of the input is `{"custom_id", "method", "url", "body"}`; each line of the output has the
same `custom_id` with a `response`, or an `error` if there was none. Requests with a response in the
output are not sent again. Without a server's address one is started here, with a random key. Knows
files and lines; an `Endpoint` knows HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tqdm import tqdm

from lmprog.cli.http_endpoint import Endpoint, HttpAnswer
from lmprog.errors import InvalidParameter, LmprogError, RuntimeGone

START_SECONDS = 60.0


@contextlib.contextmanager
def own_server(model: str, requests: int) -> Iterator[tuple[str, str]]:
    """(URL, key) of a server for `requests` concurrent requests, for as long as the block runs."""
    # what a server needs is no part of a plain install, and another one may be asked without it
    from lmprog.launch import RuntimeProcess
    from lmprog.server.http.http_server import HttpServer, bind, url_of
    from lmprog.server.options.server_settings import ServerSettings
    from lmprog.server.service import serve

    key = secrets.token_hex(24)  # as an argument it must not look like an option
    settings = ServerSettings(port=0, api_keys=(key,), max_running=max(256, requests), drain=1.0)
    bound = bind(settings)
    ready = threading.Event()
    servers: list[HttpServer] = []

    def when_ready(server: HttpServer) -> None:
        servers.append(server)
        ready.set()

    with RuntimeProcess(model) as runtime:
        thread = threading.Thread(
            target=lambda: asyncio.run(serve(settings, runtime, bound, when_ready))
        )
        thread.start()
        try:
            if not ready.wait(START_SECONDS):
                raise RuntimeGone("The server did not start.")
            yield url_of(bound), key
        finally:
            for server in servers:
                server.stop_now()
            thread.join()


URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/programs", "/generate")
MOST_TRIES = 8
LONGEST_PAUSE = 30.0  # maximum seconds between two tries


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request."""

    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(slots=True)
class Counts:
    done: int = 0
    failed: int = 0
    skipped: int = 0


def run(given: argparse.Namespace) -> int:
    source, target = Path(given.input), Path(given.output)
    ids = check_input(source)
    answered = repair(target)
    todo = [line for line in read_input(source) if line.custom_id not in answered]
    counts = Counts(skipped=len(ids) - len(todo))
    if counts.skipped:
        print(f"{counts.skipped:,} of {len(ids):,} are answered already", file=sys.stderr)
    if todo:
        with server(given) as (url, key):
            finished = BatchFile(url, key, given.concurrency).answer(todo, target, counts)
    else:
        finished = True
    what = f"{counts.done:,} answered, {counts.failed:,} failed, {counts.skipped:,} there before"
    print(what if finished else f"stopped: {what}; the same command goes on", file=sys.stderr)
    return 130 if not finished else int(counts.failed > 0)


@contextlib.contextmanager
def server(given: argparse.Namespace) -> Iterator[tuple[str, str | None]]:
    """The given server, or one started here."""
    if given.url:
        yield given.url, given.api_key
        return
    with own_server("nano" if given.model is None else given.model, given.concurrency) as found:
        yield found


class BatchFile:
    """Sends requests from one thread per concurrent request; one thread writes."""

    def __init__(self, url: str, key: str | None, concurrency: int) -> None:
        self._url = url
        self._key = key
        self._concurrency = concurrency
        self._own = threading.local()
        self._endpoints: list[Endpoint] = []
        self._stopping = threading.Event()

    def answer(self, lines: list[BatchLine], target: Path, counts: Counts) -> bool:
        """Appends each answer as it arrives. False if Ctrl-C interrupted it."""
        try:
            return self._answer(lines, target, counts)
        finally:
            for endpoint in self._endpoints:
                endpoint.close()

    def _answer(self, lines: list[BatchLine], target: Path, counts: Counts) -> bool:
        with (
            target.open("ab") as out,
            tqdm(total=len(lines), unit="req", file=sys.stderr, disable=None) as bar,
            ThreadPoolExecutor(self._concurrency) as pool,
        ):
            waiting: set[Future[dict[str, Any]]] = set()
            upcoming = iter(lines)
            try:
                while True:
                    # Only as many as can run: bounds memory for files with millions of lines.
                    while (
                        len(waiting) < 2 * self._concurrency
                        and (line := next(upcoming, None)) is not None
                    ):
                        waiting.add(pool.submit(self._ask, line))
                    if not waiting:
                        return True
                    ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    for one in ended:
                        self._write(out, one.result(), counts)
                        bar.update()
            except KeyboardInterrupt:
                self._stopping.set()
                for one in waiting:
                    one.cancel()
                for one in waiting:
                    if not one.cancelled():
                        self._write(out, one.result(), counts)
                return False

    def _write(self, out: BinaryIO, made: dict[str, Any], counts: Counts) -> None:
        out.write(json.dumps(made, ensure_ascii=False).encode() + b"\n")
        out.flush()
        is_good = made["response"] is not None and made["response"]["status_code"] == 200
        counts.done += is_good
        counts.failed += not is_good

    def _ask(self, line: BatchLine) -> dict[str, Any]:
        """The output line of one request; no response of the server makes it raise."""
        made: dict[str, Any] = {
            "id": f"batch_req_{secrets.token_hex(12)}",
            "custom_id": line.custom_id,
        }
        try:
            answer = self._tried(line)
        except LmprogError as error:
            return {
                **made,
                "response": None,
                "error": {"code": error.code, "message": error.message},
            }
        if answer.status in (429, 503):  # may be retried later, so it gets no response
            why = {
                "code": "overloaded",
                "message": f"the server answered {answer.status} {MOST_TRIES} times",
            }
            return {**made, "response": None, "error": why}
        response = {
            "status_code": answer.status,
            "request_id": answer.request_id,
            "body": answer.body,
        }
        return {**made, "response": response, "error": None}

    def _tried(self, line: BatchLine) -> HttpAnswer:
        """Retries with increasing delays while the server is overloaded."""
        if not hasattr(self._own, "endpoint"):
            self._own.endpoint = Endpoint(self._url, self._key)
            self._endpoints.append(self._own.endpoint)
        endpoint: Endpoint = self._own.endpoint
        for attempt in range(MOST_TRIES):
            answer = endpoint.post(line.url, line.body)
            if answer.status not in (429, 503) or self._stopping.is_set():
                break
            if attempt < MOST_TRIES - 1:
                self._pause(min(LONGEST_PAUSE, (answer.retry_after or 1.0) * 2**attempt))
        return answer

    def _pause(self, seconds: float) -> None:
        """Until Ctrl-C at most."""
        self._stopping.wait(seconds)


def check_input(path: Path) -> set[str]:
    """All custom_ids. Raises InvalidParameter for the first invalid line, before any request is
    sent.
    """
    seen: set[str] = set()
    for line in read_input(path):
        if line.custom_id in seen:
            raise InvalidParameter(
                f"{path}: custom_id {line.custom_id!r} stands twice.", name="custom_id"
            )
        seen.add(line.custom_id)
    return seen


def read_input(path: Path) -> Iterator[BatchLine]:
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    yield _line(raw, f"{path}, line {number}")
    except OSError as error:
        raise InvalidParameter(f"{path} cannot be read: {error.strerror}.", name="input") from None


def _line(raw: bytes, where: str) -> BatchLine:
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise InvalidParameter(f"{where} is no JSON: {error}.", name="input") from None
    if not isinstance(value, dict):
        raise InvalidParameter(f"{where} is no JSON object.", name="input")
    custom_id, url, body = value.get("custom_id"), value.get("url"), value.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise InvalidParameter(f"{where} has no custom_id.", name="custom_id")
    if value.get("method", "POST") != "POST" or url not in URLS:
        raise InvalidParameter(
            f"{where}: method must be POST, and url one of {', '.join(URLS)}.", name="url"
        )
    if not isinstance(body, dict):
        raise InvalidParameter(f"{where} has no body.", name="body")
    if body.get("stream"):
        raise InvalidParameter(
            f"{where} asks for a stream; a batch is answered whole.", name="stream"
        )
    return BatchLine(custom_id, url, body)


def repair(path: Path) -> set[str]:
    """The custom_ids that have a response; truncates a last line that was written only in part."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return set()
    answered: set[str] = set()
    good = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                value = json.loads(raw) if raw.endswith(b"\n") else None
            except ValueError:
                value = None
            if value is None:
                if file.read(1):
                    raise InvalidParameter(
                        f"{path}, line {number}, is no JSON; is this the output file?",
                        name="output",
                    )
                break
            good += len(raw)
            if isinstance(value, dict) and value.get("response") is not None:
                answered.add(str(value.get("custom_id")))
    if good < path.stat().st_size:
        os.truncate(path, good)
        print(f"{path}: cut off a last line that was torn", file=sys.stderr)
    return answered
