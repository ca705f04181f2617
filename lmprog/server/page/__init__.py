"""The page of the server, at `/` and `/ui`: its files, its stream of pictures, what can be looked
at closer, its playground.

The files are the same for everybody and hold no data, so they need no key; the page asks for the
key and sends it as a header with everything else. Nothing is loaded from elsewhere, and the policy
sent with the files lets the browser run nothing but them. Knows files and routes; `watching` makes
the pictures, `requests_view` says who may see which request, `blocks` looks into the tree,
`playing` runs what is typed in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeAlias

from fastapi import Path
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.auth import Access
from lmprog.server.http.json_body import Given
from lmprog.server.http.sse import EventStream
from lmprog.server.page.playing import Play, Player
from lmprog.server.page.requests_view import RequestsView, Viewer
from lmprog.server.page.watching import Blocks, Search, Watcher

Number: TypeAlias = Annotated[int, Path(ge=1, le=2**53)]
STATIC = FilePath(__file__).parent / "static"
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
    "'script'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "Page")
    watcher, requests, blocks = Watcher(gateway), RequestsView(gateway), Blocks(gateway)
    asking: dict[str, Any] = {"dependencies": [made.guards.local], "include_in_schema": False}

    def viewer(request: Request) -> Viewer:
        is_admin = request.state.access is Access.ADMIN
        return Viewer(is_admin, request.state.caller, gateway.settings.ui_show_text)

    def may_read(request: Request) -> bool:
        return request.state.access is Access.ADMIN and gateway.settings.ui_show_text

    @made.get("/ui/events", **asking)
    async def events(request: Request) -> Response:
        return await EventStream.begin(request, watcher.frames(viewer(request)), gateway.settings)

    @made.get("/ui/requests/{number}/texts", **asking)
    async def texts(request: Request, number: Number) -> Response:
        return JSONResponse(await requests.texts(number, viewer(request)))

    @made.post("/ui/requests/{number}/cancel", **asking)
    async def cancel(request: Request, number: Number) -> Response:
        requests.cancel(number, viewer(request))
        return JSONResponse({"state": "cancelled"})

    @made.get("/ui/blocks/{number}", **asking)
    async def block(request: Request, number: Number) -> Response:
        return JSONResponse(await blocks.block(number, may_read(request)))

    @made.get("/ui/blocks/{number}/below", **asking)
    async def below(request: Request, number: Number) -> Response:
        return JSONResponse(await blocks.part(number, may_read(request)))

    @made.post("/ui/search", **asking)
    async def search(request: Request, given: Given[Search]) -> Response:
        wanted = (await given.read(gateway.settings)).body.text
        return JSONResponse(await blocks.search(wanted, may_read(request)))

    @made.post("/ui/play", dependencies=[made.guards.generating], include_in_schema=False)
    async def play(request: Request, given: Given[Play]) -> Response:
        read = await given.read(gateway.settings)
        player = Player(gateway, read.body, request.state.caller)
        return await EventStream.begin(request, player.events(), gateway.settings)

    served = {f"/ui/{path.name}": path for path in sorted(STATIC.iterdir())}
    served |= dict.fromkeys(("/", "/ui"), STATIC / "index.html")
    for where, path in served.items():
        if path.suffix in TYPES:
            made.get(where, dependencies=[made.guards.open], include_in_schema=False)(_file(path))
    return made


def _file(path: FilePath) -> Callable[[Request], Awaitable[Response]]:
    """One file, read once; a browser that has it already gets 304."""
    body = path.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**HEADERS, "etag": tag}

    async def give(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(
            body, headers={**headers, "content-type": f"{TYPES[path.suffix]}; charset=utf-8"}
        )

    return give
