"""A backend over an API: the client, its channel, and the options that all APIs share."""

from __future__ import annotations

from types import TracebackType
from typing import Self, TypedDict

from lmprog.backends.blackbox.api import Api
from lmprog.backends.blackbox.api_channel import BlackBox
from lmprog.backends.blackbox.call_answers import CallAnswers, Constraints
from lmprog.backends.blackbox.retry_policy import RetryCounters, RetryPolicy
from lmprog.backends.client import Client


class ApiOptions(TypedDict, total=False):
    """What every API backend can be told."""

    timeout: float
    """Seconds for one answer, or for a stream's next piece; then it is asked again. Calls have
    deadlines besides.
    """
    retries: int
    """How often a request is sent again after 408, 409, 429, 5xx, a lost connection or a
    timeout.
    """
    concurrency: int
    """Requests open at a time; further calls wait."""
    constraints: Constraints
    """"best_effort": where the API cannot confine a text, ask without, look at the text, and ask
    again.
    """
    tries: int
    """How often to ask for a text that fits; then `ValidationFailed`."""


def patience_of(options: ApiOptions) -> RetryPolicy:
    return RetryPolicy(timeout=options.get("timeout", 600.0), retries=options.get("retries", 3))


class ApiBackend:
    """Owns a client over `api`. A context manager: leaving it closes the client and the API's
    connections.
    """

    def __init__(self, api: Api, patience: RetryPolicy, options: ApiOptions) -> None:
        answering = CallAnswers(
            api,
            patience.counters,
            constraints=options.get("constraints", "enforced"),
            tries=options.get("tries", 3),
            concurrency=options.get("concurrency", 64),
        )
        self.counters: RetryCounters = patience.counters
        """Requests, retries and tokens so far; `lmprog.get_server_info` has them too."""
        self._channel = BlackBox(answering)
        self._client = Client(self._channel, name="api")

    @property
    def client(self) -> Client:
        return self._client

    def speculate(self, branch: int, num_tokens: int) -> None:
        """For programs with `num_api_spec_tokens`; told before `branch` is opened."""
        self._channel.speculate(branch, num_tokens)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
