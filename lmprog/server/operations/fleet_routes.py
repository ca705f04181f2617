"""`/fleet`: which runtimes there are behind this server; `/fleet/drain` takes one out of use."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.responses import JSONResponse, Response

from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.http_errors import refused
from lmprog.server.http.json_body import Given, described
from lmprog.server.observability.replica_metrics import FleetView


class DrainBody(msgspec.Struct, kw_only=True):
    replica: str
    seconds: Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)] = 30.0
    """For programs to end there, before they are moved."""


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "Operations")

    @made.get(
        "/fleet",
        dependencies=[made.guards.local],
        summary="The runtimes behind this server, where there are several.",
    )
    async def fleet() -> Response:
        return JSONResponse(fleet_json(gateway.fleet))

    @made.post(
        "/fleet/drain",
        dependencies=[made.guards.admin],
        summary="Takes a replica out of use; for the administrator.",
        responses=described(),
    )
    async def drain(given: Given[DrainBody]) -> Response:
        body = (await given.read(gateway.settings)).body
        if gateway.fleet is None:
            raise refused("This server has one runtime; drain the server.", "replica")
        gateway.fleet.drain(body.replica, body.seconds)
        return JSONResponse(fleet_json(gateway.fleet))

    return made


def fleet_json(fleet: FleetView | None) -> dict[str, Any]:
    """The fleet as its route and the page's pictures show it; without replicas where there is one
    runtime.
    """
    if fleet is None:
        return {"size": 1, "moved": 0, "refused": {}, "replicas": []}
    return {
        "size": fleet.size,
        "moved": fleet.num_moved,
        "refused": dict(fleet.refused),
        "replicas": [
            {
                "name": one.name,
                "programs": one.programs,
                "draining": one.is_draining,
                "responsive": one.is_responsive,
                "running": int(one.figures.get("running", 0)),
                "waiting": int(one.figures.get("waiting", 0)),
                "pages": int(one.figures.get("pages", 0)),
                "pagesFree": int(one.figures.get("pages_free", 0)),
                "cachedTokens": int(one.figures.get("cached_tokens", 0)),
                "lookedUpTokens": int(one.figures.get("looked_up_tokens", 0)),
                "generatedTokens": int(one.figures.get("generated_tokens", 0)),
            }
            for one in fleet.replicas()
        ],
    }
