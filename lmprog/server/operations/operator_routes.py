"""Routes for operators: whether the server lives and can take traffic, what it is, what it counts,
and which runtimes stand behind it.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lmprog.errors import LmprogError
from lmprog.server.gateway.gateway import Gateway, version
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.auth import Access
from lmprog.server.http.http_errors import HttpError, Problem, refused
from lmprog.server.http.json_body import Given, described
from lmprog.server.observability.replica_metrics import FleetView

SCRAPE_SECONDS = 2.0
"""How long a scrape waits for a runtime in a long step; then it tells what was known before."""


class DrainBody(msgspec.Struct, kw_only=True):
    replica: str
    seconds: Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)] = 30.0
    """For programs to end there, before they are moved."""


class UpdateBody(msgspec.Struct, kw_only=True):
    seconds: Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)] = 600.0
    """For programs to end on each replica."""


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "Operations")
    _add_health(made, gateway)
    _add_metrics(made, gateway)
    _add_fleet(made, gateway)
    return made


def _add_health(made: GatewayRouter, gateway: Gateway) -> None:
    """`/health`, `/ready`, `/version`."""
    guards = made.guards

    @made.get(
        "/health", dependencies=[guards.open], summary="Whether the server lives; needs no key."
    )
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @made.get(
        "/ready", dependencies=[guards.open], summary="Whether it can take requests; needs no key."
    )
    async def ready() -> Response:
        if gateway.draining:
            raise HttpError(Problem(503, "The server is stopping.", code="draining"))
        if not gateway.link.is_up:
            seconds = gateway.link.seconds_until_up()
            raise HttpError(Problem(503, gateway.link.why, code="not_ready", retry_after=seconds))
        if not gateway.is_ready:
            raise HttpError(Problem(503, "The runtime does not answer.", code="not_responding"))
        return JSONResponse({"status": "ready"})

    @made.get(
        "/version",
        dependencies=[guards.local],
        summary="The version of lmprog, and the fingerprints of its models.",
    )
    async def what() -> Response:
        models = gateway.link.models
        parts = {name: info.parts for name, info in models.items()}
        told = {"version": version(), "fingerprint": next(iter(parts.values()), {})}
        return JSONResponse(told if len(parts) < 2 else {**told, "models": parts})


def _add_metrics(made: GatewayRouter, gateway: Gateway) -> None:
    """`/metrics`, in Prometheus' format. Needs a key where there are keys."""

    @made.get(
        "/metrics",
        dependencies=[made.guards.local],
        summary="Counters and times, as Prometheus reads them.",
        responses=described(media="text/plain"),
    )
    async def metrics(request: Request) -> Response:
        meters = gateway.meters
        if gateway.link.is_up:
            meters.begin(gateway.model_names[1:])
            with contextlib.suppress(LmprogError, TimeoutError):
                await gateway.see_figures(SCRAPE_SECONDS)
        meters.up.set(gateway.is_ready)
        meters.open_requests.set(gateway.open_requests)
        meters.open_results.set(gateway.open_results)
        meters.bytes_held.set(gateway.memory.held)
        keyring = gateway.keyring
        more = list(gateway.key_metrics.totals())
        if keyring.keys and (request.state.access is Access.ADMIN or not keyring.has_admin):
            more += gateway.key_metrics.collect()  # what others use is for the administrator
        text, media = meters.text(request.headers.get("accept", ""), more)
        return Response(text, headers={"content-type": media})


def _add_fleet(made: GatewayRouter, gateway: Gateway) -> None:
    """`/fleet`; `/fleet/drain` takes a runtime out of use, `/fleet/update` replaces all."""

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

    @made.post(
        "/fleet/update",
        dependencies=[made.guards.admin],
        summary="Goes over to the model that is there now; for the administrator.",
        responses=described(),
    )
    async def update(given: Given[UpdateBody]) -> Response:
        body = (await given.read(gateway.settings)).body
        if gateway.fleet is None:
            raise refused("This server has one runtime; start it again.", "replicas")
        gateway.fleet.update(body.seconds)
        return JSONResponse(fleet_json(gateway.fleet))


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
                "model": one.served_name,
                "programs": one.programs,
                "draining": one.is_draining,
                "generation": one.generation,
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
