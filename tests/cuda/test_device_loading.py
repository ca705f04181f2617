"""Weights go from files to a device without a stay on the host, and the pool has what the model and
its largest step leave.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter, NotSupported
from lmprog.native import compiler
from lmprog.runtime.engine.device import loading
from lmprog.runtime.engine.device.device_engine import DeviceEngine
from lmprog.runtime.engine.device.device_weights import TransferredWeights, WeightTransfer
from lmprog.runtime.engine.device.driver import ModuleKey
from lmprog.runtime.engine.device.emulated_driver import EmulatedDriver, emulated_kernels
from lmprog.runtime.engine.device.loading import StepSizes, largest_steps
from lmprog.runtime.engine.engine import select_engine
from lmprog.runtime.engine.model.checkpoint import checkpoint_files
from lmprog.runtime.engine.model.shape import ModelShape, read_config, read_shape
from lmprog.runtime.engine.model.stored_weights import weight_source
from lmprog.runtime.engine.torch_engine.decoder import Weights
from lmprog.runtime.engine.torch_engine.weights import fused, load_weights
from tests.model.checkpoints import Recipe
from tests.model.quantized_layouts import FORMATS, rewrite

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
PIECE = 5_000


# --- weights


class FarDevice:
    """A device whose memory the host does not have: sizes are kept there, and no numbers."""

    device = torch.device("meta")

    def __init__(self) -> None:
        self.pinned_bytes = self.copied_bytes = 0
        self._pinned: set[int] = set()

    def memory(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device="meta")

    def pinned(self, num_bytes: int) -> torch.Tensor:
        self.pinned_bytes += num_bytes
        made = torch.empty(num_bytes, dtype=torch.uint8)
        self._pinned.add(made.data_ptr())
        return made

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if source.device.type == "cpu":
            assert source.data_ptr() in self._pinned
            self.copied_bytes += source.nbytes
        target.copy_(source)

    def event(self) -> FarDevice:
        return self

    def wait(self) -> None: ...


class HostTensors(TorchDispatchMode):
    """How many bytes torch computes in the host's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        before = {one.data_ptr() for one in args if is_here(one)}
        views = function.is_view or "copy_" in str(function)
        if is_here(found) and not views and found.data_ptr() not in before:
            self.made += found.nbytes
        return found


