"""Which replicas a fleet has: addresses that are given, or runtimes that it starts itself.

Knows how a replica is reached and whether its process lives; knows no programs.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lmprog.config import RuntimeConfig
from lmprog.errors import LmprogError
from lmprog.launch import Connection, RuntimeProcess, connect
from lmprog.transport import CurveClient

log = logging.getLogger("lmprog")


@dataclass(frozen=True, slots=True)
class Member:
    """A replica that can be reached by `dial`, which raises RuntimeGone where it does not answer.

    A replica that was started again has another name: its memory is empty.
    """

    name: str
    dial: Callable[[], Connection]


class Members(Protocol):
    """Says which replicas there are now."""

    def current(self) -> Sequence[Member]:
        """Never blocks for long; asked a few times a second."""
        ...

    def close(self) -> None:
        """Ends what it started. Safe to repeat."""
        ...


class FixedMembers:
    """Runtimes that run elsewhere, at known addresses."""

    def __init__(self, addresses: Sequence[str], keys: CurveClient | None = None) -> None:
        self._members = [
            Member(address, functools.partial(connect, address, client="fleet", keys=keys))
            for address in addresses
        ]

    def current(self) -> Sequence[Member]:
        """All of them: whoever does not answer is tried again."""
        return self._members

    def close(self) -> None:
        """Nothing was started."""


class LocalMembers:
    """Runtimes started here, on the same model; one that dies is started again."""

    def __init__(self, model: str | RuntimeConfig, replicas: int, **options: Any) -> None:
        self._start = functools.partial(RuntimeProcess, model, **options)
        self._lock = threading.Lock()
        self._closed = False
        self._num_started = 0
        self._starting = 0
        self._processes: dict[str, RuntimeProcess] = {}
        self._replicas = replicas
        try:
            for _ in range(replicas):
                self._add(self._start())
        except BaseException:
            self.close()
            raise

    def current(self) -> Sequence[Member]:
        """Those that live. For each dead one another is started, in a thread of its own."""
        with self._lock:
            for name in [name for name, one in self._processes.items() if not one.alive]:
                self._processes.pop(name).close()
            missing = self._replicas - len(self._processes) - self._starting
            if not self._closed:
                for _ in range(missing):
                    self._starting += 1
                    threading.Thread(
                        target=self._replace, name="lmprog-replica", daemon=True
                    ).start()
            return [
                Member(name, functools.partial(process.connect, "fleet"))
                for name, process in self._processes.items()
            ]

    @property
    def processes(self) -> dict[str, RuntimeProcess]:
        """Those that live, by name."""
        return dict(self._processes)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            processes, self._processes = list(self._processes.values()), {}
        for process in processes:
            process.close()

    def _add(self, process: RuntimeProcess) -> None:
        self._num_started += 1
        self._processes[f"replica-{self._num_started}"] = process

    def _replace(self) -> None:
        process = None
        try:
            process = self._start()
        except LmprogError as error:
            log.error("a replica could not be started again: %s", error)
        with self._lock:
            self._starting -= 1
            if process is not None and not self._closed:
                self._add(process)
                process = None
        if process is not None:
            process.close()
