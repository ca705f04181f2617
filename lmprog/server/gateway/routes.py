"""Routes on a gateway, as FastAPI has them; their errors are answered in the form of their dialect
wherever they are included.

Every route has one of the `guards` as its dependency. A route whose endpoint takes the request and
its body alone leaves FastAPI nothing to solve: its guard and its endpoint are called without it,
which saves a short request a third of its time. In an application of somebody else, FastAPI runs
each route with whatever dependencies were added there. Knows how endpoints' exceptions become
answers; knows no endpoints.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from lmprog.errors import LmprogError, RuntimeGone
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.guard import Guard, Guards
from lmprog.server.http.http_errors import (
    CLIENT_GONE,
    ClientGone,
    HttpError,
    Problem,
    problem_of,
    response_of,
)
from lmprog.server.http.json_body import JsonBody, UnreadRequest, refusals_of


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
            needs = given.get("dependencies")
            super().add_api_route(
                path, endpoint, methods=["HEAD"], dependencies=needs, include_in_schema=False
            )


class GatewayRoute(APIRoute):
    """A route that leaves bodies to its endpoint and answers our own exceptions itself. A body is
    held until the answer is written.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        super().__init__(path, endpoint, **given)
        plain = _plain_app(self)
        if plain is not None:
            self.app = plain

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().handle(scope, receive, send)
        finally:
            state = scope.get("state", {})
            if "body_bytes" in state:
                state["body_room"].leave(state)

    def get_route_handler(self) -> Callable[[Request], Any]:
        """What FastAPI calls where it has something to solve."""
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await inner(UnreadRequest(request.scope, request.receive))
            except (HttpError, LmprogError, ClientGone, RequestValidationError) as error:
                return answer_to(error, request)

        return handle


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
            problem = Problem(422, str(error), code="invalid_value")
            return response_of(problem, request.scope)
        case LmprogError():
            problem = problem_of(error, getattr(request.state, "names", None))
            if isinstance(error, RuntimeGone):
                gateway: Gateway = request.state.gateway
                problem = replace(problem, retry_after=gateway.link.seconds_until_up())
            return response_of(problem, request.scope)
    raise error
