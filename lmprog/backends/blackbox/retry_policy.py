"""The retry policy: repeats requests that failed for a transient reason, after the delay that the
service names, else with random backoff.

Knows when to retry, not what failed: transports report that with a `TransientError`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from lmprog.errors import DeadlineExceeded, InvalidParameter, LmprogError

T = TypeVar("T")


class TransientError(Exception):
    """A failure that may not occur again; `after` is the delay in seconds if the service named
    one.
    """

    def __init__(self, error: LmprogError, after: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.after = after


@dataclass(slots=True)
class RetryCounters:
    """Counts requests, retries and tokens, for `get_server_info`."""

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    answered_from_speculation: int = 0
    speculation_dropped: int = 0

    def reset(self) -> None:
        """Counts from 0 again."""
        for name in self.__slots__:
            setattr(self, name, 0)


@dataclass(slots=True)
class SharedPause:
    """The time until which the service asked clients to pause."""

    until: float = 0.0
    """On the clock of `time.monotonic`."""

    def extend(self, seconds: float) -> None:
        self.until = max(self.until, time.monotonic() + seconds)

    @property
    def left(self) -> float:
        return max(self.until - time.monotonic(), 0.0)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The time limit of one answer (seconds; for a stream, of its next piece), and the number of
    retries.
    """

    timeout: float = 600.0
    retries: int = 3
    first_wait: float = 0.5
    longest_wait: float = 30.0
    counters: RetryCounters = field(default_factory=RetryCounters)
    pause: SharedPause = field(default_factory=SharedPause)
    """A delay that one call was given holds for all calls."""

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise InvalidParameter(
                f"timeout={self.timeout} is not allowed; give 0 < x",
                name="timeout",
                allowed="0 < x",
            )
        if self.retries < 0:
            message = f"retries={self.retries} is not allowed; give 0 <= x"
            raise InvalidParameter(message, name="retries", value=self.retries, allowed="0 <= x")

    async def run(self, send: Callable[[], Awaitable[T]]) -> T:
        """The result of `send`, with retries. Raises its own errors at once, and the cause of a
        `TransientError` after the last try.
        """
        tries = 0
        while True:
            while (left := self.pause.left) > 0:
                await asyncio.sleep(self._wait(0, left))
            self.counters.requests += 1
            try:
                return await self._once(send)
            except TransientError as failure:
                if tries >= self.retries:
                    failure.error.add_note(f"asked {tries + 1} times")
                    raise failure.error from None
                if failure.after is not None:
                    self.pause.extend(failure.after)
                else:
                    await asyncio.sleep(self._wait(tries, None))
            tries += 1
            self.counters.retries += 1

    async def _once(self, send: Callable[[], Awaitable[T]]) -> T:
        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                return await send()
        except TimeoutError:
            if not limit.expired():
                raise
            raise TransientError(self.late()) from None

    def late(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"the API did not answer within timeout={self.timeout:g} s")

    def _wait(self, tries: int, after: float | None) -> float:
        """Seconds. Adds jitter to the delay named by the service, so that clients do not all retry
        at once.
        """
        if after is not None:
            return after + random.uniform(0.0, 0.1 * after + 0.01)
        longest = min(self.first_wait * 2.0**tries, self.longest_wait)
        return random.uniform(0.5 * longest, longest)

    async def pieces(self, stream: AsyncIterator[T]) -> AsyncIterator[T]:
        """The stream's pieces, each within the time limit. Raises `DeadlineExceeded` if one is
        late.
        """
        while True:
            try:
                async with asyncio.timeout(self.timeout) as limit:
                    piece = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not limit.expired():
                    raise
                raise self.late() from None
            yield piece
