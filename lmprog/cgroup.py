"""What a container may use: the limits of memory and processors that its control groups set.

A machine says what it has, and its groups what of it a process may use, which a kernel enforces by
ending or slowing it. Version 1 and 2 of the groups; the limit of a group is also that of all below
it. A container may see its own group as the root, or the path of the whole machine above which
nothing is mounted: so each part of the path is tried. Knows the files of Linux; where there are
none, there is no limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

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


def processors() -> int:
    """How many this process may use at a time, at least one: by its affinity, and by the time that
    its groups give it in each period.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    found = [len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1]
    for folder in _folders("cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if not quota:
            quota = _text(folder / "cpu.cfs_quota_us")
            period = _text(folder / "cpu.cfs_period_us")
        if quota.strip().isdigit() and period.strip().isdigit():  # else "max", or -1
            found.append(int(quota) // max(1, int(period)))
    return max(1, min(found))


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
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None
