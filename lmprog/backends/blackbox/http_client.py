"""HTTP requests through the httpx2 package: sends JSON; receives JSON, or the JSON of an event
stream.

The only module that uses that package, which is imported when a transport is created. Knows no API.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lmprog.backends.blackbox.api import JsonBody
from lmprog.backends.blackbox.api_errors import failure, unreachable
from lmprog.backends.blackbox.retry_policy import TransientError
from lmprog.errors import LmprogError, NotSupported, ProtocolError

if TYPE_CHECKING:
    import httpx2


class HttpTransport:
    """The transport to one server. `close` closes its connections."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        # callers limit the time (RetryPolicy) and the number of concurrent requests
        package = _package()
        limits = package.Limits(max_connections=None, max_keepalive_connections=64)
        self._client = package.AsyncClient(
            base_url=url, headers=headers, timeout=None, limits=limits
        )

    async def post(self, path: str, body: JsonBody) -> Mapping[str, Any]:
        with _failures():
            response = await self._client.post(path, json=body)
        return _answer(response)

    async def open(self, path: str, body: JsonBody) -> AsyncIterator[Mapping[str, Any]]:
        with _failures():
            request = self._client.build_request("POST", path, json=body)
            response = await self._client.send(request, stream=True)
            if response.status_code >= 300:
                await response.aread()
                await response.aclose()
                _answer(response)
        return _events(response)

    async def close(self) -> None:
        await self._client.aclose()


async def _events(response: httpx2.Response) -> AsyncGenerator[Mapping[str, Any], None]:
    """The JSON of each event, until the stream ends or sends [DONE]."""
    try:
        with _failures():
            async for line in _lines(response):
                if line.startswith(b"data:"):
                    data = line[5:].decode().strip(" \r\n")
                    if data == "[DONE]":
                        return
                    yield _json(data)
    finally:
        await response.aclose()


async def _lines(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """Splits at line feeds only. The package's own splitting also breaks lines at U+0085 and
    U+2028, which JSON may contain unescaped.
    """
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def look(
    url: str, path: str, api_key: str | None = None, timeout: float = 30.0
) -> Mapping[str, Any] | None:
    """The answer to a GET; None if the server has no such path. Blocks; raises if the server cannot
    be reached.
    """
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        with (
            _failures(),
            _package().Client(base_url=url, headers=headers, timeout=timeout) as client,
        ):
            response = client.get(path)
        if response.status_code in (404, 405, 501):
            return None
        return _answer(response)
    except TransientError as passing:
        raise passing.error from None


def _answer(response: httpx2.Response) -> Mapping[str, Any]:
    if response.status_code < 300:
        return _json(response.text)
    try:
        body: object = response.json()
    except ValueError:
        body = response.text[:500]
    raise failure(response.status_code, body, response.headers)


def _json(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text) if text.strip().startswith(("{", "[")) else {"text": text}
    except ValueError as error:
        raise ProtocolError(
            f"the server answered {text[:200]!r}, which is not JSON ({error})"
        ) from None
    return found if isinstance(found, Mapping) else {"items": found}


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Maps the package's exceptions to those of lmprog."""
    package = _package()
    try:
        yield
    except (package.TransportError, package.StreamError) as error:
        raise unreachable(str(error) or type(error).__name__) from None
    except (package.InvalidURL, package.UnsupportedProtocol) as error:
        raise LmprogError(f"this is not the address of a server: {error}") from None


def _package() -> Any:
    try:
        import httpx2
    except ImportError:
        raise NotSupported(
            "servers over HTTP need the httpx2 package: pip install 'lmprog[openai]'"
        ) from None
    return httpx2
