"""What only Linux has, each with a portable twin that does without: the files of `/proc` and
`/sys`, control groups, advice on memory, and what ties one process to another.

`LMPROG_PORTABLE=1` takes the twins on Linux, too, so that tests go the way of other systems.

Of control groups: a machine says what it has, and its groups what of it a process may use, which a
kernel enforces by ending or slowing it. Version 1 and 2; the limit of a group is also that of all
below it. A container may see its own group as the root, or the path of the whole machine above
which nothing is mounted: so each part of the path is tried. Knows no models and no tokens.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PORTABLE_VARIABLE = "LMPROG_PORTABLE"


def is_linux() -> bool:
    """Whether what only Linux has is used."""
    return sys.platform == "linux" and os.environ.get(PORTABLE_VARIABLE, "") in ("", "0")


# -- memory and processors

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60
"""Bytes; version 1 writes a number above this where there is no limit."""


def memory_left() -> int | None:
    """Bytes that may still be taken before a limit; caches of files are given up for them. None:
    there is no limit.
    """
    left = []
    for folder in _folders("memory"):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        if limit is None or limit >= _UNLIMITED:
            continue
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        stat = dict(line.split()[:2] for line in _text(folder / "memory.stat").splitlines())
        cached = int(stat.get("total_inactive_file") or stat.get("inactive_file") or 0)
        left.append(max(0, limit - used + cached))
    return min(left, default=None)


def resident_bytes() -> int:
    """Memory that this process has now; 0 where the system does not tell."""
    fields = _text(Path("/proc/self/statm")).split()
    return int(fields[1]) * mmap.PAGESIZE if fields else 0


def processors() -> int:
    """How many this process may use at a time, at least one: by its affinity, and by the time that
    its groups give it in each period.
    """
    found = [len(allowed_processors())]
    for folder in _folders("cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if not quota:
            quota = _text(folder / "cpu.cfs_quota_us")
            period = _text(folder / "cpu.cfs_period_us")
        if quota.strip().isdigit() and period.strip().isdigit():  # else "max", or -1
            found.append(int(quota) // max(1, int(period)))
    return max(1, min(found))


def allowed_processors() -> set[int]:
    """Hardware threads that this process may run on; all, where the system does not say."""
    return os.sched_getaffinity(0) if is_linux() else set(range(os.cpu_count() or 1))


def core_of(processor: int) -> str:
    """Names the core of a hardware thread: equal for the threads of one core. Every thread is a
    core where the system does not say.
    """
    topology = f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
    return _text(Path(topology)) or str(processor)


def memory_available() -> int | None:
    """Bytes of the machine that can be taken without swapping. Where the system tells only how much
    there is, half of it; None where it tells nothing.
    """
    for line in _text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    with contextlib.suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 2
    return None


def processor_flags() -> set[str] | None:
    """What the processor says it can do; None where the system does not tell."""
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        if line.startswith(("flags", "Features")):
            return set(line.partition(":")[2].split())
    return None


def boot_name() -> str:
    """Names the time since the machine was started; "" where the system does not say."""
    return _text(Path("/proc/sys/kernel/random/boot_id"))


def _folders(controller: str) -> Iterator[Path]:
    """The groups of this process that have the controller, with those above them."""
    for line in _text(_OWN).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root = _GROUPS
        elif controller in controllers.split(","):
            root = _GROUPS / controllers
            if not root.exists():
                root = _GROUPS / controller
        else:
            continue
        parts = Path(path).parts[1:]
        for count in range(len(parts) + 1):
            yield root.joinpath(*parts[:count])


def _text(path: Path) -> str:
    """A file of the system's, "" where there is none."""
    if is_linux():
        with contextlib.suppress(OSError):
            return path.read_text().strip()
    return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


# -- what the system should know of memory

_POPULATE_WRITE = 23
"""Linux 5.14 and later; Python's `mmap` has no name for it."""


def use_huge_pages(memory: mmap.mmap) -> None:
    """Fewer address translations for a memory of gigabytes, also of a file."""
    if is_linux():
        with contextlib.suppress(OSError):  # of a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)


