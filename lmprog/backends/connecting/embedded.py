"""Backends over a runtime process: one started here, or one that is already running.

Combines `lmprog.launch`, which manages processes, with the client. Imported on first use.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lmprog import launch
from lmprog.backends.client import RuntimeBackend
from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter
from lmprog.transport import CurveClient, client_keys

if TYPE_CHECKING:
    from lmprog.backends.blackbox.server_backend import RuntimeEndpoint


log = logging.getLogger("lmprog")


class Runtime(RuntimeBackend):
    """Starts a runtime with `model` (a name or a folder; without one it is nano, which is told) and
    is the backend on it; ended by `close` or its `with`.

    `options` are those of `lmprog.launch.RuntimeProcess`: its own, and the fields of
    `RuntimeConfig` and `SchedulerConfig`. `model_path` and `shutdown` are SGLang's names of `model`
    and `close`.
    """

    def __init__(self, model: str | RuntimeConfig | None = None, **options: Any) -> None:
        path = options.pop("model_path", None)
        if model is not None and path is not None:
            raise InvalidParameter(
                "model and model_path are the same; give one of them", name="model_path"
            )
        model = path if model is None else model
        if model is None:
            log.warning(
                "lmprog: nothing names a model, so this runs on nano, the toy model that comes "
                "with lmprog. To choose: program.using(backend=...), "
                "lmprog.set_default_backend(...), lmprog.Runtime(MODEL)"
            )
            model = "nano"
        self.process = launch.RuntimeProcess(model, **options)
        try:
            super().__init__(self.process.connect("python"))
        except BaseException:
            self.process.close()
            raise

    @property
    def address(self) -> str:
        """Where other clients reach this runtime, with `connect`."""
        return self.process.address

    def close(self) -> None:
        super().close()
        self.process.close()

    def shutdown(self) -> None:
        self.close()


Runtime.__init__.__signature__ = launch.options_signature()  # type: ignore[attr-defined]


def connect(
    address: str,
    *,
    keys: CurveClient | str | None = None,
    timeout: float = 30.0,
    api_key: str | None = None,
    model: str | None = None,
) -> RuntimeBackend | RuntimeEndpoint:
    """The backend on a runtime that runs at `address` (`ipc://...` or `tcp://...`), or on a server
    (`http://...`).

    `timeout` (seconds) and `keys` (or a folder of them) are for runtimes; `api_key` is for servers,
    and so is `model`: which one, where a server has several. See `RuntimeEndpoint`.
    """
    if address.startswith(("http://", "https://")):
        from lmprog.backends.blackbox.server_backend import RuntimeEndpoint

        return RuntimeEndpoint(address, api_key, model=model)
    if model is not None:
        raise InvalidParameter("a runtime has one model; leave model out", name="model")
    return RuntimeBackend(
        launch.connect(address, client="python", keys=client_keys(keys), timeout=timeout)
    )
