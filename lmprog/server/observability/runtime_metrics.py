"""The runtime's figures as metrics, and the last hour of them.

A table has their names, kinds and meanings; a collector reads it. Names are those of vLLM and
SGLang where these count the same, so that their boards need another prefix only; where they differ
in a name, both are told. Counters continue over restarts of the runtime, whose own begin again at
0. The history has a sample every few seconds, for the charts of the page: there, whoever draws
rates leaves out where a counter falls. Knows figures by name; does not fetch them.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

PREFIX = "lmprog_"
ROUTERS_PREFIX = "vllm:"
ROUTERS_NAMES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
"""Gauges that routers of other people's fleets scrape by vLLM's own names."""
Figures = Mapping[str, float]
HISTOGRAMS = (
    (
        "wait_passes",
        "Scheduler steps that a result waited before it first ran.",
        "wait_passes",
    ),
    (
        "grammar_compilation_time_seconds",
        "Compile time of constraints that were not cached.",
        "compile_seconds",
    ),
    ("iteration_tokens_total", "Tokens computed in a forward pass.", "step_tokens"),
)
"""Histograms: name, help, and how their figures begin."""
_SPEED = "Tokens generated a second, since the figures were read before."
HISTORY_EVERY = 10.0
"""Seconds between two samples, at least."""
HISTORY_SPAN = 3600.0
"""Seconds that are kept."""
HISTORY_NAMES = (
    "cached_tokens",
    "prefill_tokens",
    "generated_tokens",
    "forced_tokens",
    "running",
    "waiting",
    "pages",
    "pages_free",
    # what the gateway counts itself, see `Meters.seen`
    "first_count",
    "first_seconds",
    "queued_count",
    "queued_seconds",
    "between_count",
    "between_seconds",
    "refused",
    "failed",
    "bytes_held",
)


@dataclass(frozen=True, slots=True)
class RuntimeCounter:
    """A sum over the server's life. `name` without `_total`."""

    name: str
    help: str
    figure: str
    times: str | None = None
    """Another figure to multiply with."""


@dataclass(frozen=True, slots=True)
class RuntimeGauge:
    """A state of now."""

    name: str
    help: str
    read: Callable[[Figures], float]


def _of(name: str, times: str | None = None) -> Callable[[Figures], float]:
    return lambda figures: (
        figures.get(name, 0.0) * (1.0 if times is None else figures.get(times, 0.0))
    )


def _usage(figures: Figures) -> float:
    free = figures.get("pages_free", 0.0) + figures.get("pages_evictable", 0.0)
    return _share(figures.get("pages", 0.0) - free, figures.get("pages", 0.0))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


