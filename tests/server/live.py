"""A plain client of a server on a socket: what tests of routes stand on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2


class Live:
    """Where the server is, and a plain client of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx2.Client(base_url=url, timeout=120.0, trust_env=False)

    def post(self, path: str, **body: Any) -> httpx2.Response:
        return self.http.post(path, json=body)

    def ok(self, path: str, **body: Any) -> Any:
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        return response.json()

    def refused(self, path: str, **body: Any) -> dict[str, Any]:
        """The error of a request that must be answered with 400."""
        response = self.post(path, **body)
        assert response.status_code == 400, response.text
        error: dict[str, Any] = response.json()["error"]
        details = error.get("details", {})  # Anthropic's form says the same in another place
        code = {"code": details["error_code"]} if details else {}
        return {**error, **details, **code}

    def events(self, path: str, **body: Any) -> Iterator[str]:
        """The data of each event, without comments."""
        with self.http.stream("POST", path, json=body) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield line.removeprefix("data: ")
