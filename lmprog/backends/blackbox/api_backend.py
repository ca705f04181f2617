"""A backend over an API: the client, its channel, and the options common to all APIs."""

from __future__ import annotations

from types import TracebackType
from typing import Self, TypedDict

import msgspec

from lmprog import wire
from lmprog.backends.blackbox.answer_state import CallReply
from lmprog.backends.blackbox.api import Api
from lmprog.backends.blackbox.api_channel import BlackBox
from lmprog.backends.blackbox.call_answers import CallAnswers, Constraints
from lmprog.backends.blackbox.retry_policy import RetryCounters, RetryPolicy
from lmprog.backends.client import Client


class ApiOptions(TypedDict, total=False):
    """Options of every API backend."""

    timeout: float
    """Seconds for one answer, or for the next piece of a stream, before the request is retried.
    Deadlines of calls apply in addition.
    """
    retries: int
    """How often a request is retried after 408, 409, 429, 5xx, a lost connection or a timeout."""
    concurrency: int
    """Maximum number of requests in flight; further calls wait."""
    constraints: Constraints
    """"best_effort": if the API cannot enforce a constraint, request without it, validate the text,
    and retry.
    """
    tries: int
    """Maximum number of requests for a text that satisfies its constraint; then `ValidationFailed`.
    """


def retry_policy_of(options: ApiOptions) -> RetryPolicy:
    return RetryPolicy(timeout=options.get("timeout", 600.0), retries=options.get("retries", 3))


class ApiBackend:
    """Owns a client over `api`. A context manager: leaving it closes the client and the API's
    connections.
    """

    identity: tuple[object, ...] = ()
    """What besides the model decides on answers: address, settings of every request. No keys."""

    def __init__(self, api: Api, retry_policy: RetryPolicy, options: ApiOptions) -> None:
        self.branches_are_tokens = api.kind == "pieces"
        """Whether a branch goes on from a result's tokens, and not from its text."""
        answering = CallAnswers(
            api,
            retry_policy.counters,
            constraints=options.get("constraints", "enforced"),
            tries=options.get("tries", 3),
            concurrency=options.get("concurrency", 64),
        )
        self.counters: RetryCounters = retry_policy.counters
        """Requests, retries and tokens so far; also in `lmprog.get_server_info`."""
        self._channel = BlackBox(answering)
        self._client = Client(self._channel)

    @property
    def client(self) -> Client:
        return self._client

    @property
    def token_usage(self) -> RetryCounters:
        """SGLang's name of `counters`: `prompt_tokens`, `completion_tokens`, `reset()`."""
        return self.counters

    def speculate(self, branch: int, num_tokens: int) -> None:
        """For programs with `num_api_spec_tokens`; called before `branch` is opened."""
        self._channel.speculate(branch, num_tokens)

    def learn(self, context_len: int, fingerprint: wire.Fingerprint) -> None:
        """The model behind the API, where that tells it; from now on another one, where it does so
        again.
        """
        self._client.welcome = msgspec.structs.replace(
            self._client.welcome, context_len=context_len, fingerprint=fingerprint
        )

    def remember(self, call: int, reply: CallReply) -> None:
        """The call of that number was answered before: it is not asked."""
        self._channel.remember(call, reply)

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
