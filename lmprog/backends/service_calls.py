"""Calls about a runtime as a whole, on the default backend or a given one."""

from __future__ import annotations

from typing import Any

from lmprog.backends import Backend
from lmprog.backends.default import default_backend
from lmprog.backends.runtime_backend import describe, flush


def flush_cache(backend: Backend | None = None) -> None:
    """Evicts everything from the runtime's cache that no live branch uses; blocks."""
    flush(backend or default_backend())


def get_server_info(backend: Backend | None = None) -> dict[str, Any]:
    """The runtime's description (model, sizes) and statistics; blocks."""
    chosen = backend or default_backend()
    welcome = chosen.client.welcome
    about = {name: getattr(welcome, name) for name in welcome.__struct_fields__}
    return {**describe(chosen), **about}
