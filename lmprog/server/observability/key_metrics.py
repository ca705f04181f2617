"""What each key has open and has used, as metrics with the label `key`: the key's name, never the
key itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lmprog.server.fairness.accounts import KeyAccount
from lmprog.server.observability.runtime_metrics import PREFIX

_LABELS = ("model_name", "key")


class KeyMetrics(Collector):
    """Reads the accounts when it is asked."""

    def __init__(
        self, accounts: Callable[[], Iterable[KeyAccount]], model: Callable[[], str]
    ) -> None:
        self._accounts = accounts
        self._model = model
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """In Prometheus' format."""
        return generate_latest(self._registry)

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
        for account in self._accounts():
            labels = [self._model(), account.name]
            open_results.add_metric(labels, account.open_results)
            prompt.add_metric(labels, account.prompt_tokens)
            generated.add_metric(labels, account.generated_tokens)
            refused.add_metric(labels, account.refused)
        return (open_results, prompt, generated, refused)
