"""The server's metrics: the runtime's figures, and what the gateway itself measures of requests.

`Meters` observes the link: every generation is timed and counted, whichever route it came by.
`KeyMetrics` says what each key has open and has used. No label holds a text, a key or an id; their
values are the model's name, the names of keys, routes, methods, statuses and our own words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from lmprog import wire
from lmprog.server.fairness.accounts import KeyAccount, MemoryPool
from lmprog.server.observability.replica_metrics import FleetView, ReplicaMetrics
from lmprog.server.observability.runtime_metrics import (
    PREFIX,
    FigureHistory,
    QuickCounter,
    RouteSeconds,
    RuntimeFigures,
    RuntimeHistogram,
)

_SECONDS = (
    0.005,
    0.01,
    0.02,
    0.04,
    0.08,
    0.15,
    0.3,
    0.5,
    1.0,
    2.0,
    4.0,
    8.0,
    15.0,
    30.0,
    60.0,
    120.0,
    300.0,
)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
_FINISHES = ("stop", "length", "constraint", "selected")
_METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
_REFUSALS = (
    "overloaded",
    "draining",
    "too_many_requests",
    "too_many_connections",
    "too_many_results",
    "key_share",
    "tokens_per_minute",
)
_RESULTS = (1, 2, 4, 8, 16, 32, 64, 128)
_TIMES = (0, 1, 2, 4, 8, 16, 32, 64)
_TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_LABELS = ("model_name", "key")
_KINDS = ("model_name", "kind")
_WORK = ("step", "host")
HELD_KINDS = ("requests", "queued", "answers", "stored", "constraints", "stops")
"""Of bytes: bodies and answers that are being made, deltas that wait, results and answers that are
not read, stored responses, compiled constraints, stop patterns.
"""
_NOTHING_HELD: Mapping[str, float] = dict.fromkeys(HELD_KINDS, 0.0)
MOST_UNCOUNTED = 256
"""Calls that have ended and are not counted yet."""


class _CallTimes(msgspec.Struct):
    """A call under way. Times by the clock; `last` of each of its results."""

    began: float
    served_name: str
    first: float | None = None
    last: dict[int, float] = msgspec.field(default_factory=dict)


class _EndedCall(msgspec.Struct, frozen=True, gc=False):
    """A call with a result. `seconds`: what its client waited; None where that is not known."""

    usage: wire.Usage
    finishes: tuple[str, ...]
    longest: int
    seconds: float | None
    has_streamed: bool


@dataclass(frozen=True, slots=True)
class _Before(Collector):
    """What is done before metrics are collected."""

    action: Callable[[], None]

    def collect(self) -> Iterable[Metric]:
        self.action()
        return ()


@dataclass(frozen=True, slots=True)
class _Families(Collector):
    families: list[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


class Meters:
    """All metrics of one server. Belongs to the event loop's thread; an `Observer` of the link."""

    def __init__(self, clock: Callable[[], float], model: Callable[[], str]) -> None:
        self._clock = clock
        self._model = model
        self._replicas: ReplicaMetrics | None = None
        self._calls: dict[int, _CallTimes] = {}
        self._num_refused = self._num_failed = 0
        self._ended: dict[str, list[_EndedCall]] = {}
        """Calls to be counted, by served name: many at once take a third of the time."""
        self._ended_of = ""
        """The model of those without a name."""
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_Before(self._count))
        self.runtime = RuntimeFigures(model, clock)
        self.history = FigureHistory(clock)
        self.registry.register(self.runtime)
        ProcessCollector(registry=self.registry)  # `process_*`, of the gateway's own process
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "From asking to the first text.", _SECONDS
        )
        self._gap = self._histogram(
            "inter_token_latency_seconds", "Between two texts of a stream, by token.", _SHORT
        )
        self._whole = self._histogram(
            "e2e_request_latency_seconds", "From asking to the last reply.", _SECONDS
        )
        self._queue = self._histogram(
            "request_queue_time_seconds", "Waited in the runtime's queue.", _SECONDS
        )
        self._prefill = self._histogram(
            "request_prefill_time_seconds", "From the first row to the first token.", _SECONDS
        )
        self._decode = self._histogram(
            "request_decode_time_seconds", "From the first token to the last.", _SECONDS
        )
        self._inference = self._histogram(
            "request_inference_time_seconds", "From the first row to the last token.", _SECONDS
        )
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Decode time of a call by the tokens of its longest result after the first.",
            _SHORT,
        )
        self._sizes = CallSizes(self._histogram)
        self._requests = self._counter("num_requests", "Calls that ended with a result.")
        self._constrained = self._counter(
            "num_so_requests", "Of all calls asked: those under a constraint."
        )
        self._cached = self._counter(
            "cached_tokens", "SGLang's name of prompt_tokens_cached_total."
        )
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self._cached_tokens = self._counter("prompt_tokens_cached", "Of them: found in the cache.")
        self._success = self._counter("request_success", "Results given.", "finished_reason")
        self._failures = self._counter(
            "request_failures", "Calls that the runtime refused or failed.", "code"
        )
        self._aborted = self._counter(
            "num_aborted_requests", "Calls whose client left, or whose runtime ended."
        )
        self._corrupted = self._counter("corrupted_requests", "Calls whose logits were not finite.")
        self._refused = self._counter(
            "admission_rejections", "Requests refused, by reason.", "reason"
        )
        self._http = self._counter("http_requests", "HTTP requests.", "method", "route", "status")
        self._http_seconds = RouteSeconds(
            PREFIX + "http_request_seconds", "Whole HTTP requests.", _SECONDS
        )
        self.registry.register(self._http_seconds)
        self._restarts = self._counter("engine_restarts", "Restarts of the runtime.")
        self.open_requests = self._gauge("http_requests_open", "HTTP requests that have not ended.")
        self.open_results = self._gauge("results_open", "Results asked for that have not come.")
        self.bytes_held = self._gauge(
            "gateway_bytes_held", "Held for clients: bodies, unread answers, stored responses."
        )
        self.up = self._gauge("up", "1 while /ready says 200, else 0.")

    def begin(self, served: Iterable[str] = ()) -> None:
        """What has a fixed set of labels is there from the beginning, with 0: a rate needs a first
        value. `served` are the names of further models.
        """
        self._restarts.add(self._model(), by=0)
        for model in (self._model(), *served):
            self._begin_of(model)

    def _begin_of(self, model: str) -> None:
        for reason in _REFUSALS:
            self._refused.add(model, reason, by=0)
        for finish in _FINISHES:
            self._success.add(model, finish, by=0)
        for one in (
            self._aborted,
            self._corrupted,
            self._prompt_tokens,
            self._cached_tokens,
            self._cached,
            self._requests,
            self._constrained,
        ):
            one.add(model, by=0)

    # --- the link

    def asked(self, op: wire.Generate | wire.Select, served_name: str) -> None:
        self._calls[op.call] = _CallTimes(self._clock(), served_name)
        if isinstance(op, wire.Generate):
            self._sizes.asked(op.sampling, served_name)
            if op.constraint is not None:
                self._constrained.add(served_name or self._model())

    def replied(self, reply: wire.Reply) -> None:
        match reply:
            case wire.Delta():
                self._moved(reply)
            case wire.CallDone(call=call, outputs=outputs, usage=usage):
                finishes = tuple([output.finish for output in outputs])
                longest = max([len(output.tokens) for output in outputs])
                self._end(call, usage, finishes, longest)
            case wire.Chosen(call=call, usage=usage):
                self._end(call, usage, ("selected",), 0)
            case wire.Failed(call=call, code=code) if (
                call is not None and (under := self._calls.pop(call, None)) is not None
            ):
                self._num_failed += 1
                self._failures.add(under.served_name or self._model(), code)
                if code == "model":
                    self._corrupted.add(under.served_name or self._model())

    def dropped(self, call: int) -> None:
        if (under := self._calls.pop(call, None)) is not None:
            self._aborted.add(under.served_name or self._model())

    # --- the rest of the server

    def refused(self, reason: str, served_name: str = "") -> None:
        """A request was not let in; where it was known by then, of the model of this name."""
        self._num_refused += 1
        self._refused.add(served_name or self._model(), reason)

    def restarted(self) -> None:
        """The runtime has to be started again."""
        self._restarts.add(self._model())

    def see_fleet(self, fleet: FleetView) -> None:
        """New figures of all replicas."""
        if self._replicas is None:
            self._replicas = ReplicaMetrics(self._model)
            self.registry.register(self._replicas)
        self._replicas.see(fleet)
        replicas = fleet.replicas()
        self.runtime.see_replicas(
            {one.name: one.figures for one in replicas},
            {one.name: one.served_name for one in replicas},
        )

    def answered(
        self, method: str, route: str, status: int, seconds: float, served_name: str = ""
    ) -> None:
        """An HTTP request has ended. `route` is the pattern of its path, `served_name` that of the
        model which has answered; "": none has, or that of who names none.
        """
        method = method if method in _METHODS else "other"  # clients can send any word
        model = served_name or self._model()
        self._http.add(model, method, route, str(status))
        self._http_seconds.observe((model, route), seconds)

    def text(self, accept: str = "", also: Iterable[Metric] = ()) -> tuple[bytes, str]:
        """Everything, and `also`, in that format of Prometheus' which a header `accept` asks for:
        plain text or OpenMetrics; with its media type.
        """
        families = _Families([*self.registry.collect(), *also])
        if "application/openmetrics-text" not in accept.lower():
            return generate_latest(families), CONTENT_TYPE_LATEST
        # escaping as underscores would take the colon out of the names that routers scrape
        write: Callable[[Collector, str], bytes] = openmetrics.generate_latest
        return write(families, openmetrics.ALLOWUTF8), openmetrics.CONTENT_TYPE_LATEST

    def seen(self) -> dict[str, float]:
        """Counts and sums of what clients waited for, and of what was refused or failed."""
        self._count()
        found: dict[str, float] = {"refused": self._num_refused, "failed": self._num_failed}
        for name, one in (
            ("first", self._ttft),
            ("queued", self._queue),
            ("between", self._gap),
        ):
            found[f"{name}_count"], found[f"{name}_seconds"] = one.seen
        return found

    # --- inside

    def _moved(self, delta: wire.Delta) -> None:
        under, now = self._calls.get(delta.call), self._clock()
        if under is None:
            return
        if under.first is None:
            under.first = now
            self._ttft.of(under.served_name).observe(now - under.began)
        last = under.last.get(delta.index)
        under.last[delta.index] = now
        if last is not None and delta.num_tokens:
            gap = self._gap.of(under.served_name) if under.served_name else self._gap
            gap.observe((now - last) / delta.num_tokens)

    def _end(self, call: int, usage: wire.Usage, finishes: tuple[str, ...], longest: int) -> None:
        model, under = self._model(), self._calls.pop(call, None)
        name = "" if under is None else under.served_name
        ended = self._ended.get(name, ())
        if model != self._ended_of or len(ended) >= MOST_UNCOUNTED:
            self._count()
            self._ended_of = model
        seconds = None if under is None else self._clock() - under.began
        has_streamed = under is not None and under.first is not None
        made = _EndedCall(usage, finishes, longest, seconds, has_streamed)
        self._ended.setdefault(name, []).append(made)

    def _count(self) -> None:
        """Counts the calls that have ended."""
        found, self._ended = self._ended, {}
        for name, ended in found.items():
            self._count_of(name, ended)

    def _count_of(self, name: str, ended: Sequence[_EndedCall]) -> None:
        """Those of one model: the runtime's own times, and what a client saw; without a stream the
        first text is known by the runtime.
        """
        usages, model = [one.usage for one in ended], name or self._ended_of
        self._whole.of(name).observe(*[one.seconds for one in ended if one.seconds is not None])
        self._ttft.of(name).observe(
            *[
                (one.usage.queued_ms + one.usage.prefill_ms) / 1e3
                for one in ended
                if one.seconds is not None and not one.has_streamed
            ]
        )
        self._queue.of(name).observe(*[one.queued_ms / 1e3 for one in usages])
        self._prefill.of(name).observe(*[one.prefill_ms / 1e3 for one in usages])
        self._decode.of(name).observe(*[one.decode_ms / 1e3 for one in usages])
        self._inference.of(name).observe(
            *[(one.prefill_ms + one.decode_ms) / 1e3 for one in usages]
        )
        self._per_token.of(name).observe(
            *[one.usage.decode_ms / 1e3 / (one.longest - 1) for one in ended if one.longest > 1]
        )
        cached = sum([min(one.cached, one.prompt) for one in usages])
        self._prompt_tokens.add(model, by=sum([one.prompt for one in usages]))
        self._cached_tokens.add(model, by=cached)
        self._cached.add(model, by=cached)
        self._requests.add(model, by=len(ended))
        for finish, count in Counter([name for one in ended for name in one.finishes]).items():
            self._success.add(model, finish, by=count)
        self._sizes.longest.of(name).observe(*[one.longest for one in ended if one.longest])
        self._sizes.ended(usages, name)

    def _histogram(self, name: str, says: str, bounds: tuple[float, ...]) -> RuntimeHistogram:
        made = RuntimeHistogram(PREFIX + name, says, bounds, self._model)
        self.registry.register(made)
        return made

    def _counter(self, name: str, says: str, *labels: str) -> QuickCounter:
        made = QuickCounter(PREFIX + name, says, ("model_name", *labels))
        self.registry.register(made)
        return made

    def _gauge(self, name: str, says: str) -> Gauge:
        return Gauge(PREFIX + name, says, registry=self.registry)


