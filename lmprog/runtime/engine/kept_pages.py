"""Opens the second tier of an engine's pages (`runtime/tier`) that the configuration asks for: a
file, a store that several runtimes share, or on a device the host's memory.

What the pages are made by is hashed: the model's fingerprint, layout, the compiled kernels. A file
that was made by anything else is begun anew. What was asked for and cannot be opened is an error.
Knows files and engines; decides nothing about pages.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from lmprog import wire
from lmprog.config import EngineKind, RuntimeConfig
from lmprog.config_check import check_options
from lmprog.errors import InvalidParameter
from lmprog.native import cache_folder
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.tier.disk_store import HEADER_BYTES, DiskStore, FileInUse, PageFile
from lmprog.runtime.tier.page_store import PageStore, RecordFormat

log = logging.getLogger("lmprog")

MOST_FILES = 8
"""Of one model: so many runtimes may each have one."""
_OF_NO_PAGE = {"template", "context"}
"""Parts of a fingerprint that only decide which tokens there are."""


def open_store(
    config: RuntimeConfig, engine: object, made_by: wire.Fingerprint
) -> PageStore | None:
    """The second tier that `config` asks for; None where it asks for none. Raises InvalidParameter
    where it cannot be had: by this engine, of this size, in this place.
    """
    if config.kv_disk_mb is None and config.kv_host_mb is None and config.kv_store == "own":
        return None
    if config.kv_host_mb is None:
        return open_disk_store(config, engine, made_by)
    from lmprog.runtime.engine.device.device_engine import DeviceEngine
    from lmprog.runtime.engine.device.host_store import HostStore

    is_on_device = isinstance(engine, DeviceEngine)
    check_options(config, "device pages" if is_on_device else _kind(engine))
    assert isinstance(engine, DeviceEngine)
    _check_holds("kv_host_mb", config.kv_host_mb, engine.attention.bytes_per_page)
    return HostStore(engine.attention, config.kv_host_mb << 20)


def open_disk_store(
    config: RuntimeConfig, engine: object, made_by: wire.Fingerprint
) -> DiskStore | None:
    """The store that `config` asks for; None where it asks for none. Raises InvalidParameter where
    this engine cannot have one, or the disk does not allow it.
    """
    if config.kv_disk_mb is None and config.kv_store == "own":
        return None
    check_options(config, _kind(engine))
    assert isinstance(engine, NativeEngine)
    memory = engine.page_memory()
    identity = _identity(engine, made_by, memory.page_bytes)
    if config.kv_store not in ("own", "machine", "folder"):
        return _open_server(config, engine, identity)
    if config.kv_disk_mb is None:
        raise InvalidParameter(
            f"kv_store = {config.kv_store!r} keeps pages on a disk; say with kv_disk_mb how many",
            name="kv_disk_mb",
        )
    folder = Path(config.kv_disk_folder or cache_folder() / "kv")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if config.kv_store != "own":
            return _open_shared(folder, config, engine, identity)
        file = _free_file(folder, config, engine, identity)
    except OSError as error:
        raise InvalidParameter(
            f"keys and values cannot be kept in {folder}: {error}. Give another kv_disk_folder, "
            "or leave out kv_disk_mb",
            name="kv_disk_folder",
            value=str(folder),
        ) from error
    try:
        _check_holds("kv_disk_mb", config.kv_disk_mb, HEADER_BYTES + file.record_bytes)
        num_handles = ((config.kv_disk_mb << 20) - HEADER_BYTES) // file.record_bytes
        file.resize(num_handles)
        return DiskStore(file, memory, num_handles)
    except BaseException:
        file.close()
        raise


def _open_shared(
    folder: Path, config: RuntimeConfig, engine: NativeEngine, identity: bytes
) -> DiskStore:
    """What the runtimes of this machine share, or all that see `folder`."""
    from lmprog.runtime.tier.shared_pages import SharedFolder, SharedPageFile

    form, most = _format(engine, identity), (config.kv_disk_mb or 0) << 20
    _check_holds("kv_disk_mb", most >> 20, form.record_bytes)
    records: SharedFolder | SharedPageFile
    if config.kv_store == "folder":
        records = SharedFolder(folder, identity, form, most)
    else:
        name = f"{_file_name(config)}-{identity[:8].hex()}.shared"
        records = SharedPageFile(folder / name, identity, form, most)
    return DiskStore(records, engine.page_memory(), records.num_handles)


def _open_server(config: RuntimeConfig, engine: NativeEngine, identity: bytes) -> DiskStore:
    """A server that does not answer yet is asked again later; one that does not let us in is an
    error.
    """
    from lmprog.redis_server import RedisRefused
    from lmprog.runtime.tier.shared_pages import RedisPages

    url = config.kv_store
    shown = re.sub(r"//[^/]*@", "//***@", url)
    for name in ("kv_disk_mb", "kv_disk_folder"):
        if getattr(config, name) is not None:
            raise InvalidParameter(
                f"{name} is for pages on a disk, and kv_store = {shown!r} keeps them elsewhere; "
                "leave one of them out",
                name=name,
                value=getattr(config, name),
            )
    try:
        records = RedisPages(url, identity, _format(engine, identity))
        records.check()
    except (ValueError, RedisRefused) as error:
        raise InvalidParameter(
            f"kv_store = {shown!r} {error}; there are own, machine, folder, and addresses like "
            "redis://HOST:PORT",
            name="kv_store",
            value=shown,
        ) from error
    except OSError as error:
        log.warning("the store of pages at %s does not answer yet: %s", shown, error)
    return DiskStore(records, engine.page_memory(), records.num_handles)


def _format(engine: NativeEngine, identity: bytes) -> RecordFormat:
    """Sums under the identity: a record of any other is none."""
    return RecordFormat(engine.memory.page_size, engine.page_memory().page_bytes, identity)


def _kind(engine: object) -> EngineKind:
    """Of an engine on the processor; what is none of ours keeps no more than torch's."""
    return "native pages" if isinstance(engine, NativeEngine) else "torch pages"


