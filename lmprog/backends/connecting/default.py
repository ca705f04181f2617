"""The default backend of programs: the one given to `set_default_backend`, or an embedded runtime.

The embedded runtime is started on first use, which is told, and stopped when the process exits. It
is refused while a program runs on another backend: who asks then has most likely lost the context
of that run. This is the only module of the frontend with process-wide state, but for threads that
wait to be used again.
"""

from __future__ import annotations

import atexit
import os
import threading

from lmprog.backends import Backend
from lmprog.errors import ProgramError


class _Default:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: Backend | None = None
        self._embedded: Backend | None = None
        self._connected: dict[str, Backend] = {}
        self.running: dict[object, Backend] = {}
        """Of each run that goes on in this process, what it runs on."""

    def at(self, address: str) -> Backend:
        with self._lock:
            backend = self._connected.get(address)
            if backend is None or backend.client.closed:
                from lmprog.backends.connecting.embedded import connect

                backend = self._connected[address] = connect(address)
                atexit.register(backend.close)
            return backend

    def give(self, backend: Backend | None) -> None:
        self._given = backend

    @property
    def given(self) -> Backend | None:
        return self._given

    def get(self) -> Backend:
        with self._lock:
            if self._given is not None:
                return self._given
            self._refuse_beside_others()
            if self._embedded is None or self._embedded.client.closed:
                self._embedded = self._start()
            return self._embedded

    @property
    def is_ready(self) -> bool:
        """Whether `get` would start nothing. Does not wait for a start that is under way."""
        embedded = self._embedded
        return self._given is not None or (embedded is not None and not embedded.client.closed)

    def _refuse_beside_others(self) -> None:
        others = [one for one in list(self.running.values()) if one is not self._embedded]
        if not others:
            return
        kind, model = type(others[0]).__name__, others[0].client.welcome.model
        raise ProgramError(
            f"no backend is given here, and none can be taken from a run, while a program runs on "
            f"{kind} ({model!r}). A thread that a program starts by itself (threading.Thread, "
            "ThreadPoolExecutor, loop.run_in_executor) does not know the run: start it with "
            "contextvars.copy_context().run(function, ...), or use asyncio.to_thread, which does "
            "so. Anywhere else name the backend: program.using(backend=...)"
        )

    def _start(self) -> Backend:
        from lmprog.backends.connecting.embedded import Runtime

        backend = Runtime()
        atexit.register(backend.close)
        return backend

    def forked(self) -> None:
        """In a forked process: a thread that held the lock may not be there. The parent's runtime
        is not this process's: its client is closed here, and another is started when it is needed.
        """
        self._lock = threading.Lock()
        self.running.clear()  # those of other threads do not go on here


_default = _Default()
if hasattr(os, "register_at_fork"):  # not on Windows, which forks no processes
    os.register_at_fork(after_in_child=_default.forked)


def set_default_backend(backend: Backend | None) -> None:
    """Programs without a backend of their own run on `backend` from now on; None: on an embedded
    runtime again.
    """
    _default.give(backend)


def given_backend() -> Backend | None:
    """The argument of the last `set_default_backend`."""
    return _default.given


def default_backend() -> Backend:
    """The backend of programs without one; starts the embedded runtime if none was set."""
    return _default.get()


def default_is_ready() -> bool:
    """Whether `default_backend` gives one that is there, without starting it."""
    return _default.is_ready


def backend_at(address: str) -> Backend:
    """The backend on the runtime or server at `address` (see `lmprog.connect`), connected on first
    use, and closed when the process exits.
    """
    return _default.at(address)


def run_began(run: object, backend: Backend) -> None:
    """A run goes on, on `backend`, until `run_ended`."""
    _default.running[run] = backend


def run_ended(run: object) -> None:
    _default.running.pop(run, None)
