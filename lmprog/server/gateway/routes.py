"""Routes on a gateway, as FastAPI has them: who may call one, and how its errors are answered.

Every route has one of the `guards` as its dependency. A `Guard` refuses requests of other sites'
pages, requests without the key that the route needs, and generations for which there is no room; it
lets requests wait while the runtime starts. All this comes before a body is read. Errors have the
form of their dialect wherever a router is included.

A route whose endpoint takes the request and its body alone leaves FastAPI nothing to solve: its
guard and its endpoint are called without it, which saves a short request a third of its time. In an
application of somebody else, FastAPI runs each route with whatever dependencies were added there.
Knows keys, the gateway, and how endpoints' exceptions become answers; knows neither bodies nor
endpoints.
"""

from __future__ import annotations

import copy
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.models import HTTPBearer
from fastapi.params import Depends
from fastapi.routing import APIRoute
from fastapi.security.base import SecurityBase
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from lmprog.errors import LmprogError, RuntimeGone
from lmprog.server.fairness.accounts import HeldBytes
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http.auth import (
    NO_MODEL,
    Access,
    ServedSites,
    caller_of,
    calling_key,
    calling_model,
    calling_session,
    given_key,
    headers_of,
    session_of,
)
from lmprog.server.http.http_errors import (
    CLIENT_GONE,
    ClientGone,
    HttpError,
    Problem,
    problem_of,
    response_of,
)
from lmprog.server.http.json_body import JsonBody, UnreadRequest, refusals_of
from lmprog.server.link.exchange import RequestOrigin, calling_request

LARGE_ANSWER = 64 * 1024
"""Bytes; larger ones may wait for their reader."""


class GatewayRouter(APIRouter):
    """Routes of one gateway, with its guards at hand."""

    def __init__(self, gateway: Gateway, tag: str) -> None:
        """`tag` groups the routes in the document."""
        super().__init__(tags=[tag], route_class=GatewayRoute)
        self.gateway = gateway
        self.guards = Guards(gateway)

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        """What can be fetched can be asked about, too: every GET has a HEAD."""
        if given.get("include_in_schema", True):
            given["responses"] = {**refusals_of(path), **(given.get("responses") or {})}
        super().add_api_route(path, endpoint, **given)
        if "GET" in (given.get("methods") or ["GET"]):
            head = copy.copy(self.routes[-1])  # to make another takes FastAPI most of a millisecond
            assert isinstance(head, GatewayRoute)
            head.methods, head.include_in_schema = {"HEAD"}, False
            self.routes.append(head)


