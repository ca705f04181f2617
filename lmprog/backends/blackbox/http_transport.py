"""How requests get to a service: JSON in, JSON or a stream of JSON out. Implementations are where
libraries enter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, TypeAlias

Json: TypeAlias = dict[str, Any]


class Transport(Protocol):
    """One service's address and key. Failures are `LmprogError`s, or `Passing` ones that are worth
    another try.
    """

    async def post(self, path: str, body: Json) -> Mapping[str, Any]:
        """The answer to one request."""
        ...

    async def open(self, path: str, body: Json) -> AsyncIterator[Mapping[str, Any]]:
        """The answer's pieces. Fails at once where there is no answer; closing the iterator ends
        the request.
        """
        ...

    async def close(self) -> None:
        """Frees connections."""
        ...
