"""Memory and processors of a container: its limits and not the machine's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lmprog import cgroup
from lmprog.runtime.engine.machine import resources
from lmprog.runtime.engine.machine.resources import default_threads, free_memory

MIB = 1 << 20
Tree = Callable[[str, dict[str, str]], None]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Makes the groups of this process: what /proc says of them, and their files."""
    monkeypatch.setattr(cgroup, "_GROUPS", tmp_path)
    monkeypatch.setattr(cgroup, "_OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(resources, "_siblings", str)
    monkeypatch.setattr(resources, "_free_of_machine", lambda: 64_000 * MIB)
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
    assert cgroup.memory_left() == free_memory() == (4096 - 1000 + 200) * MIB
    assert cgroup.processors() == default_threads() == 2


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
    assert cgroup.memory_left() is None
    assert free_memory() == 64_000 * MIB
    assert default_threads() == 16
    tree("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"})
    assert default_threads() == 16
    tree("0::/", {"cpu.max": "50000 100000"})
    assert default_threads() == 1, "of less than one there is one"


def test_a_memory_that_is_used_up_leaves_nothing_and_no_error(tree: Tree) -> None:
    tree("0::/", {"memory.max": str(MIB), "memory.current": str(2 * MIB)})
    assert cgroup.memory_left() == 0


@pytest.fixture
def group() -> Iterator[Path]:
    """A real group for one processor's time, of either version."""
    roots = [Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")]
    root = next((one for one in roots if (one / "cgroup.procs").exists()), roots[0])
    made = root / f"lmprog-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            if (made / "cpu.cfs_quota_us").exists():
                (made / "cpu.cfs_quota_us").write_text("100000")
            else:
                (made / "cpu.max").write_text("100000 100000")
        except OSError as error:
            pytest.skip(f"a control group cannot be limited here: {error}")
        yield made
    finally:
        made.rmdir()


def test_a_real_limit_of_processors_is_found(group: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "before = __import__('lmprog.cgroup').cgroup.processors()\n"
        "Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))\n"
        "from lmprog.runtime.engine.machine.resources import default_threads\n"
        "print(before, default_threads())"
    )
    command = [sys.executable, "-c", code, str(group)]
    clean = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean)
    before, after = map(int, done.stdout.split())
    assert (min(before, 1), after) == (1, 1)
