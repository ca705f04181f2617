"""What the server offers, as an OpenAPI document and as a page that needs no network."""

from __future__ import annotations

from lmprog.server.openapi.docs_page import router

__all__ = ["router"]
