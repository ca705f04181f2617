"""Carries out the supervisor's decisions on real processes.

Starts the runtime in a thread, connects the gateway's link to it, checks it a few times a second,
and logs what is known when it must be restarted: its last figures, the stack of each of its threads
(the runtime writes that to its log upon a signal) and the end of its log. HTTP goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from lmprog.errors import Detail, LmprogError, RuntimeGone
from lmprog.launch import Connection, RuntimeProcess, connect
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.supervision.supervisor import Phase, RestartTimeouts, Supervisor

T = TypeVar("T")
log = logging.getLogger("lmprog.server")
TICK = 0.2
"""Seconds between two looks: a death is seen within one of them."""
_REACH_PAUSE = 0.5  # between two tries to connect again
_ASK_SECONDS = 3600.0  # the supervisor decides how long an answer may take


class SupervisedRuntime:
    """Owner of the runtime process; `stop` ends it, and `run`. Belongs to the event loop's
    thread.
    """

    def __init__(
        self,
        launch: Callable[[], RuntimeProcess],
        gateway: Gateway,
        timeouts: RestartTimeouts | None = None,
    ) -> None:
        """`launch` starts a runtime and waits until it serves; it is called in a thread, once for
        each life.
        """
        self._launch = launch
        self._link = link = gateway.link
        self._meters = gateway.meters
        self._runtime: RuntimeProcess | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._up = asyncio.Event()
        self.supervisor = Supervisor(self, time.monotonic, timeouts)
        link.when_lost = lambda error: self.supervisor.lost()
        link.seconds_until_up = self.supervisor.seconds_until_up
        gateway.is_responsive = self.supervisor.is_responsive

    @property
    def runtime(self) -> RuntimeProcess | None:
        """The runtime of now, or the one before it while another is started."""
        return self._runtime

    async def run(self) -> None:
        """Starts the runtime and keeps it alive until `stop`. Raises why the first start failed."""
        self.supervisor.begin()
        while not self._stopping:
            self.supervisor.tick()
            if self.supervisor.phase is Phase.FAILED:
                assert self.supervisor.failure is not None
                raise self.supervisor.failure
            await asyncio.sleep(TICK)

    async def first_up(self) -> Mapping[str, Detail]:
        """Waits for the first life; what the runtime says of itself."""
        await self._up.wait()
        assert self._runtime is not None
        return self._runtime.facts

    async def stop(self, grace: float) -> bool:
        """Ends the runtime, by force after `grace` seconds. True where it ended well, or none had
        come up yet.
        """
        self._stopping = True
        self._link.close()  # on purpose: nobody is to wonder why it is lost
        for task in list(self._tasks):
            task.cancel()
        runtime = self._runtime
        if runtime is None:
            return True
        await in_thread(lambda: runtime.close(grace))
        return runtime.exit_code == 0

    # --- the supervisor's actions -----------------------------------------------------------------

    def start(self) -> None:
        self._spawn(self._start())

    def ask(self) -> None:
        self._spawn(self._ask())

    def reach(self) -> None:
        self._spawn(self._reach())

    def pulse(self) -> float | None:
        runtime = self._runtime
        return None if runtime is None else runtime.busy_seconds()

    def end(self, why: str) -> None:
        log.error("the runtime is restarted: %s", why)
        self._meters.restarted()
        self._link.replace(None)
        self._spawn(self._end())

    # --- carried out ------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("supervising the runtime failed", exc_info=task.exception())

    async def _start(self) -> None:
        began = time.monotonic()
        try:
            runtime = await in_thread(self._launch)
            connection = await in_thread(lambda: _connected(runtime))
        except LmprogError as error:
            self.supervisor.start_failed(error)
            return
        except OSError as error:  # no more processes, no room for its folder
            self.supervisor.start_failed(RuntimeGone(f"The runtime could not be started: {error}."))
            return
        if self._stopping:
            await in_thread(lambda: runtime.close(0.0))
            return
        self._runtime = runtime
        self._link.replace(connection)
        self.supervisor.started()
        self._up.set()
        log.info(
            "the runtime serves after %.1f s (process %d)", time.monotonic() - began, runtime.pid
        )

    async def _ask(self) -> None:
        with contextlib.suppress(LmprogError):  # the link reports a lost connection
            figures = await self._link.figures(_ASK_SECONDS)
            self._meters.runtime.see(figures)
            self._meters.history.see(figures)
            self.supervisor.answered(figures)

    async def _reach(self) -> None:
        runtime = self._runtime
        assert runtime is not None
        while True:
            try:
                connection = await in_thread(lambda: _connected(runtime))
                break
            except LmprogError as error:
                log.warning("the runtime is not reached again: %s", error)
            await asyncio.sleep(_REACH_PAUSE)
            if self.supervisor.phase is not Phase.LOST or runtime is not self._runtime:
                return
        if self.supervisor.phase is not Phase.LOST or runtime is not self._runtime:
            await in_thread(connection.close)
            return
        self._link.replace(connection)
        self.supervisor.reached()
        log.warning("the runtime is reached again; it had not ended")

    async def _end(self) -> None:
        runtime = self._runtime
        assert runtime is not None
        await in_thread(lambda: self._log_and_close(runtime))
        self.supervisor.ended()

    def _log_and_close(self, runtime: RuntimeProcess) -> None:
        """Logs what is known, and ends the process. In a thread: takes a moment."""
        figures = {name: value for name, value in self.supervisor.last_figures.items() if value}
        log.error(
            "its last figures: %s",
            " ".join(f"{name}={value:g}" for name, value in sorted(figures.items())),
        )
        runtime.write_stacks()
        tail = runtime.log_tail()
        runtime.close(0.0)
        log.error("it ended with exit code %s.%s", runtime.exit_code, tail)


def _connected(runtime: RuntimeProcess) -> Connection:
    """Without the runtime's own explanations, which quote its log: clients would read them."""
    return connect(runtime.address, client="http")


async def in_thread(work: Callable[[], T]) -> T:
    """Like `asyncio.to_thread`, in a thread that does not hold up the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def body() -> None:
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            _tell(loop, lambda error=error: settle(None, error))  # type: ignore[misc]
        else:
            _tell(loop, lambda: settle(value, None))

    threading.Thread(target=body, name="lmprog-supervisor", daemon=True).start()
    return await future


def _tell(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    """Does nothing where the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(action)
