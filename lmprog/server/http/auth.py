"""Who sends a request: its key, and the site whose page sends it.

A key is given as `Authorization: Bearer KEY`, as the password of `Authorization: Basic` (so that a
browser can ask for it), or as `x-api-key`. Digests are compared in constant time.

Pages of other sites must not use the server in the name of a browser's user. Two attacks end here.
DNS rebinding: a page whose own name resolves to our address is of the same origin for the browser,
so the `Host` header must be a name that we serve. Cross-site requests: a page of any site can send
some requests anywhere, so `Origin` must be that of `Host`, or one that the operator allows. Both
are checked for every request, with or without keys.

Also which session a request says that it belongs to. Knows no routes.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import ipaddress
import re
import secrets
import socket
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from starlette.types import Scope

from lmprog.server.http.http_errors import Problem
from lmprog.server.options.api_keys import ApiKey, digest, keys_of
from lmprog.server.options.server_settings import ServerSettings, is_loopback


class CallingModel(NamedTuple):
    """What a request names as its model."""

    served_name: str = ""
    """As runtimes call it; empty: the first, or the only one."""
    adapter: str = ""
    """Which computes the request; empty: the base alone."""


NO_MODEL = CallingModel()
calling_model: ContextVar[CallingModel] = ContextVar("calling_model", default=NO_MODEL)
"""Of the request of this context."""
calling_key: ContextVar[ApiKey | None] = ContextVar("calling_key", default=None)
"""The key of the request that this context serves; None: it has none, and needs none."""
calling_session: ContextVar[str] = ContextVar("calling_session", default="")
"""The session of the request that this context serves; empty: none."""
calling_label: ContextVar[str] = ContextVar("calling_label", default="")
"""What its body says that it has in common with few others; empty: nothing."""
SESSION_HEADERS = ("x-dynamo-session-id", "x-session-id", "x-claude-code-session-id", "session-id")
"""Dynamo's, and those of coding agents."""
LABELS = ("prompt_cache_key", "session_id", "user", "safety_identifier")
"""Fields of bodies, of which the first one that is there counts."""
ANY = "*"
_HOST = re.compile(r"(?P<name>\[[^\]]*\]|[^:\[\]]*)(?P<port>:\d*)?")
_SHOWN = 100


class Access(enum.IntEnum):
    """What a caller's key permits; each level includes those before it."""

    NOTHING = 0
    USER = 1
    ADMIN = 2


class Keyring:
    """The keys of a server, as sha256 digests."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self.keys: tuple[ApiKey, ...] = ()
        self.load()

    def load(self) -> None:
        """Reads the keys again. Raises InvalidParameter, and then has those of before."""
        self.keys = keys_of(self._settings)
        self.is_open = not self.keys and self._settings.api_key_file is None
        """No keys at all: everybody may do everything."""
        self.has_admin = self.is_open or self._settings.admin_key is not None

    def find(self, key: str | None) -> tuple[Access, ApiKey | None]:
        """What `key` permits, and which it is. All keys are compared, whichever matches."""
        if self.is_open:
            return Access.ADMIN, None
        given = digest(key or "")
        matches = [one for one in self.keys if secrets.compare_digest(given, one.digest)]
        if key is None or not matches:
            return Access.NOTHING, None
        return (Access.ADMIN if matches[0].is_admin else Access.USER), matches[0]


def caller_of(key: str) -> str:
    """A digest that names a key, as caches and stored responses know it."""
    return hashlib.sha256(b"caller:" + key.encode()).hexdigest()


def headers_of(scope: Scope) -> Mapping[str, str]:
    """The first header of each name: read once, since a guard looks for seven of them, and who
    reads a body for three more.
    """
    found: dict[str, str] | None = scope.get("lmprog.headers")
    if found is None:
        given = reversed(list(scope["headers"]))
        found = {name.decode("latin-1"): value.decode("latin-1") for name, value in given}
        scope["lmprog.headers"] = found
    return found


def given_key(headers: Mapping[str, str]) -> tuple[str | None, bool]:
    """The key that a request brings, and whether a browser may have added it by itself."""
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and rest:
        return rest.strip(), False
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2], True
        except (binascii.Error, UnicodeDecodeError):
            return None, True
    return headers.get("x-api-key"), False


def session_of(headers: Mapping[str, str]) -> str:
    """A digest of the first of `SESSION_HEADERS` that is there; empty where there is none."""
    return _digest(next(filter(None, map(headers.get, SESSION_HEADERS)), ""))


def label_of(body: Mapping[str, Any]) -> str:
    """A digest of the first of `LABELS` that is a text, or of `metadata.user_id`."""
    metadata = body.get("metadata")
    given = [*map(body.get, LABELS), metadata.get("user_id") if isinstance(metadata, dict) else ""]
    return _digest(next((one for one in given if one and isinstance(one, str)), ""))


def _digest(text: str) -> str:
    if not text:
        return ""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


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

    def problem(
        self, headers: Mapping[str, str], method: str, is_known: bool = False
    ) -> Problem | None:
        """Why such a request may come from a page of another site; None: it does not. `is_known`:
        it brings a key of ours that no browser adds by itself. Under whatever name it came then,
        as a service's among containers, no page that misuses a name knows the key.
        """
        host = headers.get("host")
        if host is not None and not is_known and not self.serves(host):
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


def _is_sent_by_another_site(headers: Mapping[str, str], method: str) -> bool:
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
