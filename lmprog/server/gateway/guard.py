"""Who may call a route, and when: the dependencies of routes.

A `Guard` is a FastAPI dependency. It refuses requests of other sites' pages, requests without the
key that the route needs, and generations for which there is no room; it lets requests wait while
the runtime starts. All this comes before a body is read. Knows keys and the gateway; knows no
bodies.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.openapi.models import HTTPBearer
from fastapi.params import Depends
from fastapi.security.base import SecurityBase
from starlette.datastructures import Headers

from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http.auth import (
    Access,
    ServedSites,
    caller_of,
    calling_adapter,
    calling_key,
    calling_session,
    given_key,
    session_of,
)
from lmprog.server.http.http_errors import HttpError, Problem
from lmprog.server.link.request_records import RequestOrigin, calling_request

_CHALLENGE = 'Bearer, Basic realm="lmprog, any user name, the key as password"'
"""A browser opens its own dialogue for Basic; other clients read Bearer."""


class Guard:
    """Lets a request through, or raises HttpError. Leaves in the request's state its `gateway`, the
    `body_room`, its `access`, and `caller`: a digest that names its key, "" where there is none.
    """

    def __init__(
        self,
        gateway: Gateway,
        needed: Access,
        needs_runtime: bool = False,
        generates: bool = False,
    ) -> None:
        """`generates`: it asks for results, and is refused where there is no room for any."""
        self._gateway = gateway
        self._sites = ServedSites(gateway.settings)
        self._needed = needed
        self._needs_runtime = needs_runtime
        self.generates = generates

    async def __call__(self, request: Request) -> None:
        self.decide(request)
        if self._needs_runtime and not self._gateway.link.is_up:
            await self._gateway.runtime_started()

    def decide(self, request: Request) -> None:
        """Everything but waiting for the runtime. Raises HttpError."""
        self.check(request)
        problem = self._gateway.refusal() if self.generates else None
        if problem is not None:
            raise HttpError(problem)

    def check(self, request: Request) -> None:
        """Whose page and whose key it is."""
        headers, state = request.headers, request.scope.setdefault("state", {})
        state["gateway"] = self._gateway
        state["body_room"] = self._gateway.body_room
        problem = self._sites.problem(headers, request.method)
        if problem is not None:
            raise HttpError(problem)
        key, by_browser = given_key(headers)
        access, calling = self._gateway.keyring.find(key)
        calling_key.set(calling)
        calling_session.set(session_of(headers))
        calling_adapter.set("")
        state["access"] = access
        state["caller"] = caller = caller_of(key) if key and access else ""
        route = getattr(request.scope.get("route"), "path", "")  # not the path: clients choose that
        name = "" if calling is None else calling.name
        calling_request.set(RequestOrigin(state.get("request_id", ""), route, name, caller))
        if access < self._needed:
            raise HttpError(self._refusal(request, access))
        if self._needed is Access.ADMIN:
            self._check_safe(request, headers, key is not None and not by_browser)

    def _refusal(self, request: Request, access: Access) -> Problem:
        if access is Access.NOTHING:
            message = "This server needs an API key: send the header 'Authorization: Bearer KEY'."
            challenge = {"www-authenticate": _CHALLENGE}
            return Problem(401, message, code="invalid_api_key", headers=challenge)
        fix = (
            "send the admin key"
            if self._gateway.keyring.has_admin
            else "start the server with --admin-key, and send that"
        )
        message = f"{request.url.path} is for the administrator: {fix}."
        return Problem(403, message, code="admin_key_required")

    def _check_safe(self, request: Request, headers: Headers, has_key: bool) -> None:
        """GET changes nothing, since any link or picture can cause one.

        SGLang's clients know some of the administrator's routes by GET. They are let in with a
        header that a browser sends to no other site unasked: a key, or `x-requested-with`.
        """
        if request.method not in ("GET", "HEAD") or has_key or "x-requested-with" in headers:
            return
        raise HttpError(
            Problem(
                403,
                f"{request.url.path} changes the server's state: send POST, or the header "
                "'x-requested-with' with any value.",
                code="unsafe_get",
            )
        )


class KeyGuard(Guard, SecurityBase):
    """A guard that asks for a key: FastAPI's document says so."""

    scheme_name = "key"
    model = HTTPBearer()


class Guards:
    """The guards of one gateway, as dependencies of routes."""

    def __init__(self, gateway: Gateway) -> None:
        kind = Guard if gateway.keyring.is_open else KeyGuard

        def depends(guard: type[Guard], needed: Access, **more: Any) -> Depends:
            return Depends(guard(gateway, needed, **more))

        self.open = depends(Guard, Access.NOTHING)
        """No key: `/health`, and the files of the page, which are the same for everybody."""
        self.local = depends(kind, Access.USER)
        """A key where there are keys, but no runtime."""
        self.user = depends(kind, Access.USER, needs_runtime=True)
        """A key where there are keys, and the runtime."""
        self.generating = depends(kind, Access.USER, needs_runtime=True, generates=True)
        """The same, for what asks for results."""
        self.admin = depends(kind, Access.ADMIN, needs_runtime=True)
        """The administrator's key."""
