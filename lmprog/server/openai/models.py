"""`/v1/models`: the models that are served, and their adapters."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "OpenAI")

    def card(name: str) -> dict[str, object]:
        """An adapter's has its own name as its root, and the model as its parent."""
        info, adapter = gateway.info_of(name), gateway.names[name].adapter
        return {
            "id": name,
            "object": "model",
            "type": "model",  # so Anthropic's clients have it
            "display_name": name,
            "created": int(gateway.started),
            "created_at": datetime.fromtimestamp(gateway.started, UTC).isoformat(),
            "owned_by": "lmprog",
            "root": name if adapter else info.model,
            "parent": gateway.name_of(info) if adapter else None,
            "max_model_len": info.context_len,
            "fingerprint": {**info.parts, "digest": info.digest} if info.digest else {},
        }

    @made.get(
        "/v1/models", dependencies=[made.guards.user], summary="The models and their adapters."
    )
    async def listing() -> Response:
        names = list(gateway.names)
        pages = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
        return JSONResponse({"object": "list", "data": [card(name) for name in names], **pages})

    @made.get("/v1/models/{model:path}", dependencies=[made.guards.user], summary="One model.")
    async def one(model: str) -> Response:
        if not model:  # elsewhere no name means the one model; here it means no path
            raise HTTPException(404)
        return JSONResponse(card(gateway.check_model(model)))

    return made
