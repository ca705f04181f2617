"""`/v1/models`: the one model that is served."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from lmprog.server.gateway import Gateway
from lmprog.server.routers import GatewayRouter


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "OpenAI")

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

    @made.get("/v1/models", dependencies=[made.guards.user], summary="The models: there is one.")
    async def listing() -> Response:
        return JSONResponse({"object": "list", "data": [card()]})

    @made.get("/v1/models/{model:path}", dependencies=[made.guards.user], summary="One model.")
    async def one(model: str) -> Response:
        if not model:  # elsewhere no name means the one model; here it means no path
            raise HTTPException(404)
        gateway.check_model(model)
        return JSONResponse(card())

    return made
