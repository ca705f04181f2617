"""`/v1/messages`: Anthropic's dialect, on the chat of OpenAI's."""

from __future__ import annotations

from lmprog.server.anthropic.routes import routes

__all__ = ["routes"]
