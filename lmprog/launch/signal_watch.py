"""Whether another process has handled a signal that it was sent, as Linux tells in /proc.

Knows one process and one signal. A signal that is handled is first pending, then blocked in the
thread whose handler runs.
"""

from __future__ import annotations

from pathlib import Path


class SignalWatch:
    """Made before the signal is sent. Threads that blocked it before (those of ZeroMQ do) tell
    nothing.
    """

    def __init__(self, pid: int, number: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self._bit = 1 << (number - 1)
        self.can_tell = (self._folder / "status").exists()
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
