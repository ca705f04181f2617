"""The page that shows the tree, at `/` and `/ui`: its files, its stream of pictures, its
playground.

The files are the same for everybody and hold no data, so they need no key; the page asks for the
key and sends it as a header with everything else. Nothing is loaded from elsewhere, and the policy
sent with the files lets the browser run nothing but them. Knows files and routes; `watching` makes
the pictures, `playing` runs what is typed in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from lmprog.server.gateway import Gateway
from lmprog.server.http.auth import Access
from lmprog.server.http.json_body import Given
from lmprog.server.http.sse import EventStream
from lmprog.server.page.playing import Play, Player
from lmprog.server.page.watching import Watcher
from lmprog.server.routers import GatewayRouter

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
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
    watcher = Watcher(gateway)

    @made.get("/ui/events", dependencies=[made.guards.local], include_in_schema=False)
    async def events(request: Request) -> Response:
        may_read = request.state.access is Access.ADMIN and gateway.settings.ui_show_text
        return await EventStream.begin(request, watcher.frames(may_read), gateway.settings)

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


def _file(path: Path) -> Callable[[Request], Awaitable[Response]]:
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
