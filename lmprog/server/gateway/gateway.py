"""What every route needs: the link to the runtime, settings, keys and their accounts, the clock.

Admits requests (`admit`) and chooses the cache namespace of each (`salt`). Knows no routes and no
formats.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from starlette.types import Scope

from lmprog import wire
from lmprog.errors import Overloaded, RuntimeGone
from lmprog.server.fairness.accounts import KeyAccount, KeyAccounts, MemoryPool
from lmprog.server.fairness.dispatch import Dispatcher
from lmprog.server.http.auth import (
    CallingModel,
    Keyring,
    calling_key,
    calling_model,
    calling_session,
)
from lmprog.server.http.http_errors import HttpError, Problem, refused
from lmprog.server.link.exchange import KEPT_CHARS, RecordKeeper, calling_request
from lmprog.server.link.runtime_link import RuntimeLink
from lmprog.server.observability.meters import KeyMetrics, Meters
from lmprog.server.observability.replica_metrics import FleetView
from lmprog.server.observability.spans import NoTraces, Traces
from lmprog.server.options.api_keys import key_of_caches
from lmprog.server.options.server_settings import ServerSettings

log = logging.getLogger("lmprog.server")

NOT_THERE = "The runtime is not there yet; try again in a moment."
MAX_RETRY_SECONDS = 60.0
"""Longest `Retry-After` of an overloaded server: estimates of more are guesses."""
REFUSING_SECONDS = 1.0
"""So long after a refusal the next request may well be refused, too."""
SAY_SECONDS = 10.0
"""Between two lines of the log about refused connections."""
SMOOTHING = 0.05
"""Weight of the newest result in the moving average of the time between results."""


@functools.cache
def version() -> str:
    """Of this package, as it is installed."""
    try:
        return metadata.version("lmprog")
    except metadata.PackageNotFoundError:
        return "0+unknown"


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
        """Results that were admitted and have not ended."""
        self.memory = link.memory = MemoryPool(settings.memory_mb << 20)
        self.memory.parts.append(link.held)
        self.accounts = KeyAccounts(
            self.keyring.keys,
            settings.max_running + settings.max_waiting,
            settings.key_share,
            clock,
        )
        self._dispatcher = Dispatcher(settings.max_running, clock)
        self._seconds_per_result = 0.0
        """A moving average of the time between two results that end."""
        self._last_end = clock()
        self._refused_at = -math.inf
        self._connections_refused = 0
        self._say_refused_at = -math.inf
        self.meters = Meters(clock, self.model_label)
        self.key_metrics = KeyMetrics(lambda: self.accounts, self.memory, self.model_label)
        self.traces: Traces = NoTraces()
        link.observer = self.meters
        link.account = self._account
        link.session = calling_session.get
        link.model = calling_model.get
        link.origin = calling_request.get
        link.records = RecordKeeper(clock, KEPT_CHARS if settings.ui_show_text else 0)
        self._choose_turns()
        self.is_responsive: Callable[[], bool] = lambda: True
        """Whether the runtime answers, or computes. Its supervisor knows."""
        self.fleet: FleetView | None = None
        """Where several runtimes serve: what is known of each. None: there is one."""
        self._label = settings.served_model_name or ""
        self._names: Mapping[str, CallingModel] = {}
        self._names_of: Mapping[str, wire.Welcome] | None = None
        self._secret = key_of_caches(settings)

    @property
    def is_ready(self) -> bool:
        """Whether a new request would be served now."""
        return self.link.is_up and not self.draining and self.is_responsive()

    @property
    def info(self) -> wire.Welcome:
        """What the runtime is, of the model that the request of this context names (`check_model`).
        Raises `RuntimeGone` while there is none.
        """
        return self._info(calling_model.get())

    def info_of(self, name: str) -> wire.Welcome:
        """The same of the model that a name of `names` stands for."""
        return self._info(self.names[name])

    def _info(self, model: CallingModel) -> wire.Welcome:
        link, name = self.link, model.served_name
        info = link.models.get(name) if name else link.info
        if info is None:
            raise RuntimeGone(NOT_THERE)
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
        """Of the model that requests get which name none. Raises like `info`."""
        return next(iter(self.names))

    @property
    def model_names(self) -> list[str]:
        """Of all models, `model_name` first. Raises like `info`."""
        return [name for name, one in self.names.items() if not one.adapter]

    @property
    def names(self) -> Mapping[str, CallingModel]:
        """What requests may name: all models, then their adapters. An adapter whose name is taken
        is MODEL:ADAPTER. Raises like `info`.
        """
        models = self.link.models
        if models is not self._names_of:
            self._names, self._names_of = _names_of(models, self.settings.served_model_name), models
        if not self._names:
            raise RuntimeGone(NOT_THERE)
        return self._names

    def name_of(self, info: wire.Welcome) -> str:
        """What clients call a runtime's model."""
        return info.served_name or self.settings.served_model_name or info.model

    async def see_figures(self, timeout: float) -> None:
        """Gives the metrics the newest figures of the runtime, or of each replica, and what each
        key has cost.
        """
        if self.fleet is not None:
            self.meters.see_fleet(self.fleet)
        described = await self.link.described(timeout)
        self.key_metrics.costs = described.accounts
        if self.fleet is None:
            self.meters.runtime.see(described.figures)

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

    def watch(self, scope: Scope) -> _Watched:
        """Counts, times and traces one HTTP request; see `middleware.RequestMonitor`."""
        return _Watched(self, scope)

    def is_overfull(self) -> bool:
        """Whether more HTTP requests are open than may be; counts the refusal."""
        is_over = self.open_requests > self.settings.max_requests
        if is_over:
            self.meters.refused("too_many_requests")
        return is_over

    def refuse_connection(self) -> None:
        """The process may have no more: counted each time, and logged now and then."""
        self.meters.refused("too_many_connections")
        self._connections_refused += 1
        if self.clock() >= self._say_refused_at:
            log.warning(
                "%d connections were refused: as many are open as this process may have; raise "
                "the hard limit of open files (ulimit -Hn)",
                self._connections_refused,
            )
            self._say_refused_at = self.clock() + SAY_SECONDS

    def model_label(self) -> str:
        """The label of metrics: the last known name while there is no runtime."""
        info = self.link.info
        if info is not None:
            self._label = self.name_of(info)
        return self._label

    def check_model(self, asked: str | None) -> str:
        """The name to answer with, of the model or of an adapter, which computes the request then.
        Any other is a 404.
        """
        names = self.names
        name = asked or next(iter(names))
        chosen = names.get(name)
        if chosen is None:
            near = difflib.get_close_matches(name, names, n=1)
            guess = f"did you mean {near[0]!r}? This" if near else "this"
            raise refused(
                f"The model {asked!r} does not exist; {guess} server serves "
                f"{', '.join(map(repr, names))}.",
                "model",
                "model_not_found",
                404,
            )
        calling_model.set(chosen)
        return name

    def admit(self, results: int = 1) -> _Admitted:
        """A block that counts `results` as open while it runs. Its beginning raises 400, 429 or 503
        at once where there is no room for them.
        """
        return _Admitted(self, results)

    def let_in(self, results: int) -> KeyAccount | None:
        """The beginning of such a block; whose it is."""
        account = self._account()
        self._check_size(results, account)
        refusal = self.refusal(results)
        if refusal is not None:
            raise HttpError(refusal)
        self._count(results, account)
        return account

    def let_out(self, results: int, account: KeyAccount | None) -> None:
        """Its end."""
        self._count(-results, account)
        self._note_end(results)

    def refusal(self, results: int = 1) -> Problem | None:
        """Why no request of so many results is let in now; counts it as refused."""
        account = self._account()
        problem, reason = self._find_refusal(results, account)
        if problem is not None:
            self._refused_at = self.clock()
            self.meters.refused(reason, calling_model.get().served_name)
            if account is not None:
                account.refused += 1
        return problem

    @property
    def is_refusing(self) -> bool:
        """Whether generations have been refused a moment ago."""
        return self.clock() - self._refused_at < REFUSING_SECONDS

    def reload_keys(self) -> None:
        """Reads the keys again. Raises InvalidParameter, and goes on with those of before."""
        self.keyring.load()
        self.accounts.load(self.keyring.keys)
        self._choose_turns()

    def _choose_turns(self) -> None:
        """With one key, or none, there is nobody to be fair to, and nothing to wait for here. Once
        there have been several, calls may be queued, and go on as they are.
        """
        if self.accounts.are_several:
            self.link.turns = self._dispatcher

    def _account(self) -> KeyAccount | None:
        key = calling_key.get()
        return None if key is None else self.accounts.get(key)

    def _check_size(self, results: int, account: KeyAccount | None) -> None:
        """Refuses what could never be let in."""
        most = self.settings.max_waiting
        if account is not None and self.accounts.are_several:
            most = min(most, self.accounts.most_at_once(account))
        if results > most:
            self.meters.refused("too_many_results", calling_model.get().served_name)
            raise refused(
                f"The request asks for {results:,} results at once; at most {most:,} may wait. "
                "Send fewer prompts, or a smaller n.",
                "n",
                "too_many_results",
            )

    def _find_refusal(self, results: int, account: KeyAccount | None) -> tuple[Problem | None, str]:
        if self.draining:
            message = "The server is stopping; send the request to another one."
            return Problem(503, message, code="draining"), "draining"
        most = self.settings.max_running + self.settings.max_waiting
        missing = self.open_results + results - most
        if missing > 0:
            message = (
                f"{self.open_results:,} results are being computed or wait, and {most:,} may; "
                "try again later."
            )
            return self._overloaded(message, missing), "overloaded"
        if account is None:
            return None, ""
        seconds = account.seconds_until_tokens()
        if seconds > 0:
            limit = account.key.tokens_per_minute
            message = f"This key has used its {limit:,.0f} tokens a minute; try again later."
            problem = Problem(429, message, code="tokens_per_minute", retry_after=seconds)
            return problem, "tokens_per_minute"
        if self.accounts.are_several and not self.accounts.has_room(
            account, results, self.open_results
        ):
            message = (
                f"This key has {account.open_results:,} results being computed or waiting, and "
                "the other places are kept for other keys; try again later."
            )
            return self._overloaded(message, results), "key_share"
        return None, ""

    def _overloaded(self, message: str, missing: int) -> Problem:
        """With the time after which so many places are free, as results have ended of late."""
        seconds = min(MAX_RETRY_SECONDS, max(1.0, missing * self._seconds_per_result))
        return Problem(429, message, code=Overloaded.code, retry_after=seconds)

    def _count(self, results: int, account: KeyAccount | None) -> None:
        if not self.open_results:
            self._last_end = self.clock()  # an idle server ends nothing
        self.open_results += results
        if account is not None:
            account.open_results += results

    def _note_end(self, results: int) -> None:
        now = self.clock()
        each = (now - self._last_end) / results
        self._last_end = now
        self._seconds_per_result += SMOOTHING * (each - self._seconds_per_result)

    def salt(self, caller: str, asked: str | None = None) -> str:
        """The cache that a request of `caller` (a digest of its key) sees, as the wire's salt."""
        if asked is not None and not self.settings.allow_cache_salt:
            raise refused(
                "This server does not allow cache_salt in requests; leave it out, or start "
                "the server "
                "with --allow-cache-salt.",
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


def _names_of(
    models: Mapping[str, wire.Welcome], preferred: str | None
) -> Mapping[str, CallingModel]:
    """See `Gateway.names`. The `preferred` model goes first, which else is the runtimes' first; one
    without a name is called so.
    """
    named = {name or preferred or info.model: info for name, info in models.items()}
    if preferred in named:
        named = {preferred: named[preferred], **named}
    first = next(iter(models), "")
    found = {
        name: CallingModel("" if info.served_name == first else info.served_name)
        for name, info in named.items()
    }
    for name, info in named.items():
        for adapter in info.adapters:
            shown = f"{name}:{adapter}" if adapter in found else adapter
            found[shown] = CallingModel(found[name].served_name, adapter)
    return found


class _Watched:
    """A block around one HTTP request. A class: a generator would take twice as long."""

    __slots__ = ("_began", "_gateway", "_scope", "_span", "_traced")

    def __init__(self, gateway: Gateway, scope: Scope) -> None:
        self._gateway = gateway
        self._scope = scope

    def __enter__(self) -> Callable[[str, int], float]:
        gateway = self._gateway
        self._began = gateway.clock()
        gateway.open_requests += 1
        self._span = gateway.traces.request(self._scope)
        self._traced = self._span.__enter__()
        return self._end

    def __exit__(self, *error: Any) -> None:
        self._span.__exit__(*error)

    def _end(self, route: str, status: int) -> float:
        gateway = self._gateway
        gateway.open_requests -= 1
        seconds = gateway.clock() - self._began
        asked = calling_model.get().served_name
        gateway.meters.answered(self._scope["method"], route, status, seconds, asked)
        self._traced(route, status)
        return seconds


class _Admitted:
    """A block while which results are open."""

    __slots__ = ("_account", "_gateway", "_results")

    def __init__(self, gateway: Gateway, results: int) -> None:
        self._gateway = gateway
        self._results = results

    def __enter__(self) -> None:
        self._account = self._gateway.let_in(self._results)

    def __exit__(self, *_: object) -> None:
        self._gateway.let_out(self._results, self._account)
