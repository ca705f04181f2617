"""How many replicas there should be, by what their runtimes have to do. Runs in Serve's controller.

Requests do not pass through Serve, so its own count of them is always zero.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

BUSY = "lmprog_busy"
"""What a replica reports: sequences that run or wait, in shares of its slots."""
TARGET = 0.7
"""The share that a replica should be busy."""


def wanted(shares: Collection[float], current: int) -> float:
    """Replicas that would be busy as they should, before bounds and delays; `current` where nothing
    is known. Serve rounds up.
    """
    return sum(shares) / TARGET if shares else float(current)


def by_slots(context: Any) -> tuple[float, dict[str, Any]]:
    """Serve's policy: `context` is its `AutoscalingContext`."""
    reported = (context.aggregated_metrics or {}).get(BUSY, {})
    return wanted(reported.values(), context.target_num_replicas), {}