GAUGES = (
    RuntimeGauge("num_requests_running", "Results being computed.", _of("running")),
    RuntimeGauge("num_requests_waiting", "Results in the waiting queue.", _of("waiting")),
    RuntimeGauge(
        "num_requests_suspended",
        "Results that wait for a reader who takes nothing.",
        _of("suspended"),
    ),
    RuntimeGauge(
        "num_retracted_reqs",
        "Of those that wait: the ones that were preempted.",
        _of("preempted_waiting"),
    ),
    RuntimeGauge(
        "kv_cache_usage_perc",
        "Share of the pages that running results and open branches hold; 1 is all.",
        _usage,
    ),
    RuntimeGauge(
        "kv_evictable_tokens",
        "Cached tokens that may be evicted: no running result and no pin holds them.",
        _of("pages_evictable", "page_size"),
    ),
    RuntimeGauge(
        "kv_cached_tokens",
        "Tokens that the prefix tree has room for now.",
        _of("pages_cached", "page_size"),
    ),
    RuntimeGauge(
        "kv_pinned_tokens",
        "Of the evictable ones: those of open branches.",
        _of("pages_pinned", "page_size"),
    ),
    RuntimeGauge("kv_pool_tokens", "Tokens that the pool has room for.", _of("pages", "page_size")),
    RuntimeGauge("num_running_reqs", "SGLang's name of num_requests_running.", _of("running")),
    RuntimeGauge("num_queue_reqs", "SGLang's name of num_requests_waiting.", _of("waiting")),
    RuntimeGauge("token_usage", "SGLang's name of kv_cache_usage_perc.", _usage),
    RuntimeGauge(
        "num_used_tokens",
        "Tokens of the pages that running results and open branches hold.",
        lambda figures: _usage(figures) * _of("pages", "page_size")(figures),
    ),
    RuntimeGauge(
        "max_total_num_tokens", "SGLang's name of kv_pool_tokens.", _of("pages", "page_size")
    ),
    RuntimeGauge(
        "cache_hit_rate",
        "Share of all looked up tokens that the cache had, since the runtime's start.",
        lambda figures: _share(
            figures.get("cached_tokens", 0.0), figures.get("looked_up_tokens", 0.0)
        ),
    ),
    RuntimeGauge(
        "kv_store_tokens",
        "Tokens of the second tier; of a shared store, those that this runtime knows of.",
        _of("tier_pages", "page_size"),
    ),
    RuntimeGauge("tree_nodes", "Nodes of the prefix tree.", _of("tree_nodes")),
    RuntimeGauge(
        "open_branches", "Branches that programs and requests have open.", _of("open_branches")
    ),
    RuntimeGauge(
        "runtime_clients",
        "Clients that are connected to the runtime, this server among them.",
        _of("open_clients"),
    ),
    RuntimeGauge(
        "peak_running",
        "Most results computed at once since the runtime's start.",
        _of("peak_running"),
    ),
    RuntimeGauge(
        "peak_waiting",
        "Most results that waited at once since the runtime's start.",
        _of("peak_waiting"),
    ),
)
COUNTERS = (
    RuntimeCounter("prefix_cache_queries", "Tokens looked up in the cache.", "looked_up_tokens"),
    RuntimeCounter("prefix_cache_hits", "Of them: found.", "cached_tokens"),
    RuntimeCounter("generation_tokens", "Tokens generated, forced ones too.", "generated_tokens"),
    RuntimeCounter("computed_tokens", "Tokens that went through the model.", "computed_tokens"),
    RuntimeCounter("prefill_tokens", "Of them: in rows of more than one.", "prefill_tokens"),
    RuntimeCounter(
        "forced_tokens", "Tokens forced by a constraint: it allowed no other.", "forced_tokens"
    ),
    RuntimeCounter(
        "spec_decode_num_draft_tokens",
        "Tokens guessed, and tried as further tokens of a step.",
        "drafted_tokens",
    ),
    RuntimeCounter(
        "spec_decode_num_accepted_tokens", "Of them: sampled; each saved a step.", "accepted_tokens"
    ),
    RuntimeCounter("num_preemptions", "Preemptions of running results.", "preemptions"),
    RuntimeCounter(
        "num_retracted_requests", "SGLang's name of num_preemptions_total.", "preemptions"
    ),
    RuntimeCounter(
        "evicted_tokens", "Tokens evicted from the cache.", "evicted_pages", "page_size"
    ),
    RuntimeCounter(
        "kv_store_stored_tokens",
        "Tokens put into the second tier.",
        "tier_pages_stored",
        "page_size",
    ),
    RuntimeCounter(
        "kv_store_hit_tokens",
        "Tokens that came back from it, and were not computed again.",
        "tier_pages_loaded",
        "page_size",
    ),
    RuntimeCounter(
        "kv_store_found_tokens",
        "Tokens that other runtimes were found to have put there.",
        "tier_pages_of_others",
        "page_size",
    ),
    RuntimeCounter(
        "kv_store_lost_tokens",
        "Tokens asked for that were not there any more.",
        "tier_pages_lost",
        "page_size",
    ),
    RuntimeCounter(
        "kv_store_abandoned_tokens",
        "Tokens asked for that did not come in time.",
        "tier_pages_abandoned",
        "page_size",
    ),
    RuntimeCounter("copied_slots", "Slots of pages copied on write.", "copied_slots"),
    RuntimeCounter(
        "mirrored_slots",
        "Slots written to two pages in the step that computed them.",
        "mirrored_slots",
    ),
    RuntimeCounter("steps", "Forward passes.", "steps"),
    RuntimeCounter("failed_steps", "Forward passes that failed.", "failed_steps"),
    RuntimeCounter(
        "scheduler_idle_seconds", "Seconds in which the scheduler had no work.", "idle_seconds"
    ),
    RuntimeCounter("forks", "Branches forked off.", "forks"),
    RuntimeCounter(
        "fork_shared_tokens",
        "Tokens that forked branches began with, and did not compute.",
        "fork_shared_tokens",
    ),
    RuntimeCounter(
        "ahead_tokens", "Tokens of prompts computed before they were asked.", "ahead_tokens"
    ),
    RuntimeCounter("ahead_used_tokens", "Of these, what a prompt began with.", "ahead_used_tokens"),
    RuntimeCounter(
        "ahead_wasted_tokens",
        "Of these, what no prompt is expected to begin with any more.",
        "ahead_wasted_tokens",
    ),
    RuntimeCounter("branches", "Branches opened, forks too.", "branches"),
    RuntimeCounter(
        "programs", "Programs and requests begun: branches opened without a fork.", "programs"
    ),
    RuntimeCounter("calls", "Calls of all clients.", "calls"),
    RuntimeCounter("calls_done", "Of them: answered.", "calls_done"),
    RuntimeCounter("calls_failed", "Of them: failed, cancelled or refused.", "calls_failed"),
    RuntimeCounter(
        "invariant_failures",
        "Failed invariant checks of the scheduler; anything but 0 is a bug.",
        "invariant_failures",
    ),
    RuntimeCounter(
        "wire_frames_malformed",
        "Frames on the wire that could not be decoded.",
        "channel_frames_malformed",
    ),
)


