"""Routers on a gateway: FastAPI's, whose errors are answered in the form of their dialect wherever
they are included.

Every route has one of the `guards` among its dependencies. Knows how endpoints' exceptions become
answers; knows no routes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from lmprog.errors import LmprogError, RuntimeGone
from lmprog.server.gateway import Gateway
from lmprog.server.guard import Guards
from lmprog.server.http.http_errors import (
    CLIENT_GONE,
    ClientGone,
    HttpError,
    Problem,
    problem_of,
    response_of,
)
from lmprog.server.http.json_body import UnreadRequest, refusals_of


class GatewayRoute(APIRoute):
    """A route that leaves bodies to its endpoint and answers our own exceptions itself. A body is
    held until the answer is written.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().handle(scope, receive, send)
        finally:
            state = scope.get("state", {})
            if "body_bytes" in state:
                state["body_room"].leave(state)

    def get_route_handler(self) -> Callable[[Request], Any]:
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await inner(UnreadRequest(request.scope, request.receive))
            except (HttpError, LmprogError, ClientGone, RequestValidationError) as error:
                return answer_to(error, request)

        return handle


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
