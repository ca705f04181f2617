"""What every route needs, in one place: the link to the runtime, the settings, the keys, the
limits, the clock.

Decides who is let in (`admit`) and which cache a request sees (`salt`). Knows no routes and no
formats.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import Scope

from lmprog import wire
from lmprog.errors import Overloaded, RuntimeGone
from lmprog.server.http.auth import Keyring
from lmprog.server.http.http_errors import HttpError, Problem, refused
from lmprog.server.observability.meters import Meters
from lmprog.server.observability.tracing import NoTraces, Traces
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.runtime_link import RuntimeLink


class Gateway:
    """One server's state. Belongs to the event loop's thread."""

    def __init__(
        self,
        settings: ServerSettings,
        link: RuntimeLink,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`clock` measures, `wall` dates (`created`)."""
        self.settings = settings
        self.link = link
        self.keyring = Keyring(settings)
        self.clock = clock
        self.wall = wall
        self.started = wall()
        self.draining = False
        """No new request is let in; those under way finish."""
        self.open_requests = 0
        """HTTP requests that have begun and not ended."""
        self.open_results = 0
        """Results asked of the runtime that have not come yet."""
        self.meters = Meters(clock, self.model_label)
        self.traces: Traces = NoTraces()
        link.observer = self.meters
        self.is_responsive: Callable[[], bool] = lambda: True
        """Whether the runtime answers, or computes. Its supervisor knows."""
        self._label = settings.served_model_name or ""
        self._secret = secrets.token_bytes(32)

    @property
    def is_ready(self) -> bool:
        """Whether a new request would be served now."""
        return self.link.is_up and not self.draining and self.is_responsive()

    @property
    def info(self) -> wire.Welcome:
        """What the runtime is. Raises `RuntimeGone` while there is none."""
        info = self.link.info
        if info is None:
            raise RuntimeGone("The runtime is not there yet; try again in a moment.")
        return info

    @property
    def suggested(self) -> wire.SuggestedSampling:
        """How to sample where a request does not say, and what remains open then too. Raises like
        `info`.
        """
        return (
            self.info.suggested
            if self.settings.generation_config == "auto"
            else wire.SuggestedSampling()
        )

    @property
    def model_name(self) -> str:
        return self.settings.served_model_name or self.info.model

    def trace(self, made: Traces) -> None:
        """From now on spans are made of requests and calls."""
        self.traces = made
        self.link.observer = made.beside(self.meters)

    def drain(self) -> None:
        """From now on no new request is admitted."""
        self.draining = True
        self.link.end_waiting()

    async def runtime_started(self) -> None:
        """Waits for a runtime that is starting, at most `start_wait` seconds."""
        await self.link.wait_until_up(self.settings.start_wait)

    @contextmanager
    def watch(self, scope: Scope) -> Iterator[Callable[[str, int], float]]:
        """Counts, times and traces one HTTP request; see `middleware.RequestMonitor`."""
        began = self.clock()
        self.open_requests += 1
        with self.traces.request(scope) as ended:

            def end(route: str, status: int) -> float:
                self.open_requests -= 1
                seconds = self.clock() - began
                self.meters.answered(scope["method"], route, status, seconds)
                ended(route, status)
                return seconds

            yield end

    def is_overfull(self) -> bool:
        """Whether more HTTP requests are open than may be; counts the refusal."""
        is_over = self.open_requests > self.settings.max_requests
        if is_over:
            self.meters.refused("too_many_requests")
        return is_over

    def model_label(self) -> str:
        """For the metrics: as it was last known, while there is no runtime."""
        info = self.link.info
        if info is not None:
            self._label = self.model_name
        return self._label

    def check_model(self, asked: str | None) -> str:
        """The name to answer with. Another model than the served one is a 404."""
        name = self.model_name
        if asked and asked != name:
            raise refused(
                f"The model {asked!r} does not exist; this server serves {name!r}.",
                "model",
                "model_not_found",
                404,
            )
        return name

    @contextmanager
    def admit(self, results: int = 1) -> Iterator[None]:
        """Counts `results` as asked while the block runs. Raises 429 or 503 at once where there is
        no room.
        """
        if self.draining:
            self.meters.refused("draining")
            raise HttpError(
                Problem(
                    503, "The server is stopping; send the request to another one.", code="draining"
                )
            )
        most = self.settings.max_running + self.settings.max_waiting
        if results > self.settings.max_waiting:
            self.meters.refused("too_many_results")
            raise refused(
                f"The request asks for {results:,} results at once; this server lets {self.settings.max_waiting:,} "
                "wait. Send fewer prompts, or a smaller n.",
                "n",
                "too_many_results",
            )
        if self.open_results + results > most:
            self.meters.refused("overloaded")
            raise Overloaded(
                f"{self.open_results:,} results are being computed or wait, and {most:,} may; try again in a second.",
                retry_after=1.0,
            )
        self.open_results += results
        try:
            yield
        finally:
            self.open_results -= results

    def salt(self, caller: str, asked: str | None = None) -> str:
        """The cache that a request of `caller` (a digest of its key) sees, as the wire's salt."""
        if asked is not None and not self.settings.allow_cache_salt:
            raise refused(
                "This server does not let requests choose a cache_salt; leave it out, or start it with "
                "--allow-cache-salt.",
                "cache_salt",
                "not_allowed",
            )
        match self.settings.isolation:
            case "shared":
                parts = ""
            case "key":
                parts = caller
            case "strict":
                parts = secrets.token_hex(16)
        if not parts and asked is None:
            return ""
        text = f"{parts}:{asked or ''}".encode()
        name = hashlib.blake2b(text, key=self._secret, digest_size=16).hexdigest()
        is_keys_own = self.settings.isolation == "key" and asked is None
        return wire.SHARES_PUBLIC + name if is_keys_own else name
