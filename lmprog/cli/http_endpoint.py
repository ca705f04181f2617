"""An HTTP client for OpenAI-compatible servers, as the commands need it: sends JSON, receives JSON
or events.

Uses the standard library only, so that clients have no further dependencies. One `Endpoint` belongs
to one thread and keeps its connection alive. Knows HTTP; knows nothing of the contents of requests.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lmprog.errors import InvalidParameter, LmprogError, RuntimeGone, UnknownName

LONGEST_SECONDS = 3600.0
"""Time limit of an answer."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer with any status; `body` is None if it is not valid JSON."""

    status: int
    request_id: str
    retry_after: float | None
    body: Any


class Refused(LmprogError):
    """The server answered with a status other than 200."""

    code = "refused"

    def __init__(self, answer: HttpAnswer) -> None:
        error = answer.body.get("error") if isinstance(answer.body, dict) else None
        reason = error.get("message") if isinstance(error, dict) else None
        super().__init__(f"The server answered {answer.status}: {reason or 'without saying why'}")
        self.answer = answer


def is_url(text: str) -> bool:
    """Whether the text names a server rather than a model."""
    return text.startswith(("http://", "https://"))


class Endpoint:
    """A connection to one server. Raises `RuntimeGone` if it cannot be reached. A context
    manager.
    """

    def __init__(self, url: str, key: str | None = None, timeout: float = LONGEST_SECONDS) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidParameter(
                f"{url!r} is no URL; write http://HOST:PORT.", name="url", value=url
            )
        self.url = url
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._key = key
        if parts.scheme == "https":
            context = ssl.create_default_context()
            self._http: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.netloc, timeout=timeout, context=context
            )
        else:
            self._http = http.client.HTTPConnection(parts.netloc, timeout=timeout)

    def get(self, path: str) -> Any:
        """The JSON at `path`. Raises `Refused`."""
        return self._good(self._answer(self._ask("GET", path, None)))

    def model_named(self, asked: str | None) -> str:
        """What requests name to get the model `asked`; None: the server's first. Raises UnknownName
        for one that it does not list, and `Refused`.
        """
        names = [str(one["id"]) for one in self.get("/v1/models")["data"]]
        if asked is not None and asked not in names:
            raise UnknownName.of_model(asked, names)
        return names[0] if asked is None else asked

    def post(self, path: str, body: Any) -> HttpAnswer:
        """The server's answer, whatever its status."""
        return self._answer(self._ask("POST", path, body))

    def events(self, path: str, body: Any) -> Iterator[Any]:
        """The data of each event until the last. Raises `Refused`, also for an error inside the
        stream.
        """
        response = self._ask("POST", path, body)
        if response.status != 200:
            raise Refused(self._answer(response))
        try:
            for line in response:
                if not line.startswith(b"data: "):
                    continue
                data = line[6:].strip()
                if data == b"[DONE]":
                    break
                event = json.loads(data)
                if isinstance(event, dict) and "error" in event and "choices" not in event:
                    raise Refused(HttpAnswer(response.status, "", None, event))
                yield event
            response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(error) from None
        finally:
            if not response.isclosed():
                self._http.close()  # discards the rest of the stream

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: str, path: str, body: Any) -> http.client.HTTPResponse:
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        for is_again in (False, True):
            try:
                self._http.request(method, self._base + path, data, headers)
                return self._http.getresponse()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
                self._http.close()  # a kept-alive connection that the server has closed meanwhile
                if is_again:
                    raise self._gone(error) from None
            except (OSError, http.client.HTTPException) as error:
                self._http.close()
                raise self._gone(error) from None
        raise AssertionError("unreachable")

    def _answer(self, response: http.client.HTTPResponse) -> HttpAnswer:
        try:
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            raise self._gone(error) from None
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        wait = response.headers.get("retry-after", "")
        return HttpAnswer(
            response.status,
            response.headers.get("x-request-id", ""),
            float(wait) if wait.isdecimal() else None,
            body,
        )

    def _good(self, answer: HttpAnswer) -> Any:
        if answer.status != 200:
            raise Refused(answer)
        return answer.body

    def _gone(self, error: Exception) -> RuntimeGone:
        return RuntimeGone(f"{self.url} does not answer: {error}")
