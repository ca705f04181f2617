"""Opens the second tier of an engine's pages (`runtime/tier`) that the configuration asks for: a
file, or on a device the host's memory.

What the pages are made by is hashed: weights, tokenizer, types, layout, the compiled kernels. A
file that was made by anything else is begun anew. Knows files and engines; decides nothing about
pages.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter
from lmprog.native import cache_folder
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.tier.disk_store import DiskStore
from lmprog.runtime.tier.page_file import FileInUse, PageFile
from lmprog.runtime.tier.page_store import PageStore
from lmprog.weight_cache import content_digest

log = logging.getLogger("lmprog")

MOST_FILES = 8
"""Of one model: so many runtimes may each have one."""


def open_store(config: RuntimeConfig, engine: object) -> PageStore | None:
    """The second tier that `config` asks for; None where it asks for none. Raises InvalidParameter
    where this engine cannot have it.
    """
    if config.kv_host_mb is None:
        return open_disk_store(config, engine)
    from lmprog.runtime.engine.device.device_engine import DeviceEngine
    from lmprog.runtime.engine.device.host_store import HostStore

    if not isinstance(engine, DeviceEngine) or config.kv_disk_mb is not None:
        raise InvalidParameter(
            "kv_host_mb is memory beside a device, and its only second tier; on the processor "
            "there is kv_disk_mb",
            name="kv_host_mb",
            value=config.kv_host_mb,
        )
    store = HostStore(engine.attention, config.kv_host_mb << 20)
    if not store.num_handles:
        log.warning("kv_host_mb = %d holds no page", config.kv_host_mb)
    return store


def open_disk_store(config: RuntimeConfig, engine: object) -> DiskStore | None:
    """The store that `config` asks for; None where it asks for none, or, with a line in the log,
    where the disk does not allow it. Raises InvalidParameter where this engine cannot have one.
    """
    if config.kv_disk_mb is None:
        return None
    if not isinstance(engine, NativeEngine):
        raise InvalidParameter(
            "kv_disk_mb needs the native engine; the torch engine and GPUs keep no pages on disk",
            name="kv_disk_mb",
            value=config.kv_disk_mb,
        )
    memory = engine.page_memory()
    folder = Path(config.kv_disk_folder or cache_folder() / "kv")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = _free_file(folder, config, engine, memory.page_bytes)
        store = DiskStore(file, memory, config.kv_disk_mb << 20)
    except OSError as error:
        log.warning("keys and values are not kept on disk: %s", error)
        return None
    if not store.num_handles:
        log.warning("kv_disk_mb = %d holds no page", config.kv_disk_mb)
    return store


def page_release(engine: object) -> Callable[[Sequence[int]], None] | None:
    """Returns the memory of pages to the system, or to the device; None where this engine
    cannot.
    """
    if isinstance(engine, NativeEngine):
        return engine.give_back if engine.has_page_memory else None
    found: Callable[[Sequence[int]], None] | None = getattr(engine, "page_release", None)
    return found  # of a device, which is not imported for this


def _free_file(
    folder: Path, config: RuntimeConfig, engine: NativeEngine, page_bytes: int
) -> PageFile:
    """The first of the model's files that no other process has locked."""
    page_size = engine.memory.page_size
    identity = _identity(config, engine, page_bytes)
    name = re.sub(r"[^\w.-]+", "-", config.model).strip("-")[-64:]
    for number in range(MOST_FILES):
        try:
            return PageFile(folder / f"{name}-{number}.kv", identity, page_size, page_bytes)
        except FileInUse as error:
            last = error
    raise last


def _identity(config: RuntimeConfig, engine: NativeEngine, page_bytes: int) -> bytes:
    """Of everything that the numbers in a page depend on besides its tokens."""
    facts = (
        config.model if engine.location is None else "",
        engine.fingerprint,
        engine.memory.page_size,
        page_bytes,
    )
    found = hashlib.sha256(repr(facts).encode())
    if engine.location is not None:
        for path in sorted(engine.location.iterdir()):
            if path.suffix in (".safetensors", ".json", ".model") and path.is_file():
                found.update(f"{path.name} {content_digest(path)} ".encode())
    return found.digest()
