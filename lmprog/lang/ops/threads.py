"""Threads for users' functions: programs, bodies of forks, tools.

They have the context of whoever starts them, so that a run inside a run is found, and they are
daemons: neither Ctrl-C nor the end of the process waits for a user's function that does not end.
(The executors of `concurrent.futures` are joined in both cases.) Knows neither runs nor branches.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Future
from functools import partial
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
_Work: TypeAlias = tuple[str, Callable[[], None]]
_Job: TypeAlias = tuple[Future[Any], contextvars.Context, Callable[[], Any]]
LOOK_SECONDS = 0.25
"""Between two looks of a waiting main thread: what interrupts it need not be a signal of the
system, which alone wakes a thread (`_thread.interrupt_main`, as notebooks on some systems do it).
"""
STOP_SECONDS = 0.5
"""How long what was cancelled has to end, before nobody waits for it any more."""
SPARE_NAME = "lmprog-spare"
SPARE_SECONDS = 5.0


def start(name: str, function: Callable[..., T], *args: Any) -> Future[T]:
    """Starts a function in a thread of its own."""
    [started] = start_all(name, [partial(function, *args)], 1)
    return started


def start_all(
    name: str, functions: Sequence[Callable[[], T]], at_most: int, *, all_or_none: bool = False
) -> list[Future[T]]:
    """Starts functions in `at_most` threads. One that has not begun can be cancelled, and with
    `all_or_none` is, when another one fails.
    """
    started: list[Future[T]] = [Future() for _ in functions]
    todo = deque(
        (future, contextvars.copy_context(), function)
        for future, function in zip(started, functions, strict=True)
    )
    try:
        for _ in range(min(at_most, len(functions))):
            if not todo:  # those that began first were fast
                break
            _spares.begin(name, partial(_work, todo, all_or_none))
    except BaseException:
        cancel(started)
        raise
    return started


class _Spares:
    """Threads that have had something to do, kept for a while: to start one takes about as long as
    a short program.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a garbage collection in it may stop runs, by a thread
        self._inboxes: list[queue.SimpleQueue[_Work]] = []

    def begin(self, name: str, work: Callable[[], None]) -> None:
        with self._lock:
            if self._inboxes:
                self._inboxes.pop().put((name, work))
                return
        threading.Thread(target=self._serve, args=((name, work),), daemon=True).start()

    def _serve(self, work: _Work | None) -> None:
        inbox: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        thread = threading.current_thread()
        while work is not None:
            thread.name = work[0]
            work[1]()
            work = None  # what it holds is not needed while this thread waits
            thread.name = SPARE_NAME
            with self._lock:
                self._inboxes.append(inbox)
            work = self._next(inbox)

    def _next(self, inbox: queue.SimpleQueue[_Work]) -> _Work | None:
        try:
            return inbox.get(timeout=SPARE_SECONDS)
        except queue.Empty:
            pass
        with self._lock:
            if inbox in self._inboxes:
                self._inboxes.remove(inbox)
        return None if inbox.empty() else inbox.get()  # it was given work meanwhile

    def forked(self) -> None:
        """In a forked process, which has none of them."""
        self._lock, self._inboxes = threading.RLock(), []


_spares = _Spares()
if hasattr(os, "register_at_fork"):  # not on Windows, which forks no processes
    os.register_at_fork(after_in_child=_spares.forked)


def _work(todo: deque[_Job], all_or_none: bool) -> None:
    while (job := _next(todo)) is not None:
        future = job[0]
        _perform(*job)
        if all_or_none and not future.cancelled() and future.exception() is not None:
            while (other := _next(todo)) is not None:
                other[0].cancel()


def _next(todo: deque[_Job]) -> _Job | None:
    try:
        return todo.popleft()
    except IndexError:
        return None


def _perform(
    future: Future[Any], context: contextvars.Context, function: Callable[[], Any]
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        value = context.run(function)
    except BaseException as error:  # noqa: BLE001  (raised where the future is read)
        future.set_exception(error)
    else:
        future.set_result(value)


def wait(futures: Collection[Future[Any]], return_when: str = ALL_COMPLETED) -> None:
    """Blocks as `concurrent.futures.wait` does; any interrupt of the main thread ends it."""
    waiter = _Waiter(len(futures), return_when)
    for future in futures:
        future.add_done_callback(waiter)
    is_main = threading.current_thread() is threading.main_thread()
    while not waiter.is_over.wait(LOOK_SECONDS if is_main else None):
        pass


class _Waiter:
    """Is told of each end."""

    def __init__(self, num: int, return_when: str) -> None:
        self.is_over = threading.Event()
        self._num_left = num
        self._return_when = return_when
        self._lock = threading.Lock()
        if num == 0:
            self.is_over.set()

    def __call__(self, future: Future[Any]) -> None:
        with self._lock:
            self._num_left -= 1
            is_last = self._num_left == 0
        if is_last or self._ends_with(future):
            self.is_over.set()

    def _ends_with(self, future: Future[Any]) -> bool:
        if self._return_when == FIRST_EXCEPTION:
            return not future.cancelled() and future.exception() is not None
        return self._return_when == FIRST_COMPLETED


def take(source: queue.SimpleQueue[T]) -> T:
    """Blocks as `get` does; any interrupt of the main thread ends it."""
    is_main = threading.current_thread() is threading.main_thread()
    while True:
        try:
            return source.get(timeout=LOOK_SECONDS if is_main else None)
        except queue.Empty:
            pass


def cancel(futures: Collection[Future[Any]]) -> None:
    """What has not begun does not begin."""
    for future in futures:
        future.cancel()


async def call(name: str, function: Callable[..., T], *args: Any) -> T:
    """Calls a function in a thread of its own. Being cancelled leaves that behind."""
    return await asyncio.wrap_future(start(name, function, *args))
