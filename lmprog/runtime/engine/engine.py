"""Chooses the engine that a configuration asks for, and loads it: a device's with its own sampler,
the processor's, or that of several processes together. A batch in, logits out.

On the processor it is the native engine (C++, no torch) where a compiler is found and the
architecture is known to it; the torch engine for everything else. Knows names and checkpoints;
imports torch, devices and adapters only where they are asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lmprog import native
from lmprog.config import RuntimeConfig
from lmprog.config_check import check_options
from lmprog.errors import InvalidParameter, ModelError, NotSupported
from lmprog.radix.frames import WindowPool
from lmprog.runtime.engine.machine.resources import default_threads, require_torch
from lmprog.runtime.engine.model.decoders import text_part
from lmprog.runtime.engine.model.families import is_native, read_native_shape
from lmprog.runtime.engine.model.locate import DUMMY_SEED, dummy_shape, locate
from lmprog.runtime.engine.model.resolution import (
    OWN_LAYER,
    StateSlots,
    cannot_predict,
    computable,
    context_length,
    data_type,
    num_pages,
    quantized_type,
    state_slots,
    with_predictor,
)
from lmprog.runtime.engine.model.rope import FeatureNotComputed
from lmprog.runtime.engine.model.shape import FAMILIES, ModelShape, read_config
from lmprog.runtime.engine.native.engine import KvMemory, NativeEngine
from lmprog.runtime.engine.native.interface import BF16_PATHS, best_path
from lmprog.runtime.engine.native.packing import packed_checkpoint, packed_random
from lmprog.runtime.engine.native.page_memory import layers_apart, page_bytes, state_bytes
from lmprog.runtime.engine.native.sampler import NativeSampler
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest, StepResults

if TYPE_CHECKING:
    from lmprog.runtime.engine.sharded.rank_group import RankGroup
    from lmprog.runtime.engine.torch_engine.engine import TorchEngine


log = logging.getLogger("lmprog")


class LogitsSampler(Protocol):
    """Reads the logits of the engine that it was selected with, in whatever form they are."""

    def sample(
        self, logits: Any, picks: tuple[SampleRequest, ...], scores: tuple[ScoreRequest, ...]
    ) -> StepResults: ...


@dataclass(frozen=True, slots=True)
class SelectedEngine:
    """An engine, and the sampler that reads its logits."""

    engine: Any  # an InferenceEngine, or a DeviceEngine, whose logits stay on the device
    sampler: LogitsSampler
    device: str

    @property
    def facts(self) -> dict[str, str]:
        """What was decided where the configuration left it open."""
        engine = self.engine
        return {"device": self.device, "engine": engine.label, "dtype": engine.dtype}

    @property
    def adapters(self) -> dict[str, str]:
        """Digests of the adapters by their names, in the order of their numbers."""
        return dict(getattr(self.engine, "adapters", {}))


def select_engine(
    config: RuntimeConfig, ranks: RankGroup | None = None, *, knows_frames: bool = False
) -> SelectedEngine:
    """The engine that `config` asks for, loaded. With device "auto" a GPU that cannot run this
    model, or whose results are wrong, is left alone, and the log says why. `ranks` compute it
    together where `config.tp` asks for more than one; this process leads them. `knows_frames`: see
    `native_plan`.
    """
    if ranks is not None:
        check_options(config)
        from lmprog.runtime.engine.sharded.sharded_engine import load_sharded_engine

        sharded = load_sharded_engine(config, ranks)
        return SelectedEngine(sharded, sharded.sampler, sharded.device)
    if config.tp != 1:
        raise InvalidParameter(
            f"tp = {config.tp} is for a runtime, which starts the ranks",
            name="tp",
            value=config.tp,
        )
    device = "cpu"
    if config.device != "cpu":
        from lmprog.runtime.engine.device.choice import chosen_device

        device = chosen_device(config.device)
    if device != "cpu":
        require_torch(f"device = {device!r}")
        from lmprog.runtime.engine.device.loading import load_device_engine

        try:
            made = load_device_engine(config, device)
            return SelectedEngine(made, made.sampler, device)
        except NotSupported as error:
            if config.device != "auto":
                raise
            log.warning("%s is not used: %s", device, error)
    engine: InferenceEngine = load_engine(config, knows_frames=knows_frames)
    return SelectedEngine(engine, _sampler_for(engine), "cpu")


def _sampler_for(engine: InferenceEngine) -> LogitsSampler:
    """The sampler that reads what `engine` gives; torch is imported for its own engine alone."""
    if isinstance(engine, NativeEngine):
        return NativeSampler(engine)
    from lmprog.runtime.engine.torch_engine.sampler import TorchSampler

    return TorchSampler()


class InferenceEngine(Protocol):
    """What both engines are to the rest of the runtime."""

    @property
    def label(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def location(self) -> Path | None: ...
    @property
    def context_len(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def num_pages(self) -> int: ...
    @property
    def adapters(self) -> Mapping[str, str]: ...

    def forward(self, batch: Batch) -> Any: ...


def load_engine(
    config: RuntimeConfig, keep: bool = True, *, knows_frames: bool = False
) -> NativeEngine | TorchEngine:
    """The engine that `config` asks for. Raises ModelError where the model cannot be loaded,
    InvalidParameter where it cannot be as asked. `keep` leaves packed weights for the next start.
    `knows_frames`: see `native_plan`.
    """
    check_options(config, "processor")
    folder = locate(config.model)
    reason = why_not_native(config, folder)
    if reason is None:
        return _load_native(config, folder, keep, knows_frames)
    if config.engine == "native" or config.quantize is not None:
        name = "engine" if config.engine == "native" else "quantize"
        raise InvalidParameter(
            f"{name} = {getattr(config, name)!r} needs the native engine, which cannot run here: "
            f"{reason}",
            name=name,
            value=getattr(config, name),
        )
    if config.draft_model == OWN_LAYER:
        raise cannot_predict(f"the native engine computes it, which cannot run here: {reason}")
    require_torch(f"without the native engine ({reason}) lmprog")
    from lmprog.runtime.engine.torch_engine.engine import load_torch_engine

    return load_torch_engine(config, folder)


def why_not_native(config: RuntimeConfig, folder: Path | None) -> str | None:
    """Why the torch engine must run; None: it need not."""
    if config.engine == "torch":
        return "engine = 'torch' was asked for"
    if config.attention == "reference":
        return "attention = 'reference' was asked for, which computes with torch"
    if folder is not None and (unknown := _unknown(read_config(folder))) is not None:
        return unknown
    if native.library("engine") is None:
        return "no C++ compiler was found, or building failed"
    return None


def _unknown(described: Mapping[str, Any]) -> str | None:
    """Why the native engine cannot decode such a model, while another may; None: it can.

    What is wrong with a family that the torch decoder has as well is said when it is loaded: both
    know the same of it.
    """
    name = described["model_type"]
    if not is_native(name):
        return f"it does not know the architecture {name!r}"
    try:
        read_native_shape(described)
    except FeatureNotComputed as error:
        return str(error)
    except ModelError as error:
        return None if name in FAMILIES else str(error)
    return None


@dataclass(frozen=True, slots=True)
class NativePlan:
    """What the native engine loads for a configuration; nothing of the weights is read yet."""

    shape: ModelShape
    weight_type: str
    kv_dtype: str
    context_len: int
    num_pages: int
    page_bytes: int
    page_size: int
    states: StateSlots | None
    """None: it has no recurrent layers."""
    windows: WindowPool | None = None
    """None: all layers keep all positions."""

    @property
    def state_bytes(self) -> int:
        """Of all slots."""
        return 0 if self.states is None else self.states.num_slots * state_bytes(self.shape)


def native_plan(
    config: RuntimeConfig, folder: Path | None, *, knows_frames: bool = True
) -> NativePlan:
    """Raises ModelError, and InvalidParameter where it cannot be as asked. `knows_frames`: whether
    batches will say where pages of layers with windows lie.
    """
    shape, dtype = _described(config, folder)
    context_len = context_length(config, shape.context_len)
    kv_dtype, page_size = computable(config.kv_dtype or dtype), config.scheduler.page_size
    size = page_bytes(shape, kv_dtype, page_size)
    pages = num_pages(config, context_len, size)
    weight_type = config.quantize or quantized_type(config, folder) or dtype
    states = None
    if shape.recurrent is not None:
        states = state_slots(pages * size, pages * page_size, state_bytes(shape))
    plan = NativePlan(shape, weight_type, kv_dtype, context_len, pages, size, page_size, states)
    return replace(plan, windows=_windows(config, plan)) if knows_frames else plan


def _windows(config: RuntimeConfig, plan: NativePlan) -> WindowPool | None:
    """Memory in which layers with windows keep no more than these, as far as nobody goes on from
    what is behind them. None where all keep everything: no window is shorter than the context,
    several runtimes share pages, as pages of all layers, or a second tier would have pages of which
    nothing is left without their frames.
    """
    shape = plan.shape
    apart = layers_apart(shape)
    window = max((one for one in shape.windows if one is not None), default=0)
    is_short = plan.num_pages * plan.page_size < 2 * window
    if not apart or plan.states or window >= plan.context_len or is_short:
        return None
    frame = page_bytes(shape, plan.kv_dtype, plan.page_size, apart)
    is_all, has_tier = frame == plan.page_bytes, config.kv_disk_mb is not None
    if config.kv_store != "own" or (has_tier and is_all):
        return None
    return WindowPool(window, plan.num_pages, plan.page_bytes - frame, frame)


def _load_native(
    config: RuntimeConfig, folder: Path | None, keep: bool, knows_frames: bool
) -> NativeEngine:
    threads = config.threads or default_threads()
    plan = native_plan(config, folder, knows_frames=knows_frames)
    shape, weight_type = plan.shape, plan.weight_type
    if folder is None:
        packed = packed_random(shape, DUMMY_SEED, weight_type, threads)
    else:
        packed = packed_checkpoint(folder, shape, weight_type, threads, keep)
    made = NativeEngine(
        shape,
        packed,
        KvMemory(plan.kv_dtype, plan.page_size, plan.num_pages, plan.states, plan.windows),
        location=folder,
        context_len=plan.context_len,
        threads=threads,
    )
    if config.lora:
        from lmprog.runtime.engine.adapters.adapter_folder import load_adapters, packed_adapters

        made.take_adapters(packed_adapters(load_adapters(config, shape), shape))
    return made


def _described(config: RuntimeConfig, folder: Path | None) -> tuple[ModelShape, str]:
    """The model's shape, and the type it is computed in."""
    if folder is None:
        if config.draft_model == OWN_LAYER:
            raise cannot_predict(f"{config.model!r} has none")
        return dummy_shape(config.model), computable(config.dtype or "float32")
    described = read_config(folder)
    fast = frozenset({"bfloat16"} if best_path() in BF16_PATHS else ())
    shape = read_native_shape(described)
    if config.draft_model == OWN_LAYER:
        shape = with_predictor(shape, described)
    return shape, data_type(config, text_part(described), folder, fast)
