"""A transport through a vendor's Python package, for packages built like OpenAI's and Anthropic's.

The package handles keys, proxies and addresses; its own retries are not used. The package is a
parameter.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Any, cast

from lmprog.backends.blackbox.api import JsonBody
from lmprog.backends.blackbox.api_errors import broken_off, failure, unreachable


class SdkTransport:
    """Requests through `client`, an asynchronous client of `package`."""

    def __init__(self, package: Any, client: Any) -> None:
        self._package = package
        self._client = client.with_options(max_retries=0, timeout=None)

    @property
    def api_key(self) -> str | None:
        """The package's, which may be that of the environment."""
        key = getattr(self._client, "api_key", None)
        return key if isinstance(key, str) else None

    async def post(self, path: str, body: JsonBody) -> Mapping[str, Any]:
        with self._failures():
            return cast(
                "Mapping[str, Any]", await self._client.post(path, cast_to=object, body=body)
            )

    async def open(self, path: str, body: JsonBody) -> AsyncIterator[Mapping[str, Any]]:
        with self._failures():
            stream = await self._client.post(
                path,
                cast_to=object,
                body=body,
                stream=True,
                stream_cls=self._package.AsyncStream[object],
            )
        return self._pieces(stream)

    async def _pieces(self, stream: Any) -> AsyncGenerator[Mapping[str, Any], None]:
        try:
            with self._failures():
                async for piece in stream:
                    yield piece
        finally:
            await stream.close()

    async def close(self) -> None:
        await self._client.close()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Maps the package's exceptions to those of lmprog."""
        try:
            yield
        except self._package.APIStatusError as error:
            raise failure(error.status_code, error.body, error.response.headers) from None
        except self._package.APIConnectionError as error:
            raise unreachable(error.__cause__ or error) from None
        except self._package.APIError as error:
            raise broken_off(error.body or error.message) from None
