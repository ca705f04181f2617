"""Which engine a configuration gets: a device's with its own sampler, the processor's, or that of
several processes together.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter, NotSupported
from lmprog.runtime.engine.adapters.adapter_list import refuse_adapters
from lmprog.runtime.engine.device.choice import chosen_device
from lmprog.runtime.engine.engine import InferenceEngine, load_engine
from lmprog.runtime.engine.machine.resources import require_torch
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.engine.native.sampler import NativeSampler
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest, StepResults

if TYPE_CHECKING:
    from lmprog.runtime.engine.sharded.rank_group import RankGroup

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


def select_engine(config: RuntimeConfig, ranks: RankGroup | None = None) -> SelectedEngine:
    """The engine that `config` asks for, loaded. With device "auto" a GPU that cannot run this
    model, or whose results are wrong, is left alone, and the log says why. `ranks` compute it
    together where `config.tp` asks for more than one; this process leads them.
    """
    if ranks is not None:
        refuse_adapters(config, "a model that several processes compute together (tp)")
        require_torch("a model that several processes compute together (tp)")
        from lmprog.runtime.engine.sharded.sharded_engine import load_sharded_engine

        sharded = load_sharded_engine(config, ranks)
        return SelectedEngine(sharded, sharded.sampler, sharded.device)
    if config.tp != 1:
        raise InvalidParameter(
            f"tp = {config.tp} is for a runtime, which starts the ranks",
            name="tp",
            value=config.tp,
        )
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
    _refuse_pools_of_devices(config)
    engine: InferenceEngine = load_engine(config)
    return SelectedEngine(engine, _sampler_for(engine), "cpu")


def _refuse_pools_of_devices(config: RuntimeConfig) -> None:
    """What says how a device's memory is used says nothing to the processor."""
    for name, usual in (("kv_pool", "fixed"), ("device_memory_fraction", None)):
        value = getattr(config, name)
        if value != usual:
            raise InvalidParameter(
                f"{name} = {value!r} is of a device; the processor's memory for keys and values is "
                "taken when it is first written, and kv_memory_mb bounds it",
                name=name,
                value=value,
                allowed=usual,
            )


def _sampler_for(engine: InferenceEngine) -> LogitsSampler:
    """The sampler that reads what `engine` gives; torch is imported for its own engine alone."""
    if isinstance(engine, NativeEngine):
        return NativeSampler(engine)
    from lmprog.runtime.engine.torch_engine.sampler import TorchSampler

    return TorchSampler()
