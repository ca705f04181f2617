"""Memory and processors of a container: its limits and not the machine's. And what is done where
the system is not Linux: the portable twins, forced, also under a whole runtime.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lmprog
from lmprog import linux
from lmprog.backends.client import RuntimeBackend
from lmprog.launch import RuntimeProcess
from lmprog.runtime.engine.machine.resources import Region, default_threads, free_memory

MIB = 1 << 20
Tree = Callable[[str, dict[str, str]], None]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Makes the groups of this process: what /proc says of them, and their files."""
    monkeypatch.delenv(linux.PORTABLE_VARIABLE, raising=False)
    monkeypatch.setattr(linux, "_GROUPS", tmp_path)
    monkeypatch.setattr(linux, "_OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(linux, "core_of", str)
    monkeypatch.setattr(linux, "memory_available", lambda: 64_000 * MIB)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def make(own: str, files: dict[str, str]) -> None:
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text + "\n")

    return make


def test_version_2_limits_memory_and_processors(tree: Tree) -> None:
    """What is used counts against the limit, but for files that are only cached."""
    stat = f"anon 5\ninactive_file {200 * MIB}\nactive_file {MIB}"
    tree(
        "0::/",
        {
            "memory.max": str(4096 * MIB),
            "memory.current": str(1000 * MIB),
            "memory.stat": stat,
            "cpu.max": "250000 100000",
        },
    )
    assert linux.memory_left() == free_memory() == (4096 - 1000 + 200) * MIB
    assert linux.processors() == default_threads() == 2


def test_version_1_limits_memory_and_processors(tree: Tree) -> None:
    tree(
        "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n1:name=systemd:/docker/ab",
        {
            "memory/docker/ab/memory.limit_in_bytes": str(2048 * MIB),
            "memory/docker/ab/memory.usage_in_bytes": str(500 * MIB),
            "memory/docker/ab/memory.stat": f"inactive_file 7\ntotal_inactive_file {100 * MIB}",
            "cpu,cpuacct/docker/ab/cpu.cfs_quota_us": "400000",
            "cpu,cpuacct/docker/ab/cpu.cfs_period_us": "100000",
        },
    )
    assert free_memory() == (2048 - 500 + 100) * MIB
    assert default_threads() == 4


def test_the_least_of_all_groups_above_counts(tree: Tree) -> None:
    tree(
        "0::/pod/container",
        {
            "pod/memory.max": str(1000 * MIB),
            "pod/memory.current": str(900 * MIB),
            "pod/cpu.max": "100000 100000",
            "pod/container/memory.max": str(800 * MIB),
            "pod/container/memory.current": str(10 * MIB),
            "pod/container/cpu.max": "max 100000",
        },
    )
    assert free_memory() == 100 * MIB
    assert default_threads() == 1


def test_a_container_that_sees_the_path_of_the_machine_finds_its_own_root(tree: Tree) -> None:
    tree("0::/kubepods/pod1/c1", {"memory.max": str(512 * MIB), "memory.current": "0"})
    assert free_memory() == 512 * MIB


def test_without_limits_the_machine_counts(tree: Tree) -> None:
    tree(
        "0::/\n3:memory:/", {"memory.max": "max", "memory/memory.limit_in_bytes": str(2**63 - 4096)}
    )
    assert linux.memory_left() is None
    assert free_memory() == 64_000 * MIB
    assert default_threads() == 16
    tree("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"})
    assert default_threads() == 16
    tree("0::/", {"cpu.max": "50000 100000"})
    assert default_threads() == 1, "of less than one there is one"


def test_a_memory_that_is_used_up_leaves_nothing_and_no_error(tree: Tree) -> None:
    tree("0::/", {"memory.max": str(MIB), "memory.current": str(2 * MIB)})
    assert linux.memory_left() == 0


@contextmanager
def limited(controller: str, limits: dict[str, str]) -> Iterator[Path]:
    """A real group, of either version: what is there of the limits is set."""
    roots = [Path("/sys/fs/cgroup") / controller, Path("/sys/fs/cgroup")]
    root = next((one for one in roots if (one / "cgroup.procs").exists()), roots[0])
    made = root / f"lmprog-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            name = next(one for one in limits if (made / one).exists())
            (made / name).write_text(limits[name])
        except (OSError, StopIteration) as error:
            pytest.skip(f"a control group cannot be limited here: {error!r}")
        yield made
    finally:
        deadline = time.monotonic() + 10.0
        while (made / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.01)  # what has ended leaves its group a moment later
        made.rmdir()


@pytest.fixture
def group() -> Iterator[Path]:
    """For one processor's time."""
    with limited("cpu", {"cpu.cfs_quota_us": "100000", "cpu.max": "100000 100000"}) as made:
        yield made


FILLED = """
import os, random, sys
from pathlib import Path

Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))

import lmprog
from lmprog.backends.client import describe


@lmprog.function
def read(s: lmprog.Branch, number: int) -> str:
    s += "".join(random.Random(number).choices("abcdefgh ", k=3000))
    return str(s.gen(max_tokens=1, temperature=0))


with lmprog.Runtime("nano", threads=1) as runtime:
    number = 0
    while not describe(runtime)["evicted_pages"]:
        read.run(number, backend=runtime)
        number += 1
    assert runtime.process.alive
    print(describe(runtime)["pages"])
"""


