"""API keys: their digests, what they permit, and how a request brings one.

A key is given as `Authorization: Bearer KEY`, as the password of `Authorization: Basic` (so that a
browser can ask for it), or as `x-api-key`. Digests are compared in constant time. Knows headers;
does not read bodies.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import secrets
from contextvars import ContextVar

from starlette.datastructures import Headers

from lmprog.server.options.api_keys import ApiKey, digest, keys_of
from lmprog.server.options.server_settings import ServerSettings


class Access(enum.IntEnum):
    """What a caller's key permits; each level includes those before it."""

    NOTHING = 0
    USER = 1
    ADMIN = 2


calling_key: ContextVar[ApiKey | None] = ContextVar("calling_key", default=None)
"""The key of the request that this context serves; None: it has none, and needs none."""

calling_adapter: ContextVar[str] = ContextVar("calling_adapter", default="")
"""The adapter that the request of this context names as its model; empty: the base alone."""
calling_session: ContextVar[str] = ContextVar("calling_session", default="")
"""The session of the request that this context serves; empty: none."""


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


def given_key(headers: Headers) -> tuple[str | None, bool]:
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


def session_of(headers: Headers) -> str:
    """A digest of the header `x-session-id`; empty where there is none."""
    session = headers.get("x-session-id", "")
    return hashlib.blake2b(session.encode(), digest_size=16).hexdigest() if session else ""
