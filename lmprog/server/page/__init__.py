"""The page that shows the tree, at `/` and `/ui`: its files, its stream of pictures, its
playground.

The files are the same for everybody and hold no data, so they need no key; the page asks for the
key and sends it as a header with everything else. Nothing is loaded from elsewhere, and the policy
sent with the files lets the browser run nothing but them. Knows files and routes; `watching` makes
the pictures, `playing` runs what is typed in.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lmprog.server.gateway import Gateway
from lmprog.server.http.auth import Access, LocalRoute, OpenRoute
from lmprog.server.http.bodies import read_body
from lmprog.server.http.sse import EventStream
from lmprog.server.page.playing import Play, Player
from lmprog.server.page.watching import Watcher

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


def routes(gateway: Gateway) -> list[Route]:
    watcher = Watcher(gateway)

    async def events(request: Request) -> Response:
        may_read = request.state.access is Access.ADMIN and gateway.settings.ui_show_text
        return await EventStream.begin(request, watcher.frames(may_read), gateway.settings)

    async def play(request: Request) -> Response:
        read = await read_body(request, Play, gateway.settings)
        player = Player(gateway, read.body, request.state.caller)
        return await EventStream.begin(request, player.events(), gateway.settings)

    found = [LocalRoute("/ui/events", events), Route("/ui/play", play, methods=["POST"])]
    found += [
        _file(f"/ui/{path.name}", path) for path in sorted(STATIC.iterdir()) if path.suffix in TYPES
    ]
    found += [_file(where, STATIC / "index.html") for where in ("/", "/ui")]
    return found


def _file(where: str, path: Path) -> Route:
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

    return OpenRoute(where, give)
