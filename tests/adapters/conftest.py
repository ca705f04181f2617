"""A runtime of nano with two random adapters, and runtimes of nano with each merged into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lmprog.backends.client import RuntimeBackend
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.runtime.assembly import assemble
from lmprog.runtime.engine.model.locate import NANO
from lmprog.transport import LocalRuntimeChannel
from tests.adapters.peft_files import Made, write_adapter, write_merged
from tests.runtime.runtime_thread import serving

MADES = {
    "one": Made(2, 4.0, ("q_proj", "v_proj", "down_proj"), strength=0.5, seed=11),
    "two": Made(3, 3.0, ("o_proj", "gate_proj"), strength=0.6, seed=12),
}


@contextmanager
def runtime(model: Path, **config: Any) -> Iterator[RuntimeBackend]:
    """In a thread of this process."""
    channel = LocalRuntimeChannel()
    scheduler = SchedulerConfig(page_size=16)
    given = {"threads": 1, "kv_memory_mb": 32, "dtype": "float32", "scheduler": scheduler}
    loop, _ = assemble(RuntimeConfig(model=str(model), **{**given, **config}), channel)
    with serving(loop, channel) as backend:
        yield backend


@dataclass(frozen=True)
class Adapted:
    """`merged` by the names of adapters; "" is nano as it is."""

    backend: RuntimeBackend
    merged: dict[str, RuntimeBackend]
    folders: dict[str, Path]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    folder = tmp_path_factory.mktemp("adapters")
    folders = {name: write_adapter(NANO, folder / name, made) for name, made in MADES.items()}
    lora = tuple(f"{name}={path}" for name, path in folders.items())
    with ExitStack() as stack:
        backend = stack.enter_context(runtime(NANO, lora=lora))
        merged = {"": stack.enter_context(runtime(NANO))}
        for name, made in MADES.items():
            whole = write_merged(NANO, folder / f"merged-{name}", made)
            merged[name] = stack.enter_context(runtime(whole))
        yield Adapted(backend, merged, folders)
