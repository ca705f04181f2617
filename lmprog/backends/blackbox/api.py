"""Requests to an API, its answers, and the protocols: of every kind of API, and of the transports
that send JSON to one. Knows no branches; implementations of transports wrap the libraries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from lmprog import wire
from lmprog.backends.blackbox.transcript import Kind, Prompt

JsonBody: TypeAlias = dict[str, Any]
TextListener: TypeAlias = Callable[[int, str, int], None]
"""Called with each streamed delta: the index among the `n` results, the text, and the approximate
number of its tokens.
"""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One generation request."""

    prompt: Prompt
    sampling: wire.SamplingParams
    constraint: wire.Constraint | None = None
    tools: wire.ToolOffer | None = None
    """The tools that it may call; with the choice "none", those that its messages speak of."""
    heal: bool = False
    """Whether the server may heal the last token of literal text, if it supports that."""


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """The answer of an API: one output for each requested result. Clients do not know token ids, so
    `tokens` are empty.
    """

    outputs: tuple[wire.Output, ...]
    usage: wire.Usage
    left_out: tuple[str, ...] = ()
    """What of its schema the constraint does not write; see `wire.CallDone`."""
    prompt_logprobs: tuple[wire.TokenLogprob, ...] = ()


class Api(Protocol):
    """One service. All methods run on one event loop, many of them concurrently."""

    model: str
    kind: Kind
    context_len: int
    """In tokens; 0 if unknown."""

    @property
    def can_prefill(self) -> bool:
        """Whether a chat model can continue a prefilled assistant turn."""
        ...

    async def generate(self, request: ApiRequest, on_text: TextListener | None) -> ApiAnswer:
        """Generates; streams if `hear` is given. Raises `LmprogError`s, and `NotSupported` for what
        the service cannot do.
        """
        ...

    async def select(self, prompt: Prompt, op: wire.Select) -> wire.Chosen | None:
        """Selects by likelihood; None if the service gives no log-probabilities."""
        ...

    def enforces(self, constraint: wire.Constraint, prompt: Prompt) -> bool:
        """Whether the service itself enforces the constraint."""
        ...

    async def flush(self) -> None:
        """Clears the service's cache. Raises `NotSupported` if it has no such request."""
        ...

    async def close(self) -> None:
        """Closes connections."""
        ...


class Transport(Protocol):
    """The address and key of one service. Failures are `LmprogError`s, or a `TransientError` if a
    retry may succeed.
    """

    async def post(self, path: str, body: JsonBody) -> Mapping[str, Any]:
        """The answer to one request."""
        ...

    async def open(self, path: str, body: JsonBody) -> AsyncIterator[Mapping[str, Any]]:
        """The pieces of a streamed answer. Raises at once if the request fails; closing the
        iterator cancels the request.
        """
        ...

    async def close(self) -> None:
        """Closes connections."""
        ...
