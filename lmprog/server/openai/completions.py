"""`/v1/completions`."""

from __future__ import annotations

from starlette.routing import Route

from lmprog.server.gateway import Gateway


def routes(gateway: Gateway) -> list[Route]:
    return []
