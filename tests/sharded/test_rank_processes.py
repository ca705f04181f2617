"""Ranks as processes: programs give what they give on one process, ranks end together, and what
cannot be is refused at the start.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import lmprog
from lmprog.backends.client import RuntimeBackend, describe
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter, RuntimeGone
from lmprog.launch import RuntimeProcess
from lmprog.native import compiler
from lmprog.runtime.assembly import assemble
from lmprog.transport import LocalRuntimeChannel
from tests.runtime.runtime_thread import serving

SMALL = RuntimeConfig(
    model="dummy:tiny",
    dtype="float32",
    threads=2,
    # little memory: programs that run at once evict each other's pages
    scheduler=SchedulerConfig(page_size=4, num_pages=90, admission="unlimited"),
)
PATIENCE = 60.0
"""Seconds after which a test gives up on something that takes a moment."""


@lmprog.function
def story(s: lmprog.Branch, start: str, seed: int) -> list[str]:
    """Samples, forks, a constraint, a choice and a join."""
    s += start
    s += lmprog.gen("first", max_tokens=16, temperature=1.0, seed=seed, ignore_eos=True)
    forks = s.fork(3)
    for index, fork in enumerate(forks):
        fork += f" {index}:"
        fork += lmprog.gen("more", max_tokens=12, temperature=0.7, seed=index, ignore_eos=True)
    s += forks[0]["more"]
    s += lmprog.gen("digits", regex="[0-9]{5}", temperature=1.0, seed=seed)
    s += lmprog.select("end", [" this", " that", " those"])
    return [s["first"], *(fork["more"] for fork in forks), s["digits"], s["end"]]


def stories(backend: RuntimeBackend) -> list[list[str]]:
    arguments = [{"start": "Once upon a time " * (n % 3 + 1), "seed": n} for n in range(6)]
    runs = story.run_batch(arguments, backend=backend)
    return [run.value for run in runs]


@contextmanager
def one_process() -> Iterator[RuntimeBackend]:
    """The same model on the torch engine in a thread."""
    channel = LocalRuntimeChannel()
    loop, _ = assemble(replace(SMALL, engine="torch"), channel)
    with serving(loop, channel) as backend:
        yield backend


def rank_pids(parent: int) -> list[int]:
    """The other ranks, which are children of the runtime's process."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [pid for pid in map(int, children) if b"rank_main" in command_of(pid)]


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def ends(pid: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


def test_programs_on_two_ranks_are_those_of_one_process() -> None:
    with one_process() as backend:
        wanted = stories(backend)
        assert describe(backend)["evicted_pages"] > 0, "memory was meant to be too little"
    with lmprog.Runtime(SMALL, tp=2) as runtime:
        assert runtime.process.facts["engine"] == "torch, native attention, 2 ranks"
        (other,) = rank_pids(runtime.process.pid)
        assert stories(runtime) == wanted
        assert describe(runtime)["evicted_pages"] > 0
    assert runtime.process.exit_code == 0
    assert ends(other)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_programs_on_two_ranks_with_a_device_each_are_those_of_one_process() -> None:
    """The emulated device runs the kernels of a GPU; what ranks say to each other goes over gloo."""
    short = {"start": "Once upon a time", "seed": 3}
    with one_process() as backend:
        wanted = story.run(**short, backend=backend).value
    roomy = replace(SMALL, scheduler=SchedulerConfig(page_size=16, num_pages=64, token_budget=128))
    with lmprog.Runtime(roomy, tp=2, device="emulated", context_len=512) as runtime:
        assert runtime.process.facts["engine"] == "emulated (tree), 2 ranks"
        assert runtime.process.facts["device"] == "emulated"
        assert story.run(**short, backend=runtime).value == wanted
    assert runtime.process.exit_code == 0


@pytest.mark.parametrize("hangs", [False, True])
def test_ranks_end_when_the_runtime_is_killed_also_one_that_hangs(hangs: bool) -> None:
    with RuntimeProcess(SMALL, tp=2) as runtime:
        (other,) = rank_pids(runtime.pid)
        if hangs:
            os.kill(other, signal.SIGSTOP)
        os.kill(runtime.pid, signal.SIGKILL)
        assert ends(other)


def test_a_model_that_cannot_be_spread_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidParameter, match="2 heads with 1 key/value heads cannot be spread"):
        RuntimeProcess(SMALL, tp=3)
    with pytest.raises(InvalidParameter, match="needs RANK, WORLD_SIZE"):
        RuntimeProcess(SMALL, tp=2, tp_ranks="torchrun")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def started_rank(rank: int, master: int, address: str) -> subprocess.Popen[bytes]:
    """The command that torchrun would start on each machine."""
    variables = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(master)}
    options = ["dummy:tiny", "--tp", "2", "--tp-ranks", "torchrun", "--address", address]
    command = [sys.executable, "-m", "lmprog.cli", "serve", *options, "--kv-memory-mb", "32"]
    return subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def test_ranks_that_torchrun_started_serve_together_and_a_ranks_death_is_the_runtimes(
    tmp_path: Path,
) -> None:
    address, master = f"ipc://{tmp_path}/socket", free_port()
    ranks = [started_rank(rank, master, address) for rank in (0, 1)]
    try:
        assert ranks[0].stdout is not None
        assert any(line.startswith(b"ready") for line in ranks[0].stdout)
        backend = lmprog.connect(address)
        assert isinstance(backend, RuntimeBackend)
        with backend:
            run = story.run(start="Once", seed=1, backend=backend)
            assert len(run.value[4]) == 5
            ranks[1].kill()
            assert ranks[0].wait(PATIENCE) == 1
            with pytest.raises(RuntimeGone):
                stories(backend)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