def test_a_runtime_that_fills_its_memory_lives_under_a_real_limit() -> None:
    """Long contexts until the first page is evicted; then its pool is full."""
    limits = {"memory.limit_in_bytes": str(320 * MIB), "memory.max": str(320 * MIB)}
    with limited("memory", limits) as group:
        command = [sys.executable, "-c", FILLED, str(group)]
        clean = {one: v for one, v in os.environ.items() if one != linux.PORTABLE_VARIABLE}
        done = subprocess.run(command, capture_output=True, text=True, env=clean)
        assert done.returncode == 0, done.stderr
    page_bytes = 16 * 2 * 2 * 64 * 6 * 2  # nano's, in two bytes each or more
    assert 16 * MIB < float(done.stdout) * page_bytes < 320 * MIB


def test_a_real_limit_of_processors_is_found(group: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "before = __import__('lmprog.linux').linux.processors()\n"
        "Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))\n"
        "from lmprog.runtime.engine.machine.resources import default_threads\n"
        "print(before, default_threads())"
    )
    command = [sys.executable, "-c", code, str(group)]
    unwanted = ("OMP_NUM_THREADS", linux.PORTABLE_VARIABLE)
    clean = {name: value for name, value in os.environ.items() if name not in unwanted}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean)
    before, after = map(int, done.stdout.split())
    assert (min(before, 1), after) == (1, 1)


@pytest.mark.skipif(not linux.tells_of_waits(), reason="the system does not tell")
def test_what_waits_for_a_processor_is_busy_and_what_stands_still_is_not() -> None:
    """Two that share a processor have half of it each, and are busy all the time."""
    processor = min(os.sched_getaffinity(0))
    spins = f"import os; os.sched_setaffinity(0, {{{processor}}})\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spins]) for _ in range(2)]
    one = spinning[0]
    try:
        computed, busy = computed_by(one.pid), linux.busy_seconds(one.pid)
        while computed_by(one.pid) - computed < 0.3:
            time.sleep(0.02)
        assert linux.busy_seconds(one.pid) - busy > 1.3 * 0.3
        os.kill(one.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, one.pid, os.WSTOPPED)
        still = linux.busy_seconds(one.pid)
        time.sleep(0.1)
        assert linux.busy_seconds(one.pid) == still
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@pytest.mark.skipif(not linux.is_linux(), reason="the system does not tell")
def test_a_thread_that_computes_is_runnable_and_one_that_waits_is_not() -> None:
    """With threads that hold no lock of Python while they do so."""
    ends = threading.Event()

    def compute() -> None:
        while not ends.is_set():
            hashlib.blake2b(bytes(1 << 22)).digest()

    threads = [threading.Thread(target=one, daemon=True) for one in (compute, ends.wait)]
    for thread in threads:
        thread.start()
    computing, waiting = (thread.native_id or 0 for thread in threads)
    try:
        found = {linux.is_runnable(computing)}
        while True not in found:
            found.add(linux.is_runnable(computing))
        while linux.is_runnable(waiting):  # it has not come to its wait yet
            time.sleep(0.01)
        assert not any(linux.is_runnable(waiting) for _ in range(20))
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    while linux.is_runnable(computing):  # its end takes a moment
        time.sleep(0.01)


def computed_by(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(linux.PORTABLE_VARIABLE, "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.usefixtures("portable")
def test_the_twins_tell_what_any_system_tells() -> None:
    assert linux.allowed_processors() == set(range(os.cpu_count() or 1))
    assert linux.processors() == default_threads() == os.cpu_count()
    assert linux.core_of(3) == "3"
    assert linux.memory_left() is None
    physical = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    assert free_memory() == linux.memory_available() == physical // 2
    assert (linux.boot_name(), linux.processor_flags()) == ("", None)
    assert linux.busy_seconds(os.getpid()) == 0.0
    assert not linux.tells_of_waits()
    assert not linux.SignalWatch(os.getpid(), signal.SIGUSR1).can_tell


@pytest.mark.parametrize("value", ["", "1"])
def test_memory_that_is_given_back_is_zeros_with_and_without_linux(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(linux.PORTABLE_VARIABLE, value)
    page = mmap.PAGESIZE
    region = Region(4 * page)
    part = region.take(4 * page)
    populated = region.populate(part, 0, 4 * page)
    assert not (value and populated)
    part[:] = 7
    region.give_back(part, page - 1, 3 * page)
    assert [int(at) for at in (part.reshape(4, page) == 0).all(axis=1)] == [0, 1, 1, 0]


@pytest.mark.usefixtures("portable")
def test_a_file_gets_its_length_and_its_pages_stay_what_they_are(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        linux.take_room(file.fileno(), 3 * mmap.PAGESIZE)
        memory = mmap.mmap(file.fileno(), 3 * mmap.PAGESIZE)
        memory[:3] = b"abc"
        linux.begin_to_read(memory)
        linux.forget_pages(memory, 0, mmap.PAGESIZE)
        assert memory[:3] == b"abc"


@pytest.mark.usefixtures("portable")
def test_a_program_runs_and_its_runtime_ends_without_what_only_linux_has() -> None:
    """In the twins' way on both sides: the child inherits the variable."""

    @lmprog.function
    def hello(s: lmprog.Branch) -> str:
        s += "Is a dog an animal?"
        return s.gen(regex=" (yes|no)").value

    with RuntimeProcess("nano", threads=1) as process:
        with RuntimeBackend(process.connect("test")) as backend:
            assert hello.run(backend=backend).value in (" yes", " no")
        assert process.pid > 0
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


WORDS = re.compile(r"/proc\b|/sys/|prctl|pidfd|posix_fallocate|sched_\w+affinity|MADV_|\bmadvise\b")


def test_only_one_module_knows_linux() -> None:
    """Others ask it, so that all else runs elsewhere."""
    root = Path(lmprog.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if WORDS.search(line.partition("#")[0])
    }
    assert found == {"linux.py"}
