"""`Guards` for routes that others add to their own application; docs/server.md shows how."""

from __future__ import annotations

from lmprog.server.gateway.routes import Guards as Guards
