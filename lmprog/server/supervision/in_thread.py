"""Work that waits, done beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
