"""What this machine has: cores for threads, memory that is free, torch. Knows the operating system
and what is installed.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from lmprog.errors import NotSupported

_GIB = 1 << 30
TORCH_INSTALL = "pip install 'lmprog[torch]'"


def has_torch() -> bool:
    """Nothing is imported for that."""
    return importlib.util.find_spec("torch") is not None


def require_torch(what: str) -> None:
    """Raises NotSupported where torch, which `what` needs, is not installed."""
    if not has_torch():
        raise NotSupported(f"{what} needs torch, which is not installed: {TORCH_INSTALL}")


def default_threads() -> int:
    """OMP_NUM_THREADS, else the physical cores that this process may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    allowed = (
        os.sched_getaffinity(0)
        if hasattr(os, "sched_getaffinity")
        else set(range(os.cpu_count() or 1))
    )
    siblings = {_siblings(cpu) for cpu in allowed}
    return max(1, len(siblings))


def _siblings(cpu: int) -> str:
    """Names the core of a hardware thread: equal for the threads of one core."""
    try:
        return (
            Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
            .read_text()
            .strip()
        )
    except OSError:  # not Linux, or a sandbox that hides it: every thread counts as a core
        return str(cpu)


def free_memory() -> int:
    """Bytes that can be taken without swapping; 4 GiB where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 4 * _GIB
    return next(
        (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 4 * _GIB
    )
