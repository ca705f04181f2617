"""What becomes of real processes that are killed, stopped, idle, busy for long, or read slowly.

    python -m benchmarks.endurance runtime-kills --times 100    SIGKILL of the runtime under 64 clients
    python -m benchmarks.endurance client-kills --times 100     SIGKILL of clients while they stream
    python -m benchmarks.endurance stopped --seconds 30         SIGSTOP of the runtime of `lmprog serve`
    python -m benchmarks.endurance idle-streams --times 10000   open streams that get nothing
    python -m benchmarks.endurance churn --times 30000          short requests, one after the other
    python -m benchmarks.endurance mixed --times 10000          requests of every kind, all different
    python -m benchmarks.endurance slow-readers --times 32      clients that ask and do not read
    python -m benchmarks.endurance clock --times 10             a wall clock that jumps

Each prints its figures and ends with exit code 1 where something was left behind, hung, wrong or
not told.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import httpx2

import lmprog
from benchmarks import runner
from benchmarks.gateway import speaking
from benchmarks.runner import ROOT, Footprint, children_of, percentile
from benchmarks.streams import Seen, cancelled, closed_loop, post, silent_streams
from lmprog.errors import RuntimeGone

# -- `lmprog serve` under lasting loads: what it holds meanwhile and afterwards

Json = dict[str, Any]
BODY: Json = {"prompt": "The sea", "max_tokens": 2, "ignore_eos": True, "temperature": 0}
AT_ONCE = 8
SAMPLES = 10
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class ServedProcess:
    """A server that is ready."""

    pid: int
    url: str

    def runtime_pid(self) -> int:
        """Of the process that computes: the newest child, 0 where there is none."""
        return max(children_of(self.pid), default=0)

    def held(self) -> tuple[Footprint, Footprint]:
        """What gateway and runtime hold now."""
        return Footprint.of(self.pid), Footprint.of(self.runtime_pid())


async def settled(pid: int, files: int) -> Footprint:
    """What it holds when it has at most so many files, or a minute has passed."""
    for _ in range(300):
        now = Footprint.of(pid)
        if now.files <= files:
            break
        await asyncio.sleep(0.2)
    return now


@contextmanager
def served(
    *options: str, model: str = "nano", ended_by: int = signal.SIGKILL
) -> Iterator[ServedProcess]:
    """The command on any free port."""
    command = [sys.executable, "-m", "lmprog.cli", "serve", model, "--port", "0", "--threads", "1"]
    reader: threading.Thread | None = None
    process = subprocess.Popen(
        [*command, *options],
        env={**os.environ, **ONE_THREAD},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        found = (re.search(r"http://[^\s,]+", line) for line in process.stderr)
        url = next((one[0] for one in found if one is not None), None)
        assert url is not None, "the server ended before it served"
        # read on, since a full pipe would stop the server
        reader = threading.Thread(target=process.stderr.read, daemon=True)
        reader.start()
        ends = time.monotonic() + runner.PATIENCE
        with httpx2.Client(base_url=url, timeout=runner.PATIENCE, trust_env=False) as client:
            while client.get("/ready").status_code != 200:
                assert time.monotonic() < ends, "never ready"
                time.sleep(0.1)
        yield ServedProcess(process.pid, url.rstrip("/"))
    finally:
        process.send_signal(ended_by)
        process.wait()
        if reader is not None:
            reader.join(runner.PATIENCE)  # until the runtime has ended as well
        if process.stderr is not None:
            process.stderr.close()


def all_served(seen: list[Seen]) -> bool:
    return all(one.status == 200 and one.chunks for one in seen)


def first_token(seen: list[Seen]) -> float:
    """Milliseconds, the median."""
    return 1e3 * percentile([one.first for one in seen], 0.5)


def idle_streams(count: int) -> bool:
    """Streams that wait for their first token before a runtime that never gives them one."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with speaking([ROOT], places=(str(2 * count + 128),)) as [gateway]:
        return asyncio.run(_idle_streams(gateway["url"], gateway["pid"], count))


async def _idle_streams(url: str, pid: int, count: int) -> bool:
    await closed_loop(url, 1, 2, BODY)
    before = Footprint.of(pid)
    waiting = await silent_streams(url, count)
    during = Footprint.of(pid)
    seen, _ = await closed_loop(url, 1, 20, BODY)
    await cancelled(waiting)
    after = await settled(pid, before.files + 2)
    each = (during.kilobytes - before.kilobytes) / count
    print(f"{count:,} idle streams: {each:.1f} kB each; the gateway: {before}; {during}; {after}")
    print(
        f"beside them: {all_served(seen)}, first token of another client p50 "
        f"{first_token(seen):.1f} ms"
    )
    few = after.files <= before.files + 2 and after.threads <= before.threads + 2
    return all_served(seen) and few