class CallSizes:
    """The histograms of one server's calls."""

    def __init__(self, histogram: Callable[[str, str, tuple[float, ...]], RuntimeHistogram]):
        """`histogram` makes one of a name, its meaning and its bounds."""
        self._wanted_n = histogram("request_params_n", "Results asked for by a call.", _RESULTS)
        self._wanted_tokens = histogram(
            "request_params_max_tokens", "max_tokens of a call, where it has one.", _TOKENS
        )
        self._prompts = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._computed = histogram(
            "request_prefill_kv_computed_tokens",
            "Tokens of a prompt that the cache did not have.",
            _TOKENS,
        )
        self._generated = histogram(
            "request_generation_tokens", "Tokens of all results of a call.", _TOKENS
        )
        self.longest = histogram(
            "request_max_num_generation_tokens", "Tokens of the longest result of a call.", _TOKENS
        )
        self._preemptions = histogram("num_retractions", "Preemptions of a call.", _TIMES)

    def asked(self, sampling: wire.SamplingParams, name: str) -> None:
        self._wanted_n.of(name).observe(sampling.n)
        if sampling.max_tokens is not None:
            self._wanted_tokens.of(name).observe(sampling.max_tokens)

    def ended(self, usages: Sequence[wire.Usage], name: str) -> None:
        self._computed.of(name).observe(*[max(0, one.prompt - one.cached) for one in usages])
        self._prompts.of(name).observe(*[one.prompt for one in usages])
        self._generated.of(name).observe(*[one.generated for one in usages])
        self._preemptions.of(name).observe(*[one.preemptions for one in usages])


