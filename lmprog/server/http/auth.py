"""API keys: their digests, the kinds of routes, and the middleware that checks a request's key.

A key is given as `Authorization: Bearer KEY`, as the password of `Authorization: Basic` (so that a
browser can ask for it), or as `x-api-key`. Digests are compared in constant time. Knows headers and
routes; does not read bodies.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import secrets
from collections.abc import Sequence
from contextvars import ContextVar

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lmprog.server.http.http_errors import Problem, response_of
from lmprog.server.options.api_keys import ApiKey, digest, keys_of
from lmprog.server.options.server_settings import ServerSettings


class Access(enum.IntEnum):
    """What a caller's key permits; each level includes those before it."""

    NOTHING = 0
    USER = 1
    ADMIN = 2


class OpenRoute(Route):
    """A route that needs no key: `/health`, `/ready`, and the files of the page, which are the same
    for everybody.
    """


class LocalRoute(Route):
    """A route that needs a key where there are keys, but no runtime: it is answered without one."""


class AdminRoute(Route):
    """A route that needs the admin key."""


calling_key: ContextVar[ApiKey | None] = ContextVar("calling_key", default=None)
"""The key of the request that this context serves; None: it has none, and needs none."""


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


class AuthMiddleware:
    """Middleware: lets a request through to the routes, or answers 401 or 403.

    Leaves in the request's state `access`, and `caller`: a digest that names its key, "" where
    there is none.
    """

    def __init__(self, app: ASGIApp, keyring: Keyring, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._keyring = keyring
        self._open = [route for route in routes if isinstance(route, OpenRoute)]
        self._admin = [route for route in routes if isinstance(route, AdminRoute)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key, by_browser = given_key(headers)
        access, calling = self._keyring.find(key)
        calling_key.set(calling)
        state = scope.setdefault("state", {})
        state["access"] = access
        state["caller"] = (
            hashlib.sha256(b"caller:" + key.encode()).hexdigest() if key and access else ""
        )
        problem = self._problem(scope, access) or self._unsafe(scope, headers, by_browser)
        if problem is not None:
            await response_of(problem)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _problem(self, scope: Scope, access: Access) -> Problem | None:
        if _meets(self._open, scope):
            return None
        if access is Access.NOTHING:
            # A browser opens its own dialogue for Basic; other clients read Bearer.
            challenge = 'Bearer, Basic realm="lmprog, any user name, the key as password"'
            return Problem(
                401,
                "This server needs an API key: send the header 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"www-authenticate": challenge},
            )
        if access < Access.ADMIN and _meets(self._admin, scope):
            fix = (
                "send the admin key"
                if self._keyring.has_admin
                else "start the server with --admin-key, and send that"
            )
            return Problem(
                403, f"{scope['path']} is for the administrator: {fix}.", code="admin_key_required"
            )
        return None

    def _unsafe(self, scope: Scope, headers: Headers, by_browser: bool) -> Problem | None:
        """GET changes nothing, since any link or picture can cause one.

        SGLang's clients know some of the administrator's routes by GET. They are let in with a
        header that a browser sends to no other site unasked: a key, or `x-requested-with`.
        """
        if scope["method"] not in ("GET", "HEAD") or not _meets(self._admin, scope):
            return None
        has_key = not by_browser and given_key(headers)[0] is not None
        if has_key or "x-requested-with" in headers:
            return None
        return Problem(
            403,
            f"{scope['path']} changes the server's state: send POST, or the header "
            "'x-requested-with' with any value.",
            code="unsafe_get",
        )


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


def _meets(routes: Sequence[BaseRoute], scope: Scope) -> bool:
    return any(route.matches(scope)[0] is not Match.NONE for route in routes)
