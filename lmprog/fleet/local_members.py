"""Replicas that are started here; one that dies or hangs is started again.

Starts and ends processes in threads of their own, so that whoever asks who is there never waits.
Knows processes and how soon to start one again; knows no programs.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter, LmprogError
from lmprog.fleet.members import Member
from lmprog.launch import RuntimeProcess
from lmprog.launch.restarts import DelayLimits, RestartDelays
from lmprog.launch.runtime_process import replica_options

log = logging.getLogger("lmprog")

Launch: TypeAlias = Callable[[int], RuntimeProcess]
"""Starts a runtime of a generation, and returns when it serves: replicas of one generation have the
same model. Called in threads, for each replica and every restart."""


def launches(
    models: Mapping[str, str | RuntimeConfig], replicas: int, options: Mapping[str, Any]
) -> dict[str, Launch]:
    """One for each model, by the name that it is served under ("": it has none), for so many
    replicas of each with `options`. Raises InvalidParameter.
    """
    if len(models) > 1:
        for name in models:
            if not name.strip():
                says = "each of several models needs a name under which it is served"
                raise InvalidParameter(says, name="models", value=repr(name))
    if replicas * len(models) > 1:
        options = replica_options(options)
    return {name: _launch(model, name, dict(options)) for name, model in models.items()}


def _launch(model: str | RuntimeConfig, name: str, options: dict[str, Any]) -> Launch:
    given = {**options, **({"served_model_name": name} if name else {})}
    return lambda generation: RuntimeProcess(model, **{**given, "generation": generation})


@dataclass(eq=False, slots=True)
class _Replica:
    """One place of the fleet, over the lives of its process."""

    name: str
    launch: Launch
    delays: RestartDelays
    process: RuntimeProcess | None = None
    life: int = 0
    since: float = 0.0
    """When its process began to serve."""
    due: float = 0.0
    """When it may be started again."""
    is_changing: bool = False
    """A thread starts or ends its process."""
    threads: list[threading.Thread] = field(default_factory=list)


class LocalMembers:
    """`replicas` runtimes, or so many of each model."""

    def __init__(
        self,
        launch: Launch | Mapping[str, Launch],
        replicas: int,
        *,
        delays: DelayLimits | None = None,
    ) -> None:
        """Starts the first one of each model and raises why it cannot be started; the others
        follow. Of several models there is a `launch` for each served name.
        """
        self.generation = 0
        """Of those that are started from now on."""
        self._lock = threading.Lock()
        self._closed = False
        self.num_restarts = 0
        by_name = launch if isinstance(launch, Mapping) else {"": launch}
        self._replicas = [
            _Replica(f"{name or 'replica'}-{number + 1}", one, RestartDelays(delays))
            for name, one in by_name.items()
            for number in range(replicas)
        ]
        self._start_firsts(self._replicas[::replicas])
        self.current()

    def _start_firsts(self, firsts: Sequence[_Replica]) -> None:
        """All at once. Raises the error of the first one that fails, and then leaves none."""
        failures: dict[str, Exception] = {}

        def start(replica: _Replica) -> None:
            try:
                replica.process = replica.launch(0)
            except Exception as error:  # noqa: BLE001 - raised below, when all threads have ended
                failures[replica.name] = error
            replica.since, replica.life = time.monotonic(), 1

        threads = [
            threading.Thread(target=start, args=(one,), name="lmprog-replica", daemon=True)
            for one in firsts[1:]
        ]
        for thread in threads:
            thread.start()
        start(firsts[0])
        for thread in threads:
            thread.join()
        if failures:
            for process in self.processes.values():
                process.close(0.0)
            raise next(failures[one.name] for one in firsts if one.name in failures)

    @property
    def size(self) -> int:
        return len(self._replicas)

    def current(self) -> Sequence[Member]:
        """Those that live. Those that died are started again, after the delay of their deaths."""
        with self._lock:
            for replica in self._replicas:
                is_dead = replica.process is not None and not replica.process.alive
                if is_dead and not replica.is_changing:  # else it is being ended
                    self._bury(replica)
                is_missing = not (replica.process or replica.is_changing)
                if is_missing and not self._closed and replica.due <= time.monotonic():
                    self._in_thread(replica, self._start)
            return [
                Member(
                    replica.name,
                    functools.partial(process.connect, "fleet"),
                    replica.life,
                    process.busy_seconds,
                )
                for replica in self._replicas
                if (process := replica.process) is not None and not replica.is_changing
            ]

    @property
    def processes(self) -> Mapping[str, RuntimeProcess]:
        """Those that live, by name."""
        with self._lock:
            return {one.name: one.process for one in self._replicas if one.process is not None}

    def until_started(self) -> None:
        """Waits until each replica has been started, or could not be."""
        for replica in self._replicas:
            for thread in replica.threads:
                thread.join()

    def end(self, name: str, why: str, grace: float) -> None:
        """See `Members`."""
        with self._lock:
            replica = next((one for one in self._replicas if one.name == name), None)
            if replica is None or replica.process is None or replica.is_changing:
                return
            log.warning("%s is ended: %s", name, why)
            self._in_thread(replica, functools.partial(self._end, replica.process, grace))

    def close(self, grace: float) -> bool:
        """See `Members`."""
        with self._lock:
            was_closed, self._closed = self._closed, True
            processes = [one.process for one in self._replicas if one.process is not None]
        if was_closed:
            return True
        enders = [
            threading.Thread(target=one.close, args=(grace,), name="lmprog-replica-end")
            for one in processes
        ]
        for thread in enders:
            thread.start()
        for thread in enders:
            thread.join()
        return all(one.exit_code == 0 for one in processes)

    def _bury(self, replica: _Replica) -> None:
        """Its process has ended by itself. The lock is held."""
        process = replica.process
        assert process is not None
        code = process.exit_code
        log.error("%s ended with exit code %s.%s", replica.name, code, process.log_tail())
        process.close()
        replica.process = None
        self._rest(replica, time.monotonic() - replica.since)

    def _rest(self, replica: _Replica, lived: float | None) -> None:
        self.num_restarts += 1
        replica.due = time.monotonic() + replica.delays.after(lived)

    def _in_thread(self, replica: _Replica, work: Callable[[_Replica], None]) -> None:
        """The lock is held."""
        replica.is_changing = True
        thread = threading.Thread(target=work, args=(replica,), name="lmprog-replica", daemon=True)
        replica.threads = [*(one for one in replica.threads if one.is_alive()), thread]
        thread.start()

    def _start(self, replica: _Replica) -> None:
        process = None
        try:
            process = replica.launch(self.generation)
        except (LmprogError, OSError) as error:
            log.error("%s could not be started: %s", replica.name, error)
        except Exception:  # a fault of ours: it is tried again all the same
            log.exception("%s could not be started", replica.name)
        with self._lock:
            replica.is_changing = False
            if process is None:
                self._rest(replica, None)
            elif not self._closed:
                replica.process, replica.since = process, time.monotonic()
                replica.life += 1
                return
        if process is not None:
            process.close(0.0)

    def _end(self, process: RuntimeProcess, grace: float, replica: _Replica) -> None:
        if not grace:
            process.write_stacks()  # it hangs: where?
        tail = "" if grace else process.log_tail()
        process.close(grace)
        log.warning("%s ended with exit code %s.%s", replica.name, process.exit_code, tail)
        with self._lock:
            replica.is_changing = False
            replica.process = None
            if not grace:  # else it was ended on purpose, and nothing is wrong with it
                self._rest(replica, time.monotonic() - replica.since)


def next_generation(members: object) -> int:
    """From now on replicas are started as the next one. Raises InvalidParameter for others than
    `LocalMembers`.
    """
    if not isinstance(members, LocalMembers):
        raise InvalidParameter(
            "these replicas are not started here; start each again with the new model and "
            "--generation, a larger number than before",
            name="replicas",
        )
    members.generation += 1
    return members.generation
