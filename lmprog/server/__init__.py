"""The HTTP gateway: one more client of the runtime's wire, which speaks OpenAI's and SGLang's
dialects to others. A FastAPI application; `create_app` makes it, `ModelServer` gives its routers.

It holds no model and no tokenizer. `link` is its end of the wire, `gateway` what every route needs,
`app` the list of route modules, `run` the server around it. Names are loaded when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmprog.server.model_server import ModelServer as ModelServer
    from lmprog.server.model_server import create_app as create_app
    from lmprog.server.options.server_settings import ServerSettings as ServerSettings

_HOMES = {
    **dict.fromkeys(("ModelServer", "create_app"), "lmprog.server.model_server"),
    "ServerSettings": "lmprog.server.options.server_settings",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lmprog.server' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
