"""`lmprog.sglang.global_config`: SGLang's object of process-wide settings, as far as they apply.

The default backend can be set. The other attributes describe fixed behavior of lmprog: they can be
read, and setting one to a value that does not match is an error instead of being ignored.
"""

from __future__ import annotations

from typing import Any

from lmprog.backends import Backend
from lmprog.backends.connecting.default import given_backend, set_default_backend
from lmprog.errors import NotSupported, UnknownName

_FIXED: dict[str, tuple[object, str]] = {
    "verbosity": (0, "programs print nothing"),
    "skip_special_tokens_in_output": (True, "give gen(skip_special_tokens=False)"),
    "spaces_between_special_tokens_in_out": (True, "tokens are joined as they are"),
    "enable_precache_with_tracing": (
        False,
        "a prefix is shared from the moment it is scheduled; nothing to do before",
    ),
    "enable_parallel_encoding": (
        False,
        "a join refers to what its branches gained; nothing is encoded again",
    ),
}


class GlobalConfig:
    """Attributes of SGLang's `global_config`."""

    @property
    def default_backend(self) -> Backend | None:
        """What `set_default_backend` was given; None: an embedded runtime, once one is needed."""
        return given_backend()

    @default_backend.setter
    def default_backend(self, backend: Backend | None) -> None:
        set_default_backend(backend)

    def __getattr__(self, name: str) -> Any:
        if name not in _FIXED:
            raise AttributeError(
                f"global_config has no {name!r}; it has default_backend, {', '.join(_FIXED)}"
            )
        return _FIXED[name][0]

    def __setattr__(self, name: str, value: object) -> None:
        if name == "default_backend":
            object.__setattr__(self, name, value)
        elif name not in _FIXED:
            message = f"global_config has no {name!r}; it has default_backend, {', '.join(_FIXED)}"
            raise UnknownName(message, name=name)
        elif value != _FIXED[name][0]:
            always, why = _FIXED[name]
            raise NotSupported(f"{name}={value!r} cannot be set, it is always {always!r}: {why}")


global_config = GlobalConfig()
