"""Loads a model onto a device: what the configuration leaves open is decided here.

Weights are read on the processor and moved layer by layer. Raises NotSupported for models that have
no kernels or no decoder of ours.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter, NotSupported
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.engine.device.attention_choice import (
    NAMES,
    DeviceAttentionName,
    page_reader,
    right_attention,
)
from lmprog.runtime.engine.device.cuda_driver import CudaDriver
from lmprog.runtime.engine.device.device_decoder import DeviceDecoder
from lmprog.runtime.engine.device.device_engine import DeviceEngine, DeviceModel
from lmprog.runtime.engine.device.driver import Driver, ModuleKey
from lmprog.runtime.engine.device.emulated_driver import EmulatedDriver, emulated_kernels
from lmprog.runtime.engine.device.kernels import Kernels
from lmprog.runtime.engine.device.sampling import DeviceSampler
from lmprog.runtime.engine.device.tree_attention import TreeAttention, module_key
from lmprog.runtime.engine.model.locate import DUMMY_SEED, dummy_shape, locate
from lmprog.runtime.engine.model.shape import FAMILIES, ModelShape, read_config, read_shape
from lmprog.runtime.engine.model.weights import load_weights, random_weights
from lmprog.runtime.engine.region import pages_that_fit
from lmprog.runtime.engine.resolution import context_length

log = logging.getLogger("lmprog")

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_EMULATED_BYTES = 16 << 20
_SPARE = 0.1
"""Of a GPU's free memory, left to torch and others when pages take the rest."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A model as it shall be loaded."""

    folder: Path | None
    shape: ModelShape
    dtype: torch.dtype
    context_len: int
    attention_name: DeviceAttentionName | None
    """None: whichever is right."""

    @property
    def attention(self) -> AttentionShape:
        shape = self.shape
        scale = shape.head_dim**-0.5
        return AttentionShape(
            layers=tuple(LayerAttention(scale, window) for window in shape.windows),
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            v_head_dim=shape.head_dim,
            dtype=self.dtype,
        )


def load_device_engine(config: RuntimeConfig, device: str) -> DeviceEngine:
    """The engine that `config` asks for on `device`, as `chosen_device` names it."""
    asked = _asked(config)
    key = module_key(asked.attention)
    driver = open_driver(device, key)
    name = asked.attention_name or "tree"
    if isinstance(driver, CudaDriver):
        name = right_attention(driver, key, asked.attention, asked.attention_name, driver.name)
    with torch.inference_mode():
        return _loaded(config, asked, driver, key, name)


def open_driver(device: str, key: ModuleKey) -> Driver:
    """The kernels of `key` on `device`, as `chosen_device` names it."""
    if device == "emulated":
        return EmulatedDriver(emulated_kernels(key))
    return CudaDriver(int(device.partition(":")[2]), key)


def _loaded(
    config: RuntimeConfig,
    asked: _Asked,
    driver: Driver,
    key: ModuleKey,
    attention_name: DeviceAttentionName,
) -> DeviceEngine:
    kernels = Kernels(driver, key)
    budget = 1 << (max(8, config.scheduler.token_budget) - 1).bit_length()
    if asked.folder is None:
        weights = random_weights(asked.shape, asked.dtype, DUMMY_SEED)
    else:
        weights = load_weights(asked.folder, asked.shape, asked.dtype)
    decoder = DeviceDecoder(kernels, asked.shape, weights, asked.context_len, budget)
    decoder.make_room(config.scheduler.max_rows)
    page_size = config.scheduler.page_size
    num_pages = _num_pages(config, driver, TreeAttention.page_bytes(asked.attention, page_size))
    reader = page_reader(attention_name, asked.attention, driver.device)
    attention = TreeAttention(kernels, asked.attention, num_pages, page_size, budget, reader)
    model = DeviceModel(
        decoder,
        attention,
        attention_name,
        asked.folder,
        asked.context_len,
        asked.dtype,
        num_pages,
    )
    return DeviceEngine(driver, model, DeviceSampler(kernels, asked.shape.vocab_size))


def _asked(config: RuntimeConfig) -> _Asked:
    folder = locate(config.model)
    if folder is None:
        shape, own = dummy_shape(config.model), "float32"
    else:
        described = read_config(folder)
        if described["model_type"] not in FAMILIES:
            raise NotSupported(
                f"{config.model} is a {described['model_type']}: on a device there are "
                f"{', '.join(FAMILIES)}; device='cpu' can run others"
            )
        shape = read_shape(described)
        own = described.get("dtype") or described.get("torch_dtype") or "float32"
    allowed = ", ".join(NAMES)
    if config.attention not in (None, *NAMES):
        raise InvalidParameter(
            f"attention = {config.attention!r} is of the processor; a device has {allowed}",
            name="attention",
            value=config.attention,
            allowed=allowed,
        )
    for field in ("engine", "quantize"):
        if getattr(config, field) is not None:
            raise InvalidParameter(
                f"{field} = {getattr(config, field)!r} is of the processor; a device has none",
                name=field,
                value=getattr(config, field),
            )
    name = config.dtype or own
    if config.kv_dtype not in (None, name):
        raise NotSupported(f"on a device keys and values are kept in the model's type, {name}")
    return _Asked(
        folder,
        shape,
        _DTYPES.get(name, torch.float32),
        context_length(config, shape.context_len),
        config.attention,
    )


def _num_pages(config: RuntimeConfig, driver: Driver, page_bytes: int) -> int:
    if config.scheduler.num_pages:
        return config.scheduler.num_pages
    if config.kv_memory_mb is not None:
        return pages_that_fit(config.kv_memory_mb << 20, page_bytes)
    if driver.device.type == "cpu":
        return pages_that_fit(_EMULATED_BYTES, page_bytes)
    free, _ = torch.cuda.mem_get_info(driver.device)
    return pages_that_fit(int(free * (1 - _SPARE)), page_bytes)
