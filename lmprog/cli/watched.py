"""Where `lmprog top` gets its snapshots: from a server over HTTP, or from a runtime over the wire
protocol.

Both yield the same plain values (`wire.shown`), until the consumer stops. Knows how to request
snapshots; renders nothing.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from lmprog import wire
from lmprog.errors import InvalidParameter, LmprogError, ProtocolError, RuntimeGone, from_wire
from lmprog.wire.snapshot_json import as_json

PERIOD = 0.5
"""Seconds between two requests over the wire; a server pushes by itself."""
MOST_NODES = 200
_TIMEOUT = 30.0

Picture = dict[str, Any]
"""A snapshot as `wire.shown` gives it; under `about` its source, `model` and `context`, and under
`requests` those that a server knows; a runtime knows none.
"""


def pictures(where: str, key: str | None) -> Iterator[Picture]:
    """Snapshots of the runtime or server at `where`. Raises `RuntimeGone` if it cannot be reached,
    `InvalidParameter` for an invalid address or key.
    """
    if where.startswith(("http://", "https://")):
        return _over_http(where, key)
    if where.startswith(("ipc://", "tcp://")):
        return _over_wire(where)
    raise InvalidParameter(
        f"{where!r} is neither a URL nor an address; write http://HOST:PORT, ipc://PATH or "
        "tcp://HOST:PORT.",
        name="where",
        value=where,
    )


def _over_wire(address: str) -> Iterator[Picture]:
    from lmprog.launch import connect  # sockets, which `--help` does not need

    with connect(address, client="top") as connection:
        info = connection.info
        about = {"model": info.model, "context": info.context_len}
        call = 0
        while True:
            call += 1
            connection.send([wire.Inspect(call, MOST_NODES, with_text=False)])
            yield {"about": about, **as_json(_answer(connection.receive, call))}
            time.sleep(PERIOD)


def _answer(receive: Any, call: int) -> wire.Snapshot:
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        for reply in receive(deadline - time.monotonic()):
            if isinstance(reply, wire.Snapshot) and reply.call == call:
                return reply
            if isinstance(reply, wire.Failed):
                raise from_wire(reply.code, reply.message, reply.details)
    raise RuntimeGone(f"The runtime did not answer within {_TIMEOUT:g} seconds.")


def cancel(where: str, key: str | None, number: int) -> None:
    """Ends the request of that number. Raises like `pictures`, `ProtocolError` where there is no
    such request, or it is another key's.
    """
    if not where.startswith(("http://", "https://")):
        raise InvalidParameter(
            "Requests are cancelled at a server, http://HOST:PORT; a runtime has none.",
            name="where",
            value=where,
        )
    with _answer_of(where, key, f"/ui/requests/{number}/cancel", "POST") as response:
        response.read()


def _over_http(url: str, key: str | None) -> Iterator[Picture]:
    with _answer_of(url, key, "/ui/events") as response:
        yield from _events(response)
        raise RuntimeGone(f"The server at {url} ended the stream.")


@contextmanager
def _answer_of(
    url: str, key: str | None, path: str, method: str = "GET"
) -> Iterator[http.client.HTTPResponse]:
    parts = urlsplit(url)
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = make(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    except (ValueError, http.client.InvalidURL) as error:
        raise InvalidParameter(f"{url!r} is no URL: {error}.", name="where", value=url) from None
    try:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        connection.request(method, f"{parts.path.rstrip('/')}{path}", headers=headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _refused(url, response.status, response.read(65_536))
        yield response
    except (OSError, http.client.HTTPException) as error:
        raise RuntimeGone(f"No lmprog server answers at {url}: {error}.") from None
    finally:
        connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[Picture]:
    about: dict[str, Any] = {}
    requests: dict[str, Any] | None = None
    name = ""
    for line in response:
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data" and name == "about":
            about = json.loads(value)
        elif field == "data" and name == "requests":
            requests = json.loads(value)
        elif field == "data" and name == "snapshot":
            yield {"about": about, "requests": requests, **json.loads(value)}
        elif field == "data" and name == "away":
            raise RuntimeGone(str(json.loads(value)["message"]))


def _refused(url: str, status: int, body: bytes) -> LmprogError:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{url} answered {status}; is it an lmprog server?"
    if status == 401:
        return InvalidParameter(f"{message} Give --api-key, or set LMPROG_API_KEY.", name="api_key")
    return ProtocolError(message)
