"""Keeps pages of other sites from using the server in the name of a browser's user.

Two attacks end here. DNS rebinding: a page whose own name resolves to our address is of the same
origin for the browser, so the `Host` header must be a name that we serve. Cross-site requests: a
page of any site can send some requests anywhere, so `Origin` must be that of `Host`, or one that
the operator allows. Both are checked for every request, with or without keys.

Knows headers; knows neither keys nor routes.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from starlette.datastructures import Headers

from lmprog.server.http.http_errors import Problem
from lmprog.server.options.server_settings import ServerSettings, is_loopback

ANY = "*"
_HOST = re.compile(r"(?P<name>\[[^\]]*\]|[^:\[\]]*)(?P<port>:\d*)?")
_SHOWN = 100


class ServedSites:
    """The names that this server is reached by, and the other sites that may use it."""

    def __init__(self, settings: ServerSettings) -> None:
        own = {settings.host, "localhost"}
        if not is_loopback(settings.host):
            own.add(socket.gethostname())
        self._names = frozenset(name.lower() for name in (*settings.allowed_hosts, *own))
        self._origins = frozenset(origin.lower() for origin in settings.cors_origins)

    def serves(self, host: str) -> bool:
        """Whether a `Host` header names this server. Nobody can point an address elsewhere."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found["name"].lower().removesuffix(".")
        return ANY in self._names or name in self._names or _is_address(name)

    def allows(self, origin: str, host: str) -> bool:
        """Whether a page of `origin` may send requests to `host`."""
        origin = origin.lower()
        is_own = origin.partition("://")[2] == host.lower() != ""
        return is_own or origin in self._origins or ANY in self._origins

    def problem(self, headers: Headers, method: str) -> Problem | None:
        """Why such a request may come from a page of another site; None: it does not."""
        host = headers.get("host")
        if host is not None and not self.serves(host):
            return Problem(
                403,
                f"The server was reached as {host[:_SHOWN]!r}, which is not a name of its own. "
                "Use its address or localhost, or start it with --allowed-hosts and this name.",
                code="unknown_host",
            )
        origin = headers.get("origin")
        if origin is None:
            is_foreign = _is_sent_by_another_site(headers, method)
        else:
            is_foreign = not self.allows(origin, host or "")
        if not is_foreign:
            return None
        return Problem(
            403,
            f"A page of another site ({(origin or 'unknown')[:_SHOWN]}) may not use this server; "
            "to allow it, start the server with --cors-origin and the site's origin.",
            code="foreign_site",
        )


def _is_sent_by_another_site(headers: Headers, method: str) -> bool:
    """Without an Origin: pictures, scripts and the like. Following a link is allowed."""
    site = headers.get("sec-fetch-site", "none")
    is_link = method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
    return site not in ("same-origin", "none") and not is_link


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
