"""The short way of our own application: guard, endpoint, answer.

FastAPI solves dependencies and parameters anew for each request, which costs a short request a
third of its time. A route whose dependencies are guards alone, and whose endpoint takes the request
and its body, needs none of that. Routers that others include in their applications go FastAPI's
way, with whatever dependencies are added there. Knows routes; knows no endpoints.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from lmprog.errors import LmprogError
from lmprog.server.guard import Guard
from lmprog.server.http.http_errors import ClientGone, HttpError
from lmprog.server.http.json_body import JsonBody
from lmprog.server.routers import GatewayRouter, answer_to


def own_routes(router: GatewayRouter) -> list[BaseRoute]:
    """The routes of `router`, for an application that holds no others; it must not include them
    elsewhere.
    """
    for route in router.routes:
        if isinstance(route, APIRoute):
            short = _short_way(route)
            if short is not None:
                route.app = short
    return router.routes


def _short_way(route: APIRoute) -> ASGIApp | None:
    """None where the route needs more of FastAPI."""
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
