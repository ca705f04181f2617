"""What a run tells while it goes on: events of its stream, typed values while they are written,
traces. Here is what all of them need.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

callbacks: ContextVar[tuple[Callable[[Any], None], ...]] = ContextVar("lmprog_tracing", default=())
"""Who is told of the runs that begin here, by `TraceEvent`s."""


def branch_name(path: tuple[int, ...]) -> str:
    """A branch in a readable form: "root", "fork0[2]", "fork0[2].fork1[0]"."""
    forks = [f"fork{nth}[{index}]" for nth, index in zip(path[::2], path[1::2], strict=True)]
    return ".".join(forks) or "root"
