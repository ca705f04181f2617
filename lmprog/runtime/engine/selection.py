"""Which engine a configuration gets: a device's with its own sampler, or the processor's."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

from lmprog.config import RuntimeConfig
from lmprog.errors import NotSupported
from lmprog.runtime.engine.device.choice import chosen_device
from lmprog.runtime.engine.engine import InferenceEngine, load_engine
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.engine.native.sampler import NativeSampler
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest, StepResults

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


def select_engine(config: RuntimeConfig) -> SelectedEngine:
    """The engine that `config` asks for, loaded. With device "auto" a GPU that cannot run this
    model, or whose results are wrong, is left alone, and the log says why.
    """
    device = chosen_device(config.device)
    if device != "cpu":
        from lmprog.runtime.engine.device.loading import load_device_engine

        try:
            made = load_device_engine(config, device)
            return SelectedEngine(made, made.sampler, device)
        except NotSupported as error:
            if config.device != "auto":
                raise
            log.warning("%s is not used: %s", device, error)
    engine: InferenceEngine = load_engine(config)
    return SelectedEngine(engine, _sampler_for(engine), "cpu")


def _sampler_for(engine: InferenceEngine) -> LogitsSampler:
    """The sampler that reads what `engine` gives; torch is imported for its own engine alone."""
    if isinstance(engine, NativeEngine):
        return NativeSampler(engine)
    from lmprog.runtime.engine.sampler import TorchSampler

    return TorchSampler()
