"""Buffers for pages on their way between memory and a store: a bounded number, used again.

A new buffer costs more than what is done with it, because the system clears its memory. Knows
bytes and threads; knows no page and no file.
"""

from __future__ import annotations

import threading

KEPT_BYTES = 4 << 20
"""Of buffers that nobody uses; the others are given back to the system."""


class StagingBuffers:
    """Buffers of `size` bytes each, `most_bytes` of them at a time; at least one."""

    def __init__(self, size: int, most_bytes: int) -> None:
        self._size = size
        self._num_left = max(1, most_bytes // size)
        self._num_kept = max(1, KEPT_BYTES // size)
        self._unused: list[bytearray] = []
        self._changed = threading.Condition()

    def take(self, wait: float | None) -> bytearray | None:
        """A buffer with anything in it; None where none is free for `wait` seconds (None: it waits
        until there is one).
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._num_left, wait):
                return None
            self._num_left -= 1
            return self._unused.pop() if self._unused else bytearray(self._size)

    def give(self, buffer: bytearray) -> None:
        """Nobody uses the buffer any more."""
        with self._changed:
            self._num_left += 1
            if len(self._unused) < self._num_kept:
                self._unused.append(buffer)
            self._changed.notify()
