"""What the server knows of each request for generations: who asked, how far it is, how it ended.

A record is numbers and a few short names; it never has a text. Those of requests under way belong
to their exchanges; the last ones that ended are kept for a while. Knows replies; knows neither HTTP
nor who may see what.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from lmprog import wire

KEPT = 256
"""Requests that have ended and are remembered."""
KEPT_SECONDS = 900.0
"""For so long."""


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """Who asked, and for what. `key` is the name of the key, `caller` a digest of it; both are
    empty where there are no keys.
    """

    request_id: str = ""
    route: str = ""
    key: str = ""
    caller: str = ""


NOBODY = RequestOrigin()
calling_request: ContextVar[RequestOrigin] = ContextVar("calling_request", default=NOBODY)
"""The request that this context serves."""


@dataclass(eq=False, slots=True)
class RequestRecord:
    """One request. Times by the gateway's clock; tokens are those of calls that have ended."""

    number: int
    origin: RequestOrigin
    began: float
    ended: float | None = None
    failure: str = ""
    """The code of the first error of a call, or why the request ended early."""
    branches: int = 0
    calls: int = 0
    done: int = 0
    """Calls with a result."""
    prompt: int = 0
    cached: int = 0
    computed: int = 0
    generated: int = 0
    forced: int = 0

    def take(self, reply: wire.Reply) -> None:
        """The last reply to a call."""
        if isinstance(reply, wire.CallDone | wire.Chosen):
            usage = reply.usage
            self.prompt += usage.prompt
            self.cached += usage.cached
            self.computed += usage.computed
            self.generated += usage.generated
            self.forced += usage.forced
        elif isinstance(reply, wire.Failed):
            self.failure = self.failure or reply.code
            return
        self.done += 1

    @property
    def state(self) -> str:
        """How it ended."""
        return self.failure or ("done" if self.done == self.calls else "left")


def nobodys() -> RequestRecord:
    """The record of what the server asks for itself."""
    return RequestRecord(0, NOBODY, 0.0)


class RecordKeeper:
    """Numbers requests and keeps those that have ended. Belongs to the event loop's thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended: deque[RequestRecord] = deque(maxlen=KEPT)
        self.num_begun = 0
        self.num_ended = 0

    def begin(self, origin: RequestOrigin) -> RequestRecord:
        """The record of a new request."""
        self.num_begun += 1
        return RequestRecord(self.num_begun, origin, self._clock())

    def end(self, record: RequestRecord) -> None:
        """The request has ended. The server's own, and what asked for nothing, is not
        remembered.
        """
        if record.ended is not None or not record.calls or not record.number:
            return
        record.ended = self._clock()
        self.num_ended += 1
        self._ended.append(record)

    def ended(self) -> Iterator[RequestRecord]:
        """Those that ended a while ago at most, the last ones first."""
        oldest = self._clock() - KEPT_SECONDS
        for record in reversed(self._ended):
            if record.ended is None or record.ended < oldest:
                return
            yield record
