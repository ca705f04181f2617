"""Calls about a runtime as a whole: a given one, that of the calling program, or the default."""

from __future__ import annotations

from typing import Any

from lmprog.backends import Backend
from lmprog.backends.client import describe, flush
from lmprog.lang.branches.scope import uncached_backend_of


def flush_cache(backend: Backend | None = None) -> None:
    """Evicts everything from the runtime's cache that no live branch uses; blocks."""
    flush(uncached_backend_of(backend))


def get_server_info(backend: Backend | None = None) -> dict[str, Any]:
    """The runtime's description (model, sizes) and statistics; blocks."""
    chosen = uncached_backend_of(backend)
    welcome = chosen.client.welcome
    about = {name: getattr(welcome, name) for name in welcome.__struct_fields__}
    return {**describe(chosen), **about}