class GatewayRoute(APIRoute):
    """A route that leaves bodies to its endpoint and answers our own exceptions itself. A body is
    held until the answer is written.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        super().__init__(path, endpoint, **given)
        self.plain = _plain_app(self)
        """The route by itself, where FastAPI has nothing to solve."""
        if self.plain is not None:
            self.app = self.plain

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().handle(scope, receive, send)
        finally:
            _let_go(scope)

    def get_route_handler(self) -> Callable[[Request], Any]:
        """What FastAPI calls where it has something to solve."""
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await inner(UnreadRequest(request.scope, request.receive))
            except (HttpError, LmprogError, ClientGone, RequestValidationError) as error:
                return answer_to(error, request)

        return handle


def _let_go(scope: Scope) -> None:
    """The request has ended, and holds what its client has not read at most."""
    state = scope.get("state", {})
    held: HeldBytes | None = state.get("held")
    if held is not None and held.count:
        if "keep_until_read" in state:  # of our own listener
            state["keep_until_read"](held)
        held.leave()


class FixedPaths:
    """Finds the routes of a gateway whose paths have no parameters; others are found, and refused,
    by the application's router, which tries one after the other.
    """

    def __init__(self, routes: Sequence[BaseRoute], others: ASGIApp) -> None:
        self._others = others
        self._found: dict[tuple[str, str], tuple[GatewayRoute, ASGIApp]] = {}
        foreign = set()
        for route in routes:
            path = getattr(route, "path", "")
            if not isinstance(route, GatewayRoute):
                foreign.add(path)
            elif route.plain is not None and "{" not in path and path not in foreign:
                for method in route.methods or ():
                    self._found.setdefault((path, method), (route, route.plain))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = None
        if scope["type"] == "http" and not scope.get("root_path"):
            found = self._found.get((scope["path"], scope["method"]))
        if found is None:
            await self._others(scope, receive, send)
            return
        route, plain = found
        scope["route"], scope["endpoint"], scope["path_params"] = route, route.endpoint, {}
        try:
            await plain(scope, receive, send)
        finally:
            _let_go(scope)


def _plain_app(route: APIRoute) -> ASGIApp | None:
    """Guard, endpoint, answer; None where the route needs more of FastAPI."""
    guards = [one.dependency for one in route.dependencies]
    arguments = _arguments(route.endpoint)
    if arguments is None or len(guards) != 1 or not isinstance(guards[0], Guard):
        return None
    guard, endpoint = guards[0], route.endpoint

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            await guard(request)
            response = await endpoint(*(make(request) for make in arguments))
            if len(response.body) > LARGE_ANSWER:
                scope["state"]["held"].take(len(response.body))
        except (HttpError, LmprogError, ClientGone) as error:
            response = answer_to(error, request)
        await response(scope, receive, send)

    return app


def _arguments(endpoint: Callable[..., Any]) -> list[Callable[[Request], Any]] | None:
    """What makes an endpoint's arguments of a request; None where it takes others."""
    hints = typing.get_type_hints(endpoint)
    found: list[Callable[[Request], Any]] = []
    for name in inspect.signature(endpoint).parameters:
        kind = hints.get(name)
        if kind is Request:
            found.append(lambda request: request)
        elif typing.get_origin(kind) is JsonBody:
            found.append(partial(JsonBody, *typing.get_args(kind)))
        else:
            return None
    return found


def answer_to(error: Exception, request: Request) -> Response:
    """The answer to a request that failed with one of our exceptions."""
    match error:
        case HttpError():
            return response_of(error.problem, request.scope)
        case ClientGone():
            return Response(status_code=CLIENT_GONE)
        case RequestValidationError():  # of a dependency that somebody else added
            said = "; ".join(
                f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()
            )
            problem = Problem(422, said, code="invalid_value")
            return response_of(problem, request.scope)
        case LmprogError():
            problem = problem_of(error, getattr(request.state, "names", None))
            if isinstance(error, RuntimeGone):
                gateway: Gateway = request.state.gateway
                problem = replace(problem, retry_after=gateway.link.seconds_until_up())
            return response_of(problem, request.scope)
    raise error


_CHALLENGE = 'Bearer, Basic realm="lmprog, any user name, the key as password"'
"""A browser opens its own dialogue for Basic; other clients read Bearer."""


class Guard:
    """Lets a request through, or raises HttpError. Leaves in the request's state its `gateway`,
    what it has `held` of the memory, its `access`, and `caller`: a digest that names its key, ""
    where there is none.
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
        scope = request.scope
        headers, state = headers_of(scope), scope.setdefault("state", {})
        state["gateway"] = self._gateway
        key, by_browser = given_key(headers)
        access, calling = self._gateway.keyring.find(key)
        is_known = calling is not None and not by_browser
        problem = self._sites.problem(headers, scope["method"], is_known)
        if problem is not None:
            raise HttpError(problem)
        calling_key.set(calling)
        calling_session.set(session_of(headers))
        calling_model.set(NO_MODEL)
        state["access"] = access
        state["caller"] = caller = caller_of(key) if key and access else ""
        route = getattr(scope.get("route"), "path", "")  # not the path: clients choose that
        name = "" if calling is None else calling.name
        account = name or (scope.get("client") or ("",))[0]
        state["held"] = HeldBytes(self._gateway.memory, account)
        request_id = state.get("request_id", "")
        calling_request.set(RequestOrigin(request_id, route, name, caller, account))
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

    def _check_safe(self, request: Request, headers: Mapping[str, str], has_key: bool) -> None:
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
