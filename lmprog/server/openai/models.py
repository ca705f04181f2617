"""`/v1/models`: the one model that is served."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lmprog.server.gateway import Gateway


def routes(gateway: Gateway) -> list[Route]:
    def card() -> dict[str, object]:
        info = gateway.info
        return {
            "id": gateway.model_name,
            "object": "model",
            "created": int(gateway.started),
            "owned_by": "lmprog",
            "root": info.model,
            "max_model_len": info.context_len,
        }

    async def listing(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [card()]})

    async def one(request: Request) -> Response:
        gateway.check_model(request.path_params["model"])
        return JSONResponse(card())

    return [Route("/v1/models", listing), Route("/v1/models/{model:path}", one)]