def _check_holds(name: str, megabytes: int, page_bytes: int) -> None:
    """Raises InvalidParameter for a tier that could never hold a page of that size."""
    if megabytes << 20 < page_bytes:
        raise InvalidParameter(
            f"{name} = {megabytes} holds no page: one takes {page_bytes:,} bytes",
            name=name,
            value=megabytes,
            allowed=f">= {-(-page_bytes // (1 << 20))}",
        )


def page_release(engine: object) -> Callable[[Sequence[int]], None] | None:
    """Returns the memory of pages to the system, or to the device; None where this engine
    cannot.
    """
    if isinstance(engine, NativeEngine):
        return engine.give_back if engine.has_page_memory else None
    found: Callable[[Sequence[int]], None] | None = getattr(engine, "page_release", None)
    return found  # of a device, which is not imported for this


def _free_file(
    folder: Path, config: RuntimeConfig, engine: NativeEngine, identity: bytes
) -> PageFile:
    """The first of the model's files that no other process has locked."""
    page_size, page_bytes = engine.memory.page_size, engine.page_memory().page_bytes
    name = _file_name(config)
    for number in range(MOST_FILES):
        try:
            return PageFile(folder / f"{name}-{number}.kv", identity, page_size, page_bytes)
        except FileInUse as error:
            last = error
    raise last


def _file_name(config: RuntimeConfig) -> str:
    return re.sub(r"[^\w.-]+", "-", config.model).strip("-")[-64:]


def _identity(engine: NativeEngine, made_by: wire.Fingerprint, page_bytes: int) -> bytes:
    """Of everything that the numbers in a page depend on besides its tokens and its adapter, which
    its namespace names.
    """
    made_by_parts = {name: part for name, part in made_by.parts.items() if name not in _OF_NO_PAGE}
    facts = (made_by_parts, engine.computed_by, engine.memory.page_size, page_bytes)
    return hashlib.sha256(repr(facts).encode()).digest()