def part_of(figures: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Those of an account's figures whose names begin so, by the rest of their names."""
    return {
        name.removeprefix(prefix): value
        for name, value in figures.items()
        if name.startswith(prefix)
    }


def _summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found.get(name, 0.0) + value
    return found


def _seconds_of(figures: Mapping[str, float]) -> dict[str, float]:
    return {kind: figures[f"{kind}_seconds"] for kind in _WORK if f"{kind}_seconds" in figures}


class KeyMetrics(Collector):
    """Reads the accounts when it is asked."""

    def __init__(
        self,
        accounts: Callable[[], Iterable[KeyAccount]],
        memory: MemoryPool,
        model: Callable[[], str],
    ) -> None:
        """`memory` knows what is held for each."""
        self._accounts = accounts
        self._memory = memory
        self._model = model
        self.costs: Mapping[str, Mapping[str, float]] = {}
        """By key, the runtime's figures of what its calls have cost, how long they waited, and what
        is kept for them.
        """

    def held(self) -> dict[str, dict[str, float]]:
        """By account, the bytes of each kind that the gateway and the runtime hold."""
        found: dict[str, dict[str, float]] = {}
        for name, kinds in self._memory.by_kind().items():
            found[name] = dict(kinds)
        for name, figures in self.costs.items():
            found.setdefault(name, {}).update(part_of(figures, "bytes_"))
        return found

    def totals(self) -> Iterable[Metric]:
        """The same of all together, whoever asked."""
        cost = CounterMetricFamily(
            PREFIX + "cost_seconds", "Work for calls, see key_cost_seconds.", labels=_KINDS
        )
        waited = CounterMetricFamily(
            PREFIX + "waited_seconds", "See key_waited_seconds.", labels=("model_name", "cause")
        )
        held = GaugeMetricFamily(
            PREFIX + "bytes_held", "Memory held for clients, by what it is.", labels=_KINDS
        )
        for family, parts in (
            (cost, [_seconds_of(figures) for figures in self.costs.values()]),
            (waited, [part_of(one, "waited_seconds_") for one in self.costs.values()]),
            (held, [_NOTHING_HELD, *self.held().values()]),
        ):
            for name, value in _summed(parts).items():
                family.add_metric([self._model(), name], value)
        return cost, waited, held

    def collect(self) -> Iterable[Metric]:
        open_results = GaugeMetricFamily(
            PREFIX + "key_results_open", "Results that a key has open.", labels=_LABELS
        )
        prompt = CounterMetricFamily(
            PREFIX + "key_prompt_tokens", "Tokens of a key's prompts.", labels=_LABELS
        )
        generated = CounterMetricFamily(
            PREFIX + "key_generation_tokens", "Tokens generated for a key.", labels=_LABELS
        )
        refused = CounterMetricFamily(
            PREFIX + "key_requests_refused", "Requests of a key refused with 429.", labels=_LABELS
        )
        held = GaugeMetricFamily(
            PREFIX + "key_bytes_held",
            "Memory held for a key, by what it is.",
            labels=(*_LABELS, "kind"),
        )
        cost = CounterMetricFamily(
            PREFIX + "key_cost_seconds",
            "Work for a key's calls: its part of steps, and of the host beside them.",
            labels=(*_LABELS, "kind"),
        )
        waited = CounterMetricFamily(
            PREFIX + "key_waited_seconds",
            "Time that a key's calls have waited to begin, by what they waited for.",
            labels=(*_LABELS, "cause"),
        )
        holding = self.held()
        for account in self._accounts():
            labels = [self._model(), account.name]
            open_results.add_metric(labels, account.open_results)
            for model, tokens in account.by_model(labels[0]).items():
                prompt.add_metric([model, account.name], tokens[0])
                generated.add_metric([model, account.name], tokens[1])
            refused.add_metric(labels, account.refused)
            for kind, count in _summed([_NOTHING_HELD, holding.get(account.name, {})]).items():
                held.add_metric([*labels, kind], count)
            figures = self.costs.get(account.name, {})
            for cause, seconds in part_of(figures, "waited_seconds_").items():
                waited.add_metric([*labels, cause], seconds)
            for kind, seconds in _seconds_of(figures).items():
                cost.add_metric([*labels, kind], seconds)
        return (open_results, prompt, generated, refused, held, cost, waited)
