"""The application: FastAPI with the gateway's routers, and the layers around them.

A module of routes has `router(gateway) -> GatewayRouter`. Endpoints raise `HttpError` and the
exceptions of `lmprog.errors`, which the routers answer; here is what no route answers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from lmprog.server import page
from lmprog.server.anthropic import messages
from lmprog.server.gateway.gateway import Gateway, version
from lmprog.server.gateway.routes import FixedPaths, GatewayRouter, Guard
from lmprog.server.http.auth import Access
from lmprog.server.http.http_errors import HttpError, Problem, response_of
from lmprog.server.http.middleware import RequestMiddleware
from lmprog.server.local import llama_cpp, ollama
from lmprog.server.openai import chat_completions, completions, models
from lmprog.server.operations import api_docs, operator_routes
from lmprog.server.programs import running_program
from lmprog.server.programs.running_program import FolderRoutes, ProgramFolder
from lmprog.server.responses import responses_routes
from lmprog.server.sglang import generate, server_info


class RouteModule(Protocol):
    """A module that has routes."""

    def router(self, gateway: Gateway) -> GatewayRouter: ...


def route_modules() -> tuple[RouteModule, ...]:
    """Add yours here. Routes are tried in this order."""
    dialects = (
        chat_completions,
        completions,
        responses_routes,
        messages,
        generate,
        models,
        server_info,
        ollama,
        llama_cpp,
    )
    return (*dialects, running_program, operator_routes, api_docs, page)


class _App(FastAPI):
    """FastAPI's layers stand around the routes that need them, and not around all."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.middleware_stack is not None and not self.root_path:
            scope["app"] = self  # that is all that FastAPI and Starlette do here
            await self.middleware_stack(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        added, self.user_middleware = self.user_middleware, []
        app: ASGIApp = FixedPaths(self.routes, super().build_middleware_stack())
        self.user_middleware = added
        for layer in reversed(added):
            app = layer.cls(app, *layer.args, **layer.kwargs)
        is_ours = isinstance(app, RequestMiddleware)
        return app if is_ours else ServerErrorMiddleware(app, _broke)


def build_app(
    gateway: Gateway,
    lifespan: Lifespan[FastAPI] | None = None,
    programs: ProgramFolder | None = None,
) -> FastAPI:
    """The application on `gateway`. `lifespan` runs its runtime, where nobody else does; `programs`
    are in Python, and have routes of their own.
    """
    origins = gateway.settings.cors_origins
    app = _App(
        title="lmprog",
        version=version(),
        description="A runtime for programs with language models.",
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        telemetry={"tracing": False, "metrics": False, "logs": False},
        middleware=[
            Middleware(RequestMiddleware, monitor=gateway, broke=_broke),
            *([_cors(origins)] if origins else []),
        ],
        exception_handlers={HTTPException: _NoRoute(gateway), Exception: _broke},
    )
    own = () if programs is None else (FolderRoutes(programs),)
    for module in (*route_modules(), *own):
        app.router.routes += module.router(gateway).routes
    app.router.routes.sort(key=_is_for_head)  # routes are tried one after the other
    return app


def _is_for_head(route: BaseRoute) -> bool:
    return isinstance(route, APIRoute) and route.methods == {"HEAD"}


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


ELSEWHERE = {
    r"/v1/embeddings|/api/embed(dings)?|/embeddings?": "Embeddings are not served: the runtime "
    "gives texts and log-probabilities, and no hidden states.",
    r"(/v[12])?/(rerank|reranking|score)": "Reranking is not served: a decoder has no score for a "
    "pair of texts. Programs compare options (select), chats judge them.",
    r"/v1/(batches|files)(/.*)?": "Batches are not kept here: `lmprog batch -i in.jsonl -o "
    "out.jsonl` runs the same files against this server.",
    r"/v1/(un)?load_lora_adapter": "Adapters are loaded when the server starts: --lora "
    "NAME=FOLDER. A request names one as its model.",
    r"/v1/(audio|images|moderations|conversations)(/.*)?": "This server serves texts only: chats, "
    "completions, responses and messages.",
}
"""Paths of other servers, and why they are not served."""


class _NoRoute:
    """Answers requests that no route takes, of those who may know that."""

    def __init__(self, gateway: Gateway) -> None:
        self._guard = Guard(gateway, Access.USER)

    async def __call__(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        is_question = request.method == "OPTIONS" and error.status_code == 405
        try:
            self._guard.check(request)
        except HttpError as refusal:
            if not is_question or refusal.status_code != 401:
                return response_of(refusal.problem, request.scope)
        if is_question:
            return Response(status_code=204, headers=error.headers)
        path, method = request.url.path[:100], request.method
        reason = next((said for one, said in ELSEWHERE.items() if re.fullmatch(one, path)), None)
        if reason is not None and error.status_code == 404:
            return response_of(Problem(404, reason, code="not_supported"), request.scope)
        headers = dict(error.headers or {})
        messages = {
            404: f"Unknown path {path}; docs/server.md lists the routes.",
            405: f"{path} does not allow {method}; allowed: {headers.get('Allow', 'others')}.",
        }
        message = messages.get(error.status_code, str(error.detail))
        problem = Problem(error.status_code, message, headers=headers)
        return response_of(problem, request.scope)


async def _broke(request: Request, error: Exception) -> Response:
    """Something of ours; the server's log has the trace."""
    problem = Problem(500, "The server failed; its log says more.", code="internal_error")
    return response_of(problem, request.scope)
