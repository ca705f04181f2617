"""The adapters that a configuration names, loaded for a model."""

from __future__ import annotations

from pathlib import Path

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter, ModelError
from lmprog.runtime.engine.adapters.adapter_folder import Adapter, read_adapter
from lmprog.runtime.engine.model.shape import ModelShape

LONGEST_NAME = 128


def adapter_folders(config: RuntimeConfig) -> dict[str, Path]:
    """The folders by name. Raises InvalidParameter."""
    found: dict[str, Path] = {}
    for one in config.lora:
        name, equals, folder = one.partition("=")
        if not (name and equals and folder) or not name.isprintable() or len(name) > LONGEST_NAME:
            raise _wrong(one, "name=folder, the name printable")
        if name in found:
            raise _wrong(one, f"another name: there are two adapters {name!r}")
        if name == config.model:
            raise _wrong(one, "another name: this one is the model's own")
        found[name] = Path(folder).expanduser()
    return found


def load_adapters(config: RuntimeConfig, shape: ModelShape) -> tuple[Adapter, ...]:
    """Those of `config.lora`, in its order. Raises InvalidParameter, and ModelError for folders
    that do not fit `shape`.
    """
    found = []
    for name, folder in adapter_folders(config).items():
        if not folder.is_dir():
            raise ModelError(f"the adapter {name!r} is no folder: {folder}")
        found.append(read_adapter(name, folder, shape))
    return tuple(found)


def _wrong(given: str, allowed: str) -> InvalidParameter:
    return InvalidParameter(
        f"lora = {given!r} is not allowed; give {allowed}",
        name="lora",
        value=given,
        allowed=allowed,
    )