class _Totals:
    """One runtime's newest figures, with counters that go on over its restarts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen_at = 0.0
        self.throughput = 0.0
        """Tokens generated a second between the last two times that figures were seen."""
        self.now: Figures = {}
        self._before: dict[str, float] = {}  # what runtimes that are gone had counted

    def see(self, figures: Figures) -> None:
        """New figures of the runtime, or of its successor."""
        if figures.get("pid") != self.now.get("pid"):
            for name in _summed(self.now):
                self._before[name] = self.total(name)
        elif (passed := self._clock() - self._seen_at) > 0:
            new = figures.get("generated_tokens", 0.0) - self.now.get("generated_tokens", 0.0)
            self.throughput = new / passed
        self._seen_at = self._clock()
        self.now = dict(figures)

    def total(self, name: str) -> float:
        return self._before.get(name, 0.0) + self.now.get(name, 0.0)

    def buckets(self, figure: str) -> Iterator[tuple[str, float]]:
        """Upper ends with all counts up to there."""
        start = figure + "_le_"
        ends = sorted(
            {
                name.removeprefix(start)
                for name in (*self._before, *self.now)
                if name.startswith(start)
            },
            key=float,
        )
        added = 0.0
        for end in ends or ["inf"]:
            added += self.total(start + end)
            yield ("+Inf" if math.isinf(float(end)) else f"{float(end)}", added)


class RuntimeFigures(Collector):
    """The newest figures of one runtime, or of several: then each sample has the label `replica`,
    and those of a replica that is gone keep their counters only.
    """

    def __init__(self, model: Callable[[], str], clock: Callable[[], float]) -> None:
        """`model` gives the value of the label `model_name`, which the other servers' boards choose
        by.
        """
        self._model = model
        self._clock = clock
        self._totals: dict[str, _Totals] = {"": _Totals(clock)}
        self._alive = {""}
        self._served: dict[str, str] = {}
        """What each replica serves, where it has a name."""

    def see(self, figures: Figures) -> None:
        """New figures of the only runtime, or of its successor."""
        self._totals[""].see(figures)

    def see_replicas(
        self, figures: Mapping[str, Figures], served: Mapping[str, str] | None = None
    ) -> None:
        """New figures of all replicas that are there, by name, and the names that they serve."""
        self._served.update(served or {})
        self._totals.pop("", None)
        self._alive = set(figures)
        for name, of_one in figures.items():
            self._totals.setdefault(name, _Totals(self._clock)).see(of_one)

    def collect(self) -> Iterable[Metric]:
        """All families; before the first figures with zeros."""
        names = ["model_name"] if "" in self._totals else ["model_name", "replica"]
        model = self._model()
        rows = [
            ([self._served.get(name) or model, name][: len(names)], totals)
            for name, totals in self._totals.items()
        ]
        alive = [row for row, name in zip(rows, self._totals, strict=True) if name in self._alive]
        for gauge in GAUGES:
            for prefix in (PREFIX, ROUTERS_PREFIX)[: 1 + (gauge.name in ROUTERS_NAMES)]:
                family = GaugeMetricFamily(prefix + gauge.name, gauge.help, labels=names)
                for labels, totals in alive:
                    family.add_metric(labels, gauge.read(totals.now))
                yield family
        yield _cache_config(names, alive)
        speed = GaugeMetricFamily(PREFIX + "gen_throughput", _SPEED, labels=names)
        for labels, totals in alive:
            speed.add_metric(labels, totals.throughput)
        yield speed
        for counter in COUNTERS:
            made = CounterMetricFamily(PREFIX + counter.name, counter.help, labels=names)
            for labels, totals in rows:
                factor = 1.0 if counter.times is None else totals.now.get(counter.times, 1.0)
                made.add_metric(labels, totals.total(counter.figure) * factor)
            yield made
        for name, help_text, figure in HISTOGRAMS:
            histogram = HistogramMetricFamily(PREFIX + name, help_text, labels=names)
            for labels, totals in rows:
                added = totals.total(figure + "_sum")
                histogram.add_metric(labels, list(totals.buckets(figure)), added)
            yield histogram


def _cache_config(names: list[str], alive: list[tuple[list[str], _Totals]]) -> Metric:
    """The size of a page and their number, as labels: routers read them there."""
    family = GaugeMetricFamily(
        f"{ROUTERS_PREFIX}cache_config_info",
        "Tokens of a page, and pages of the pool, as labels.",
        labels=[*names, "block_size", "num_gpu_blocks"],
    )
    for labels, totals in alive:
        sizes = [str(int(totals.now.get(name, 0))) for name in ("page_size", "pages")]
        family.add_metric([*labels, *sizes], 1.0)
    return family


class RuntimeHistogram(Collector):
    """A histogram that is quick to add to: for what happens at every token. No label but the
    model's; where several are served, each has its own (`of`).
    """

    def __init__(
        self, name: str, says: str, bounds: tuple[float, ...], model: Callable[[], str]
    ) -> None:
        self._name = name
        self._help = says
        self._bounds = bounds
        self._model = model
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._others: dict[str, RuntimeHistogram] = {}

    def of(self, served_name: str) -> RuntimeHistogram:
        """That of the model of this name; empty: of who names none."""
        found = self._others.get(served_name) if served_name else self
        if found is None:
            found = RuntimeHistogram(self._name, self._help, self._bounds, lambda: served_name)
            self._others[served_name] = found
        return found

    def observe(self, *values: float) -> None:
        for value in values:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    @property
    def seen(self) -> tuple[int, float]:
        """How many values there were, and their sum."""
        parts = [self, *self._others.values()]
        return sum([sum(one._counts) for one in parts]), sum([one._sum for one in parts])

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=["model_name"])
        for one in (self, *self._others.values()):
            one.add_to(family, [one._model()])
        yield family

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """As the one of these labels."""
        ends = [*(f"{bound}" for bound in self._bounds), "+Inf"]
        buckets = list(zip(ends, accumulate(self._counts), strict=True))
        family.add_metric(labels, buckets, self._sum)


class QuickCounter(Collector):
    """Sums by the values of labels. prometheus_client's own checks and locks at each addition, and
    takes several times as long; here one thread adds and reads.
    """

    def __init__(self, name: str, says: str, labels: tuple[str, ...]) -> None:
        self._name = name
        self._help = says
        self._labels = labels
        self._sums: dict[tuple[str, ...], float] = {}
        self._since: dict[tuple[str, ...], float] = {}

    def add(self, *values: str, by: float = 1) -> None:
        try:
            self._sums[values] += by
        except KeyError:
            self._sums[values], self._since[values] = float(by), time.time()

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for values, total in self._sums.items():
            family.add_metric(values, total, created=self._since[values])
        yield family


class RouteSeconds(Collector):
    """A histogram of the same kind for each model and route."""

    def __init__(self, name: str, says: str, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._help = says
        self._bounds = bounds
        self._found: dict[tuple[str, str], tuple[RuntimeHistogram, float]] = {}

    def observe(self, of: tuple[str, str], value: float) -> None:
        found = self._found.get(of)
        if found is None:
            one = RuntimeHistogram(self._name, self._help, self._bounds, lambda: of[0])
            found = self._found[of] = one, time.time()
        found[0].observe(value)

    def collect(self) -> Iterable[Metric]:
        names = ("model_name", "route")
        family = HistogramMetricFamily(self._name, self._help, labels=names)
        for values, (one, since) in self._found.items():
            one.add_to(family, values)
            family.add_sample(f"{self._name}_created", dict(zip(names, values, strict=True)), since)
        yield family


def _summed(figures: Figures) -> list[str]:
    """Those that begin at 0 with a new runtime, and are added up here."""
    known = {counter.figure for counter in COUNTERS}
    return [
        name
        for name in figures
        if name in known or name.startswith(tuple(figure for _, _, figure in HISTOGRAMS))
    ]


class FigureHistory:
    """Samples of one runtime's figures, or of the sums of several."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, ...]] = deque(maxlen=int(HISTORY_SPAN / HISTORY_EVERY))

    def see(self, figures: Mapping[str, float]) -> None:
        """The figures of now; taken where the last sample is old enough."""
        now = self._clock()
        if not self._samples or now >= self._samples[-1][0] + HISTORY_EVERY:
            self._samples.append((now, *(figures.get(name, 0.0) for name in HISTORY_NAMES)))

    def rows(self) -> list[list[float]]:
        """Seconds ago and the figures of `HISTORY_NAMES`, the oldest first."""
        now = self._clock()
        return [
            [round(now - sample[0], 1), *sample[1:]]
            for sample in self._samples
            if now - sample[0] <= HISTORY_SPAN
        ]