def is_here(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


@pytest.fixture(scope="module", params=["one file", "several files"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("checkpoint")
    size = "50KB" if request.param == "several files" else "1GB"
    recipe = Recipe("Qwen3", {"head_dim": 32, "tie_word_embeddings": False})
    recipe.make(made, max_shard_size=size)
    assert (len(checkpoint_files(made)) > 3) == (size == "50KB")
    return made


def transferred(folder: Path, driver: Any, dtype: torch.dtype = torch.bfloat16) -> Weights:
    shape = shape_of(folder)
    transfer = WeightTransfer(driver, PIECE)
    source = TransferredWeights(weight_source(folder, shape), transfer)
    with torch.inference_mode():
        return fused(shape, dtype, source.read, False, transfer.kept)


def shape_of(folder: Path) -> ModelShape:
    return read_shape(read_config(folder))


def tensors(weights: Weights) -> Iterator[torch.Tensor]:
    for layer in weights.layers:
        for name in layer.__slots__:
            found = getattr(layer, name)
            if found is not None and name != "norms":
                yield found
        yield from layer.norms.values()
    yield from (weights.embedding, weights.norm, weights.head)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_that_went_through_pinned_memory_are_those_of_the_files(
    folder: Path, dtype: torch.dtype
) -> None:
    driver = EmulatedDriver(emulated_kernels(ModuleKey("float", 32)))
    found = list(tensors(transferred(folder, driver, dtype)))
    wanted = list(tensors(load_weights(folder, shape_of(folder), dtype)))
    assert len(found) == len(wanted) > 15
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
    assert driver.count.used >= sum(one.nbytes for one in wanted), "all are memory of the device"


def test_the_host_holds_two_pieces_of_a_model_and_no_weight(folder: Path) -> None:
    shape, driver = shape_of(folder), FarDevice()
    stored = weight_source(folder, shape)
    num_bytes = sum(stored.array(name).nbytes for name in stored.names)  # type: ignore[attr-defined]
    tracemalloc.start()
    with HostTensors() as transferring:
        found = transferred(folder, driver)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert {one.device.type for one in tensors(found)} == {"meta"}
    assert driver.pinned_bytes == 2 * PIECE
    assert driver.copied_bytes == num_bytes > 50 * PIECE
    assert transferring.made <= driver.pinned_bytes, "nothing is computed on the host"
    assert most < num_bytes / 2, "numpy copies nothing large"
    with HostTensors() as loading_here:
        load_weights(folder, shape, torch.bfloat16)
    assert loading_here.made > num_bytes, "what the same costs where it is done on the host"


class SeenCopies(EmulatedDriver):
    """Counts what comes from pinned memory."""

    def __init__(self, *keys: Any) -> None:
        super().__init__(emulated_kernels(*keys))
        self.pinned_bytes = 0
        self._places: set[int] = set()

    def pinned(self, num_bytes: int) -> torch.Tensor:
        memory = super().pinned(num_bytes)
        self._places.add(memory.untyped_storage().data_ptr())
        return memory

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if source.untyped_storage().data_ptr() in self._places:
            self.pinned_bytes += source.nbytes
        super().copy(target, source)


@needs_compiler
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_weights_that_become_small_go_through_pinned_memory_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    plain, folder, seen = tmp_path / "plain", tmp_path / "quantized", list[SeenCopies]()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    Recipe("Qwen2", {**sizes, "num_attention_heads": 2, "num_key_value_heads": 1}).make(plain)
    changes: dict[str, Any] = {"quantize": "int8"}
    if kind == "fp8":
        rewrite(plain, folder, tmp_path / "meant", FORMATS["fp8"])
        changes = {}

    def open_driver(_: str, *keys: Any) -> SeenCopies:
        seen.append(SeenCopies(*keys))
        return seen[0]

    monkeypatch.setattr(loading, "open_driver", open_driver)
    config = RuntimeConfig(str(folder if changes == {} else plain), scheduler=SCHEDULER, **changes)
    engine = loading.load_device_engine(config, "emulated")
    assert engine.dtype == kind
    source = load_file(Path(config.model) / "model.safetensors")
    large = sum(one.nbytes for one in source.values() if one.ndim == 2 and one.nbytes > 4096)
    assert 0.9 * large < seen[0].pinned_bytes < 2 * large


# --- the pool's size

SCHEDULER = SchedulerConfig(token_budget=64, max_rows=6, page_size=16)


def loaded(monkeypatch: pytest.MonkeyPatch, limit: int, **changes: Any) -> DeviceEngine:
    """On a device with so much memory."""

    def open_driver(_: str, key: ModuleKey) -> EmulatedDriver:
        return EmulatedDriver(emulated_kernels(key), limit=limit)

    monkeypatch.setattr(loading, "open_driver", open_driver)
    fields = {"dtype": "float32", "context_len": 50, "scheduler": SCHEDULER, **changes}
    return loading.load_device_engine(RuntimeConfig("dummy:tiny", **fields), "emulated")


LIMIT = 24 << 20


@needs_compiler
@pytest.mark.parametrize("kv_pool", ["fixed", "virtual"])
def test_the_pool_takes_what_the_largest_step_leaves(
    monkeypatch: pytest.MonkeyPatch, kv_pool: str
) -> None:
    engine = loaded(monkeypatch, LIMIT, kv_pool=kv_pool, device_memory_fraction=1.0)
    driver, pages = engine.driver, engine.attention.pages
    assert isinstance(driver, EmulatedDriver)
    if kv_pool == "virtual":
        assert driver.mapped.num_handles == 0, "the trial's are gone, ours have not come"
        pages.back(torch.arange(engine.num_pages - 4, dtype=torch.int32).numpy())
    assert driver.count.used > 0.5 * LIMIT
    for batch in largest_steps(StepSizes.of(SCHEDULER, 50)):
        engine.forward(batch)  # raises where there is no memory
        engine.finish()
    assert driver.count.most <= LIMIT
    left = LIMIT - driver.count.most
    assert left < 0.1 * LIMIT, "and little is left"


@needs_compiler
def test_a_fraction_is_of_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = loaded(monkeypatch, LIMIT, device_memory_fraction=1.0).num_pages
    assert loaded(monkeypatch, LIMIT).num_pages == pytest.approx(0.9 * whole, abs=1)
    assert loaded(monkeypatch, LIMIT, device_memory_fraction=0.5).num_pages == whole // 2
    asked = replace(SCHEDULER, num_pages=7)
    assert loaded(monkeypatch, LIMIT, scheduler=asked).num_pages == 7


@needs_compiler
def test_what_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotSupported, match=r"dummy:tiny with its largest step .* does not fit"):
        loaded(monkeypatch, 1 << 20)
    with pytest.raises(NotSupported, match=r"beside the model and its largest step .64 tokens, 6"):
        loaded(monkeypatch, LIMIT, device_memory_fraction=0.001)
    for fraction in (0.0, 1.5):
        with pytest.raises(InvalidParameter, match="must be more than 0 and at most 1"):
            loaded(monkeypatch, LIMIT, device_memory_fraction=fraction)


def test_the_largest_step_has_all_tokens_and_all_rows() -> None:
    sizes = StepSizes.of(SCHEDULER, 50)
    chunks, rows = largest_steps(sizes)
    assert (chunks.num_tokens, chunks.row_starts.tolist()) == (64, [0, 50, 64])
    assert len(chunks.logit_tokens) == 64
    assert (rows.num_rows, rows.num_tokens) == (6, 6)
    for batch in (chunks, rows):
        assert len(set(batch.write_slots.tolist())) == batch.num_tokens
        assert len(batch.pages) <= sizes.num_pages
        assert set((batch.write_slots // 16).tolist()) == set(batch.pages.tolist())


def test_the_processor_has_no_such_fraction() -> None:
    config = RuntimeConfig("dummy:tiny", device_memory_fraction=0.5)
    with pytest.raises(InvalidParameter, match=r"device_memory_fraction = 0\.5 is of a device"):
        select_engine(config)
