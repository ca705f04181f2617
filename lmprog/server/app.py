"""The application: the list of route modules, and the layers around them.

A module of routes has `routes(gateway) -> list[Route]`. A route is a `Route` (needs a key where
there are keys, and the runtime), an `auth.LocalRoute` (a key only), an `auth.OpenRoute` (neither)
or an `auth.AdminRoute` (the admin's key). Endpoints raise `HttpError` and the exceptions of
`lmprog.errors`, which become responses here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from lmprog.errors import LmprogError, RuntimeGone
from lmprog.server import anthropic, openapi, page, programs, responses
from lmprog.server.gateway import Gateway
from lmprog.server.http.auth import AuthMiddleware
from lmprog.server.http.early_refusal import EarlyRefusal
from lmprog.server.http.http_errors import (
    CLIENT_GONE,
    ClientGone,
    HttpError,
    Problem,
    problem_of,
    response_of,
)
from lmprog.server.http.middleware import RequestMiddleware
from lmprog.server.http.site_guard import ServedSites, SiteGuard
from lmprog.server.http.start_wait import StartWaitMiddleware
from lmprog.server.openai import chat_completions, completions, models
from lmprog.server.operations import health, metrics_route
from lmprog.server.sglang import generate, server_info, tokenize

GENERATING = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/programs",
    "/generate",
    "/ui/play",
)
"""Paths whose requests ask for results, and are refused early where there is no room."""


class RouteModule(Protocol):
    """A module that has routes."""

    def routes(self, gateway: Gateway) -> Sequence[BaseRoute]: ...


def route_modules() -> tuple[RouteModule, ...]:
    """Add yours here."""
    dialects = (
        models,
        chat_completions,
        completions,
        responses,
        anthropic,
        generate,
        server_info,
        tokenize,
    )
    return (health, metrics_route, *dialects, programs, openapi, page)


def build_app(gateway: Gateway) -> Starlette:
    """The ASGI application on `gateway`."""
    routes = [route for module in route_modules() for route in module.routes(gateway)]
    settings = gateway.settings
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(RequestMiddleware, monitor=gateway, routes=routes),
            *([_cors(settings.cors_origins)] if settings.cors_origins else []),
            Middleware(SiteGuard, sites=ServedSites(settings)),
            Middleware(AuthMiddleware, keyring=gateway.keyring, routes=routes),
            Middleware(EarlyRefusal, refusal=gateway.refusal, paths=GENERATING),
            Middleware(
                StartWaitMiddleware,
                started=gateway.runtime_started,
                is_up=lambda: gateway.link.is_up,
                routes=routes,
            ),
        ],
        exception_handlers={
            HTTPException: _routing_failed,
            HttpError: _refused,
            LmprogError: _failed(gateway),
            ClientGone: _client_left,
            Exception: _broke,
        },
    )
    app.router.redirect_slashes = False
    return app


def _cors(origins: Sequence[str]) -> Middleware:
    """Tells browsers which other sites' pages may use the server. Cookies play no part."""
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=("GET", "POST", "PUT", "DELETE"),
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=("x-request-id", "retry-after", "warning"),
    )


async def _routing_failed(request: Request, error: Exception) -> Response:
    """No such path, or no such method there."""
    assert isinstance(error, HTTPException)
    if request.method == "OPTIONS" and error.status_code == 405:
        return Response(status_code=204, headers=error.headers)
    path, method = request.url.path[:100], request.method
    allowed = dict(error.headers or {}).get("Allow", "other methods")
    messages = {
        404: f"Unknown path {path}; docs/server.md lists the routes.",
        405: f"{path} does not allow {method}; allowed: {allowed}.",
    }
    message = messages.get(error.status_code, str(error.detail))
    return response_of(Problem(error.status_code, message, headers=dict(error.headers or {})))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return response_of(error.problem)


def _failed(gateway: Gateway) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, LmprogError)
        problem = problem_of(error, getattr(request.state, "names", None))
        if isinstance(error, RuntimeGone):
            problem = replace(problem, retry_after=gateway.link.seconds_until_up())
        return response_of(problem)

    return failed


async def _client_left(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _broke(request: Request, error: Exception) -> Response:
    """Something of ours; the server's log has the trace."""
    response = response_of(
        Problem(500, "The server failed; its log says more.", code="internal_error")
    )
    response.headers["x-request-id"] = getattr(request.state, "request_id", "")
    return response
