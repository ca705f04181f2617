"""`/v1/models`: the one model that is served."""

from __future__ import annotations

from starlette.exceptions import HTTPException
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
        if not request.path_params[
            "model"
        ]:  # elsewhere no name means the one model; here it means no path
            raise HTTPException(404)
        gateway.check_model(request.path_params["model"])
        return JSONResponse(card())

    return [Route("/v1/models", listing), Route("/v1/models/{model:path}", one)]
