"""What a gateway's fleet is made of, as metrics: one sample for each replica.

Knows replicas by what is told of them; asks nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lmprog.server.observability.runtime_metrics import PREFIX


class ReplicaView(Protocol):
    """One replica that is connected."""

    @property
    def name(self) -> str: ...

    @property
    def programs(self) -> int:
        """Open programs and requests of this server there."""
        ...

    @property
    def is_draining(self) -> bool: ...

    @property
    def generation(self) -> int: ...

    @property
    def served_name(self) -> str:
        """What it calls its model; empty: nothing."""
        ...

    @property
    def is_responsive(self) -> bool: ...

    @property
    def figures(self) -> Mapping[str, float]:
        """The runtime's own, as of a moment ago; empty before the first."""
        ...


class FleetView(Protocol):
    """All replicas of a server."""

    @property
    def size(self) -> int:
        """How many there should be."""
        ...

    @property
    def num_moved(self) -> int:
        """Programs and requests that were moved from one replica to another."""
        ...

    @property
    def refused(self) -> Mapping[str, str]:
        """Replicas that have another model than this server's, and what differs."""
        ...

    def replicas(self) -> Sequence[ReplicaView]:
        """Those that are connected now."""
        ...

    def figures(self) -> Mapping[str, float]:
        """The figures of all of them as those of one runtime."""
        ...

    @property
    def models(self) -> Collection[str]:
        """The digests of the models that programs can go on with."""
        ...

    def update(self, seconds: float) -> None:
        """Replaces all replicas, one after the other, by ones with the model that is there now.
        Raises InvalidParameter where they were started elsewhere.
        """
        ...

    def drain(self, name: str, seconds: float) -> None:
        """No new program goes to the replica; what is left there after `seconds` is moved. Raises
        InvalidParameter for an unknown name.
        """
        ...


_GAUGES: tuple[tuple[str, str, Callable[[ReplicaView], float]], ...] = (
    ("replica_up", "1 for each replica that answers, or computes.", lambda one: one.is_responsive),
    ("replica_draining", "1 while it takes no new programs.", lambda one: one.is_draining),
    ("replica_programs", "Open programs and requests there.", lambda one: one.programs),
)


class ReplicaMetrics(Collector):
    """The fleet as it was last seen."""

    def __init__(self, model: Callable[[], str]) -> None:
        self._model = model
        self._replicas: Sequence[ReplicaView] = ()
        self._size = self._moved = 0

    def see(self, fleet: FleetView) -> None:
        """The fleet as it is now."""
        self._replicas, self._size, self._moved = fleet.replicas(), fleet.size, fleet.num_moved

    def collect(self) -> Iterable[Metric]:
        model = self._model()
        for name, what, read in _GAUGES:
            family = GaugeMetricFamily(PREFIX + name, what, labels=["model_name", "replica"])
            for one in self._replicas:
                family.add_metric([one.served_name or model, one.name], read(one))
            yield family
        wanted = GaugeMetricFamily(
            PREFIX + "replicas_wanted", "Replicas that there should be.", labels=["model_name"]
        )
        wanted.add_metric([model], self._size)
        yield wanted
        moved = CounterMetricFamily(
            PREFIX + "programs_moved",
            "Programs and requests moved to another replica.",
            labels=["model_name"],
        )
        moved.add_metric([model], self._moved)
        yield moved