def begin_to_read(memory: mmap.mmap) -> None:
    """All of the file that it maps will be read soon."""
    if hasattr(mmap, "MADV_WILLNEED"):
        memory.madvise(mmap.MADV_WILLNEED)


def forget_pages(memory: mmap.mmap, start: int, num_bytes: int) -> None:
    """The system may take these pages of a file back; they are read again if asked for."""
    if is_linux():
        memory.madvise(mmap.MADV_DONTNEED, start, num_bytes)


def give_back_pages(memory: mmap.mmap, start: int, num_bytes: int) -> None:
    """These pages of memory without a file are zeros from now on, and the system's where it takes
    them.
    """
    if is_linux():
        memory.madvise(mmap.MADV_DONTNEED, start, num_bytes)
    else:
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(memory, start)), 0, num_bytes)


def populate_pages(address: int, num_bytes: int) -> bool:
    """Has the system give memory as a write would; what it holds stays. Other threads run
    meanwhile, which `mmap.madvise` keeps waiting. False where it cannot.
    """
    return is_linux() and not _madvise()(address, num_bytes, _POPULATE_WRITE)


@cache
def _madvise() -> ctypes._CFuncPtr:  # type: ignore[name-defined]
    found = ctypes.CDLL(None).madvise
    found.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return found


def take_room(handle: int, num_bytes: int) -> None:
    """Gives a file its length; the room is the file's from now on where the system can do that.
    Raises OSError where the disk lacks it.
    """
    if is_linux():
        os.posix_fallocate(handle, 0, num_bytes)
    else:
        os.ftruncate(handle, num_bytes)


# -- other processes

_PR_SET_PDEATHSIG = 1
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def end_with_parent() -> None:
    """Has the system end this process with its parent, also where it hangs and cannot notice. Other
    systems do not: there a process that hangs stays.
    """
    if is_linux():
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def limit_own(seconds: int, memory: int) -> None:
    """The system ends this process after so much processor time, and refuses it more memory where
    it has such a limit. It leaves no core file.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    if is_linux():
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def busy_seconds(pid: int) -> float:
    """What a process has computed so far, and what its threads have waited for a processor; 0 where
    the system does not tell.
    """
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    computed = (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND if fields else 0.0
    waits = [_text(path).split() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return computed + sum(int(times[1]) for times in waits if times) / 1e9


def is_runnable(thread: int) -> bool:
    """Whether a thread of this process computes, or waits for a processor; False where the system
    does not tell.
    """
    return _text(Path(f"/proc/self/task/{thread}/stat")).rpartition(")")[2][:2] == " R"


def tells_of_waits() -> bool:
    """Whether `busy_seconds` knows what a process waits for a processor: so that a busy machine
    cannot be taken for a process that stands still.
    """
    return bool(_text(Path("/proc/self/schedstat")))


def await_end(pid: int, timeout: float) -> None:
    """Waits for a child, at most so long, and returns at its end. Where the system cannot tell of
    that, does nothing: `subprocess`, which looks every 50 ms, waits then.
    """
    if not is_linux():
        return
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # an old kernel, or one that does not allow it
        return
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll(math.ceil(timeout * 1000))
    finally:
        os.close(descriptor)


class SignalWatch:
    """Whether another process has handled a signal. Made before the signal is sent. Threads that
    blocked it before (those of ZeroMQ do) tell nothing. `can_tell`: whether the system says.
    """

    def __init__(self, pid: int, number: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self._bit = 1 << (number - 1)
        self.can_tell = is_linux() and (self._folder / "status").exists()
        self._blocked_before = self._blocked()

    def is_handled(self) -> bool:
        """Also where the process has ended."""
        return not self._is_in(self._folder, "ShdPnd") and self._blocked() <= self._blocked_before

    def _blocked(self) -> set[str]:
        """Threads that block the signal."""
        try:
            threads = list((self._folder / "task").iterdir())
        except OSError:
            return set()
        return {thread.name for thread in threads if self._is_in(thread, "SigBlk")}

    def _is_in(self, folder: Path, name: str) -> bool:
        try:
            lines = (folder / "status").read_text().splitlines()
        except OSError:  # it has ended
            return False
        masks = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
        return any(int(mask, 16) & self._bit for mask in masks)
