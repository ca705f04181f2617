"""`/metrics`: what the server counts, in Prometheus' format. Needs a key where there are keys."""

from __future__ import annotations

import contextlib

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from lmprog.errors import LmprogError
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.auth import Access
from lmprog.server.http.json_body import described

SCRAPE_SECONDS = 2.0
"""How long a scrape waits for a runtime in a long step; then it tells what was known before."""


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "Operations")

    @made.get(
        "/metrics",
        dependencies=[made.guards.local],
        summary="Counters and times, as Prometheus reads them.",
        responses=described(media="text/plain"),
    )
    async def metrics(request: Request) -> Response:
        meters = gateway.meters
        if gateway.link.is_up:
            meters.begin()
            with contextlib.suppress(LmprogError, TimeoutError):
                await gateway.see_figures(SCRAPE_SECONDS)
        meters.up.set(gateway.is_ready)
        meters.open_requests.set(gateway.open_requests)
        meters.open_results.set(gateway.open_results)
        text = meters.text()
        keyring = gateway.keyring
        if keyring.keys and (request.state.access is Access.ADMIN or not keyring.has_admin):
            text += gateway.key_metrics.text()  # what others use is for the administrator
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})

    return made
