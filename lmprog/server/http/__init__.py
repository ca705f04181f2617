"""HTTP: the listener, the middleware, bodies, errors, event streams, limits. Knows no dialect."""

from __future__ import annotations

import importlib.util

from lmprog.errors import NotSupported

if any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn")):
    raise NotSupported("The HTTP server is not installed: pip install 'lmprog[server]'.")