def watched(server: ServedProcess, each: int, load: Callable[[int], int], spare: int) -> bool:
    """A load in ten parts; what gateway and runtime hold after each, and how they grew. Whether
    files and threads stayed, but for so many, and the runtime did."""
    runtime_pid, figures = server.runtime_pid(), [server.held()]
    began = time.monotonic()
    for sample in range(1, SAMPLES + 1):
        done = load(sample)
        figures.append(server.held())
        print(f"{done:,}: gateway {figures[-1][0]}; runtime {figures[-1][1]}", flush=True)
    later, is_same = figures[SAMPLES // 2 :], server.runtime_pid() == runtime_pid
    grown = [slope([one[at].kilobytes for one in later], each) for at in (0, 1)]
    print(
        f"{done:,} requests in {time.monotonic() - began:.0f} s, one runtime: {is_same}; over the "
        f"second half the gateway grew by {grown[0]:.2f} kB and the runtime by {grown[1]:.2f} kB "
        "for 1,000 requests"
    )
    return is_same and all(
        now.files <= then.files + spare and now.threads <= then.threads + spare
        for then, now in zip(figures[0], figures[-1], strict=True)
    )


def slope(values: list[int], apart: float) -> float:
    """By least squares, for 1,000 requests; `values` are so many requests apart."""
    mean_at, mean = (len(values) - 1) / 2, sum(values) / len(values)
    above = sum((at - mean_at) * (value - mean) for at, value in enumerate(values))
    return above / sum((at - mean_at) ** 2 for at in range(len(values))) / apart * 1000


def churn(count: int) -> bool:
    """Short requests of eight clients on nano."""
    each, answered = count // SAMPLES // AT_ONCE, Counter[bool]()
    with served("--kv-memory-mb", "16") as server:
        asyncio.run(closed_loop(server.url, AT_ONCE, min(100, count // 80), BODY))

        def load(_: int) -> int:
            seen, _ = asyncio.run(closed_loop(server.url, AT_ONCE, each, BODY))
            answered.update(one.status == 200 and one.chunks > 0 for one in seen)
            return answered[True]

        is_kept = watched(server, each * AT_ONCE, load, 2)
    print(f"{answered[True]:,} of {each * AT_ONCE * SAMPLES:,} requests were answered")
    return is_kept and answered[True] == each * AT_ONCE * SAMPLES


LEAVES = "leaves"
"""Not a path: the client of a stream goes after its first bytes."""
_WORDS_TEXT = """
sea ship wind sail harbour rope anchor storm calm star north lamp
"""
_WORDS = _WORDS_TEXT.split()


def drawn(number: int) -> tuple[str, Json | bytes, range]:
    """The request of this number: its path, its body, and the statuses that are right."""
    draw = random.Random(number)
    text = f"{number}: " + " ".join(draw.choice(_WORDS) for _ in range(draw.randrange(4, 40)))
    few = {"max_tokens": 6, "temperature": 0}
    asked = {"messages": [{"role": "user", "content": text}], **few}
    prompt = {"prompt": text, **few}
    schema = {
        "type": "object",
        "properties": {f"{draw.choice(_WORDS)}{number}": {"enum": [number, draw.random()]}},
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": f"f{number}", "parameters": schema}}]
    required = {"tools": tools, "tool_choice": "required", "stream": True, "max_tokens": 96}
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    native = {"text": text, "sampling_params": {"max_new_tokens": 4}, "rid": f"r{number}"}
    ops = [
        {"op": "open", "branch": "a"},
        {"op": "append", "branch": "a", "pieces": text},
        {"op": "fork", "branch": "a", "into": ["b"]},
        {"op": "gen", "branch": "b", "call": "c", "max_tokens": 4},
        {"op": "select", "branch": "a", "call": "d", "choices": [f"{number}", "none"]},
    ]
    choice = {"structured_outputs": {"choice": [f"{word} {number}" for word in _WORDS]}}
    chat, plain = "/v1/chat/completions", "/v1/completions"
    good, wrong = range(200, 201), range(400, 500)
    kinds: list[tuple[str, Json | bytes, range]] = [
        (chat, asked, good),
        (chat, {**asked, "stream": True}, good),
        (chat, {**asked, "max_tokens": 64, "response_format": named}, good),
        (chat, {**asked, **required}, good),
        (plain, {**prompt, "n": 2, "logprobs": 2, "user": f"u{number}"}, good),
        (plain, {**prompt, "stream": True, "stop": [f"{number}"]}, good),
        (plain, {**prompt, "max_tokens": 32, "regex": f"[a-z]{{2,9}}{number}"}, good),
        (plain, {**prompt, "max_tokens": 64, **choice}, good),
        ("/generate", native, good),
        ("/v1/responses", {"input": text, "max_output_tokens": 6}, good),
        ("/v1/messages", {"model": "nano", "max_tokens": 6, "messages": asked["messages"]}, good),
        ("/v1/programs", {"ops": ops}, good),
        (LEAVES, {**prompt, "max_tokens": 200, "stream": True, "ignore_eos": True}, good),
        (plain, {**prompt, f"unknown_{number}": 1}, good),
        (plain, {**prompt, "temperature": f"{number}"}, wrong),
        (plain, {**prompt, "regex": f"({number}"}, wrong),
        (chat, {**asked, "model": f"m{number}"}, wrong),
        (f"/v1/nothing/{number}", asked, wrong),
        (plain, b'{"prompt": "%d' % number, wrong),
    ]
    return kinds[number % len(kinds)]


async def _ask(url: str, number: int, seen: Counter[str]) -> None:
    path, body, right = drawn(number)
    where = urllib.parse.urlsplit(url)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    to = "/v1/completions" if path == LEAVES else path
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(post(url, to, data, f"x-request-id: mixed-{number}", "connection: close"))
    head = await reader.readuntil(b"\r\n\r\n")
    if path != LEAVES:
        await reader.read()
    writer.close()
    status = int(head.split(b" ", 2)[1])
    seen["as expected" if status in right else f"{status} for {path}"] += 1


async def _some(url: str, numbers: range, seen: Counter[str]) -> None:
    left = iter(numbers)

    async def client() -> None:
        for number in left:
            await _ask(url, number, seen)

    async with asyncio.TaskGroup() as clients:
        for _ in range(AT_ONCE):
            clients.create_task(client())


def mixed(count: int) -> bool:
    """`count` requests of eight clients on nano."""
    seen, each = Counter[str](), max(count // SAMPLES, 1)
    with served("--kv-memory-mb", "16") as server:
        asyncio.run(_some(server.url, range(each), Counter[str]()))

        def load(sample: int) -> int:
            asyncio.run(_some(server.url, range(sample * each, (sample + 1) * each), seen))
            return sample * each

        is_kept = watched(server, each, load, 4)
        httpx2.post(f"{server.url}/flush_cache", timeout=60, trust_env=False).raise_for_status()
        flushed = server.held()
    print(f"after a flush: gateway {flushed[0]}; runtime {flushed[1]}\n{dict(seen)}")
    return is_kept and set(seen) == {"as expected"}


def slow_readers(count: int) -> bool:
    """Clients that ask for long streams and read nothing; others must get theirs."""
    with served() as server:
        quiet, _ = asyncio.run(closed_loop(server.url, 2, 4, BODY))
        before = server.held()[0]
        slow = [_unread(server.url) for _ in range(count)]
        beside, _ = asyncio.run(closed_loop(server.url, 2, 10, BODY))
        figures = [server.held()[0] for _ in range(SAMPLES) if not time.sleep(0.5)]
        for one in slow:
            one.close()
        after = asyncio.run(settled(server.pid, before.files + 2))
    during = max(figures, key=lambda one: one.kilobytes)
    print(f"{count} clients that do not read; the gateway: {before}; {during}; {after}")
    print(
        f"others are served: {all_served(beside)}, first token p50 {first_token(beside):.0f} ms, "
        f"quiet {first_token(quiet):.0f} ms"
    )
    return all_served(beside) and after.files <= before.files + 2


def _unread(url: str) -> socket.socket:
    parts = urllib.parse.urlsplit(url)
    made = socket.create_connection((str(parts.hostname), int(parts.port or 80)))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    # with log-probabilities, so that no buffer of the system takes the whole of it
    asked = {**BODY, "max_tokens": 3000, "logprobs": 5, "stream": True}
    made.sendall(post(url, "/v1/completions", json.dumps(asked).encode()))
    return made


# -- kills, stops and clocks

CONNECTIONS, THREADS_EACH = 8, 8
PROMPTS = 12
PATIENCE = 120.0
"""Seconds by the wall clock until something counts as hanging; the machine may be busy."""


@lmprog.function
def tell(s: lmprog.Branch, number: int) -> str:
    """A program: forks, generations, a choice."""
    s += f"Story {number}: the sea "
    branches = s.fork(3)
    for at, branch in enumerate(branches):
        branch += f"and {at} "
        branch += lmprog.gen("part", max_tokens=8, ignore_eos=True)
    parts = " ".join(branch["part"] for branch in branches)
    s += parts + lmprog.select("mood", ["calm", "rough"])
    return f"{parts} {s['mood']}"


@lmprog.function
def recite(s: lmprog.Branch, number: int) -> str:
    """One long generation, to be streamed."""
    s += f"Poem {number}: " + lmprog.gen("poem", max_tokens=40, ignore_eos=True)
    return str(s["poem"])


PROGRAMS = {"tell": tell, "recite": recite}


class Clients:
    """Threads that run programs and streams on one runtime until it dies, and what they saw."""

    def __init__(self, address: str, expected: dict[tuple[str, int], str]) -> None:
        self.seen: Counter[str] = Counter()
        self._address = address
        self._expected = expected
        self._told = threading.Lock()
        self.threads = [
            threading.Thread(target=self._connection, args=(number,), daemon=True)
            for number in range(CONNECTIONS)
        ]

    def _connection(self, number: int) -> None:
        try:
            with (
                lmprog.connect(self._address) as backend,
                ThreadPoolExecutor(THREADS_EACH) as threads,
            ):
                for at in range(THREADS_EACH):
                    threads.submit(self._until_it_dies, backend, number + at)
        except RuntimeGone:
            self._count("died while connecting")

    def _until_it_dies(self, backend: lmprog.backends.Backend, number: int) -> None:
        draw, name = random.Random(number), list(PROGRAMS)[number % 2]
        bound = PROGRAMS[name].using(backend=backend, temperature=0)
        while True:
            prompt = draw.randrange(PROMPTS)
            try:
                is_streamed = name == "recite"
                text = [*bound.stream(prompt)][-1].value if is_streamed else bound.run(prompt).value
            except RuntimeGone:
                self._count("told that it died")
                return
            except Exception as error:  # noqa: BLE001 - counted, and then the script fails
                self._count(f"wrong error: {type(error).__name__}: {error}")
                return
            is_right = text == self._expected[name, prompt]
            self._count("right" if is_right else "wrong text")

    def _count(self, what: str) -> None:
        with self._told:
            self.seen[what] += 1


def texts_of_a_new_runtime() -> dict[tuple[str, int], str]:
    """What each program gives for each prompt, whatever else happens."""
    with lmprog.Runtime("nano", threads=1) as healthy:
        return {
            (name, number): program.using(backend=healthy, temperature=0).run(number).value
            for name, program in PROGRAMS.items()
            for number in range(PROMPTS)
        }


def runtime_kills(times: int) -> bool:
    """Each time a new runtime, 64 threads of programs and streams, and a kill at any moment."""
    dice, seen, latest = random.Random(1), Counter[str](), 0.0
    expected = texts_of_a_new_runtime()
    before = Footprint.of(os.getpid())
    for number in range(times):
        with lmprog.Runtime("nano", threads=1) as runtime:
            clients = Clients(runtime.address, expected)
            for thread in clients.threads:
                thread.start()
            time.sleep(dice.uniform(0.0, 2.0))
            os.kill(runtime.process.pid, signal.SIGKILL)
            killed = time.monotonic()
            for thread in clients.threads:
                thread.join(PATIENCE)
                seen["hanging connections"] += thread.is_alive()
            latest = max(latest, time.monotonic() - killed)
        seen += clients.seen
        print(f"{number + 1} kills: {dict(seen)}", flush=True)
    after = Footprint.of(os.getpid())
    print(f"all clients had ended at most {latest:.1f} s after a kill; {before} -> {after}")
    allowed = {"right", "told that it died", "died while connecting"}
    return set(+seen) <= allowed and after.files <= before.files + 8


CLIENT = (
    "import sys, lmprog\n"
    "from benchmarks.endurance import recite, tell\n"
    "with lmprog.connect(sys.argv[1]) as backend:\n"
    "    print('begun', flush=True)\n"
    "    for number in range(10**6):\n"
    "        list(recite.using(backend=backend).stream(number % 5))\n"
    "        tell.using(backend=backend).run(number % 5)\n"
)


def client_kills(times: int) -> bool:
    """Four clients at a time are killed at any moment; at the end the runtime holds nothing."""
    dice = random.Random(2)
    with lmprog.Runtime("nano", threads=1) as runtime:
        expected = tell.using(backend=runtime, temperature=0).run(0).value
        before = Footprint.of(runtime.process.pid)
        for begin in range(0, times, 4):
            command = [sys.executable, "-c", CLIENT, runtime.address]
            clients = [
                subprocess.Popen(command, stdout=subprocess.PIPE)
                for _ in range(min(4, times - begin))
            ]
            for client in clients:
                assert client.stdout is not None
                client.stdout.readline()
            for client in clients:
                time.sleep(dice.uniform(0.0, 0.5))
                client.kill()
            for client in clients:
                client.communicate()
        holds = _until_nothing_is_held(runtime)
        is_right = tell.using(backend=runtime, temperature=0).run(0).value == expected
        after = Footprint.of(runtime.process.pid)
    print(f"{times} clients killed; then held: {holds}; the same answer: {is_right}")
    print(f"the runtime: {before} -> {after}")
    return not any(holds.values()) and is_right and after.files <= before.files + 2


def _until_nothing_is_held(runtime: lmprog.Runtime) -> dict[str, float]:
    ends = time.monotonic() + PATIENCE
    while True:
        figures = lmprog.get_server_info(runtime)
        holds = {name: figures[name] for name in ("open_branches", "running", "waiting")}
        if not any(holds.values()) or time.monotonic() > ends:
            return holds
        time.sleep(0.1)


def stopped(seconds: int) -> bool:
    """The runtime of a server stands still: how soon `/ready` says so, and what becomes of it."""
    with served() as server:
        ready = httpx2.Client(base_url=server.url, timeout=PATIENCE, trust_env=False)

        def status() -> int:
            return int(ready.get("/ready").status_code)

        old = server.runtime_pid()
        os.kill(old, signal.SIGSTOP)
        began = time.monotonic()
        told = _until(lambda: status() != 200, began)
        replaced = _until(lambda: server.runtime_pid() != old and status() == 200, began)
        rest = max(0.0, began + seconds - time.monotonic())
        time.sleep(rest)
        is_gone = not os.path.exists(f"/proc/{old}")
        still_ready = status() == 200
        ready.close()
    print(
        f"/ready said so after {told:.1f} s; a new runtime was ready after {replaced:.1f} s; "
        f"after {seconds} s the old one was gone: {is_gone}, ready: {still_ready}"
    )
    return told <= PATIENCE and replaced <= PATIENCE and is_gone and still_ready


def _until(holds: Callable[[], bool], began: float) -> float:
    """Seconds since `began` until it holds."""
    while not holds() and time.monotonic() - began <= PATIENCE:
        time.sleep(0.05)
    return time.monotonic() - began


JUMPING = (
    "import pathlib, random, time\n"
    "real, dice = time.time, random.Random(3)\n"
    "def jumping():\n"
    "    pathlib.Path(__file__).with_name('jumped').touch()\n"
    "    return real() + dice.choice([-1e7, -3600, 0, 3600, 1e7])\n"
    "time.time = jumping\n"
    "time.time()\n"
)
"""Imported by Python itself at the start of a process, before anything of lmprog."""


def clock(times: int) -> bool:
    """A runtime whose wall clock jumps by hours and months at every look: the texts are the same,
    and no timeout strikes early.
    """
    expected, rounds = texts_of_a_new_runtime(), max(1, times)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ):
        Path(folder, "sitecustomize.py").write_text(JUMPING)
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        with lmprog.Runtime("nano", threads=1) as runtime:
            found = [
                program.using(backend=runtime, temperature=0, timeout=PATIENCE).run(number).value
                == expected[name, number]
                for _ in range(rounds)
                for name, program in PROGRAMS.items()
                for number in range(PROMPTS)
            ]
        has_jumped = Path(folder, "jumped").exists()
    print(f"{sum(found)} of {len(found)} texts are right; the clock jumped: {has_jumped}")
    return all(found) and has_jumped


TRIALS: dict[str, tuple[Callable[[int], bool], int]] = {
    "runtime-kills": (runtime_kills, 100),
    "client-kills": (client_kills, 100),
    "stopped": (stopped, 30),
    "idle-streams": (idle_streams, 10_000),
    "churn": (churn, 30_000),
    "mixed": (mixed, 10_000),
    "slow-readers": (slow_readers, 32),
    "clock": (clock, 10),
}
"""And the usual number of times."""


@runner.command
def main(
    trial: Annotated[str, {"choices": list(TRIALS)}],
    *,
    times: int | None = None,
    seconds: int | None = None,
) -> int:
    what, usual = TRIALS[trial]
    is_well = what(times or seconds or usual)
    print("well" if is_well else "NOT WELL")
    return 0 if is_well else 1
