"""The transport protocol: sends JSON to a service, and receives JSON or a stream of JSON.
Implementations wrap the libraries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, TypeAlias

JsonBody: TypeAlias = dict[str, Any]


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
