"""What an API is asked, what it answers, and the protocol that every kind of API fulfills. Knows no
branches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lmprog import wire
from lmprog.backends.blackbox.transcript import Kind, Prompt

Hear: TypeAlias = Callable[[int, str, int], None]
"""Is told more text as it comes: of which of the `n` results, the text, its number of tokens
(about).
"""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One generation."""

    prompt: Prompt
    sampling: wire.SamplingParams
    constraint: wire.Constraint | None = None
    heal: bool = False
    """The last token of literal text may be decided once more; for servers that know how."""


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """What an API said: as many outputs as were asked for. Token ids are not known to a client:
    `tokens` are empty.
    """

    outputs: tuple[wire.Output, ...]
    usage: wire.Usage


class Api(Protocol):
    """One service. All methods are called on one event loop, many at a time."""

    model: str
    kind: Kind
    can_prefill: bool
    """Whether a chat model can be asked to go on in a turn that was begun for it."""
    context_len: int
    """Tokens; 0 where the service does not tell."""

    async def generate(self, ask: ApiRequest, hear: Hear | None) -> ApiAnswer:
        """Generates; streams where there is a `hear`. Raises `LmprogError`s, `NotSupported` for
        what it cannot do.
        """
        ...

    async def select(self, prompt: Prompt, op: wire.Select) -> wire.Chosen | None:
        """A choice by likelihood; None where the service does not tell how likely a text is."""
        ...

    def enforces(self, constraint: wire.Constraint, prompt: Prompt) -> bool:
        """Whether the service itself confines the text."""
        ...

    async def flush(self) -> None:
        """Makes the service forget its cache. Raises `NotSupported` where there is no such
        request.
        """
        ...

    async def close(self) -> None:
        """Frees connections."""
        ...
