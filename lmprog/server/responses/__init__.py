"""`/v1/responses`: OpenAI's newer dialect, on the chat of the older one."""

from __future__ import annotations

from lmprog.server.responses.responses_routes import router

__all__ = ["router"]
