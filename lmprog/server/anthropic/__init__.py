"""`/v1/messages`: Anthropic's dialect, on the chat of OpenAI's."""

from __future__ import annotations

from lmprog.server.anthropic.messages_routes import router

__all__ = ["router"]
