"""Loads a model onto a device: what the configuration leaves open is decided here, and how much
memory is left for pages.

Weights go from their files through pinned memory to the device. What is left is measured while the
largest steps that a runtime may ask for are computed, on a pool just large enough for them: what
torch keeps of a step's memory is not free afterwards, so what is free then is what was free at the
peak. Raises NotSupported for models that have no kernels, no decoder of ours, or no place in the
device's memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.config_check import check_options
from lmprog.errors import NotSupported
from lmprog.runtime.engine.adapters.adapter_folder import load_adapters
from lmprog.runtime.engine.attention import AttentionShape
from lmprog.runtime.engine.attention.backend import Float8Scales, kept_scales
from lmprog.runtime.engine.device.attention_choice import (
    DeviceAttentionName,
    page_reader,
    right_attention,
)
from lmprog.runtime.engine.device.cuda_driver import CudaDriver
from lmprog.runtime.engine.device.device_decoder import DeviceAdapters, DeviceDecoder
from lmprog.runtime.engine.device.device_engine import DeviceEngine, DeviceModel
from lmprog.runtime.engine.device.device_memory import DeviceMemoryFull
from lmprog.runtime.engine.device.device_weights import (
    DeviceWeights,
    TransferredWeights,
    WeightReading,
    WeightTransfer,
    device_weights,
    quantized_weights,
)
from lmprog.runtime.engine.device.driver import Driver, KernelsKey, ProductKey
from lmprog.runtime.engine.device.emulated_driver import EmulatedDriver, emulated_kernels
from lmprog.runtime.engine.device.evidence import require_right_kernels
from lmprog.runtime.engine.device.kernels import Kernels
from lmprog.runtime.engine.device.products import WeightKind
from lmprog.runtime.engine.device.sampling import DeviceSampler
from lmprog.runtime.engine.device.tree_attention import TreeAttention, module_key
from lmprog.runtime.engine.machine.resources import pages_that_fit
from lmprog.runtime.engine.model.families import device_families, read_native_shape
from lmprog.runtime.engine.model.locate import DUMMY_SEED, dummy_shape, locate
from lmprog.runtime.engine.model.quantization import read_quantization
from lmprog.runtime.engine.model.resolution import context_length, quantized_type
from lmprog.runtime.engine.model.shape import ModelShape, read_config
from lmprog.runtime.engine.model.stored_weights import weight_source
from lmprog.runtime.engine.torch_engine.adapted_decoder import fused_adapter
from lmprog.runtime.engine.torch_engine.decoder import layer_attention
from lmprog.runtime.engine.torch_engine.weights import (
    ReadFloat8,
    float8_reader,
    fused,
    weight_reader,
)
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest
from lmprog.wire import SamplingParams

log = logging.getLogger("lmprog")

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_EMULATED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class AskedModel:
    """A model as it shall be loaded."""

    folder: Path | None
    shape: ModelShape
    """Of what this process computes: the whole model, or its part."""
    dtype: torch.dtype
    context_len: int
    attention_name: DeviceAttentionName | None
    """None: whichever is right."""
    weight_kind: WeightKind | None = None
    """None: weights are of `dtype`."""
    float8: Float8Scales | None = None
    """None: keys and values are kept as `dtype`."""

    @property
    def attention(self) -> AttentionShape:
        """With sinks of 0 until the weights are there."""
        shape = self.shape
        sinks = torch.zeros(shape.num_heads) if shape.sinks else None
        return AttentionShape(
            layers=layer_attention(shape, [sinks] * shape.num_layers),
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            v_head_dim=shape.head_dim,
            dtype=self.dtype,
            float8=self.float8,
        )


def _rounded(count: int) -> int:
    return 1 << (count - 1).bit_length()


class OpenedDevice:
    """A device with the kernels for a model, which is not there yet."""

    def __init__(self, config: RuntimeConfig, asked: AskedModel, device: str) -> None:
        """`device` as `chosen_device` names it."""
        key = module_key(asked.attention)
        products = None if asked.weight_kind is None else ProductKey(key.type_name)
        self.driver = open_driver(device, *(one for one in (key, products) if one is not None))
        self.kernels = Kernels(self.driver, key, products)
        self.budget = _rounded(max(8, config.scheduler.token_budget))
        """The most tokens of a step."""
        self._config, self._asked = config, asked
        self._attention_name: DeviceAttentionName = asked.attention_name or "tree"
        if isinstance(self.driver, CudaDriver):
            require_right_kernels(self.kernels, self.driver.name)
            self._attention_name = right_attention(
                self.driver, key, asked.attention, asked.attention_name, self.driver.name
            )

    def num_pages(self, decoder: DeviceDecoder | None = None) -> int:
        """As many as the configuration says; else those for which there is memory beside what has
        been loaded and, where a `decoder` is given to try them, the largest steps. Raises
        NotSupported where these have no place.
        """
        config, driver = self._config, self.driver
        page_bytes = TreeAttention.page_bytes(self._asked.attention, config.scheduler.page_size)
        if config.scheduler.num_pages:
            return config.scheduler.num_pages
        if config.kv_memory_mb is not None:
            return pages_that_fit(config.kv_memory_mb << 20, page_bytes)
        driver.trim()
        info = driver.memory_info()
        if info is None:
            return pages_that_fit(_EMULATED_BYTES, page_bytes)
        fraction = config.device_memory_fraction or USUAL_FRACTION
        if decoder is None:
            return pages_that_fit(int(info.free * fraction), page_bytes)
        sizes = StepSizes.of(config.scheduler, self._asked.context_len)
        trial = self.engine(decoder, sizes.num_pages)
        found = pages_in(free_beside(trial, sizes), fraction, trial, sizes)
        log.info("%d pages of keys and values fit beside the largest step", found)
        return found

    def engine(
        self, decoder: DeviceDecoder, num_pages: int, is_captured: bool = True
    ) -> DeviceEngine:
        """With `decoder`, which was made for these kernels."""
        asked, config = self._asked, self._config
        decoder.most_logits = max(decoder.most_logits, _rounded(config.scheduler.max_rows))
        decoder.make_room(config.scheduler.max_rows)
        shape = replace(asked.attention, layers=layer_attention(asked.shape, decoder.sinks))
        reader = page_reader(self._attention_name, shape, self.driver.device)
        page_size = config.scheduler.page_size
        attention = TreeAttention(
            self.kernels,
            shape,
            num_pages,
            page_size,
            self.budget,
            reader,
            is_virtual=config.kv_pool == "virtual",
        )
        model = DeviceModel(
            decoder,
            attention,
            self._attention_name,
            asked.folder,
            asked.context_len,
            asked.weight_kind or str(asked.dtype).removeprefix("torch."),
            num_pages,
            is_captured,
        )
        sampler = DeviceSampler(self.kernels, asked.shape.vocab_size)
        return DeviceEngine(self.driver, model, sampler)


def load_device_engine(config: RuntimeConfig, device: str) -> DeviceEngine:
    """The engine that `config` asks for on `device`, as `chosen_device` names it."""
    asked = asked_model(config)
    opened = OpenedDevice(config, asked, device)
    try:
        with torch.inference_mode():
            decoder = DeviceDecoder(
                opened.kernels,
                asked.shape,
                _weights(asked, opened.driver),
                asked.context_len,
                opened.budget,
            )
            if config.lora:
                decoder.adapters = _adapters(config, asked, opened.driver)
            pages = opened.num_pages(decoder)
            opened.driver.trim()
            return opened.engine(decoder, pages)
    except (DeviceMemoryFull, torch.OutOfMemoryError) as error:
        raise NotSupported(
            f"{config.model} with its largest step ({opened.budget} tokens, "
            f"{config.scheduler.max_rows} rows) does not fit on {device}: {error}. Lower "
            "token_budget, max_rows or num_pages, or choose a smaller model"
        ) from error


def _adapters(config: RuntimeConfig, asked: AskedModel, driver: Driver) -> DeviceAdapters:
    """Norms are not folded into small weights."""
    found = load_adapters(config, asked.shape)
    is_small = asked.weight_kind is not None
    read = None if is_small else weight_reader(asked.folder, asked.shape, DUMMY_SEED)
    parts = [fused_adapter(one, asked.shape, read) for one in found]
    return DeviceAdapters(driver, parts, {one.name: one.digest for one in found})


def _weights(asked: AskedModel, driver: Driver) -> DeviceWeights:
    folder, shape, dtype = asked.folder, asked.shape, asked.dtype
    transfer = WeightTransfer(driver)
    source = TransferredWeights(weight_source(folder, shape, DUMMY_SEED), transfer)
    if asked.weight_kind is not None:
        read_float8: ReadFloat8 = _no_float8 if folder is None else float8_reader(folder, shape)
        reading = WeightReading(source.read, read_float8, transfer, asked.weight_kind, dtype)
        return quantized_weights(shape, reading, driver)
    progress = None if folder is not None else False
    return device_weights(fused(shape, dtype, source.read, progress, transfer.kept), driver)


def _no_float8(name: str) -> None:
    return None


def open_driver(device: str, *keys: KernelsKey) -> Driver:
    """The kernels of `keys` on `device`, as `chosen_device` names it."""
    if device == "emulated":
        return EmulatedDriver(emulated_kernels(*keys))
    return CudaDriver(int(device.partition(":")[2]), *keys)


def asked_model(config: RuntimeConfig) -> AskedModel:
    """The whole model, as `config` wants it on a device."""
    check_options(config, "device")
    folder = locate(config.model)
    if folder is None:
        shape, own = dummy_shape(config.model), "float32"
    else:
        described = read_config(folder)
        families = device_families()
        if described["model_type"] not in families:
            raise NotSupported(
                f"{config.model} is a {described['model_type']}: on a device there are "
                f"{', '.join(families)}; device='cpu' can run others"
            )
        shape = read_native_shape(described)
        own = described.get("dtype") or described.get("torch_dtype") or "float32"
    assert config.attention != "native", "it is of the processor"
    name = config.dtype or own
    if config.kv_dtype not in (None, name, "fp8"):
        raise NotSupported(
            f"kv_dtype = {config.kv_dtype!r}: on a device keys and values are kept in the model's "
            f"type, {name}, or as fp8"
        )
    return AskedModel(
        folder,
        shape,
        _DTYPES.get(name, torch.float32),
        context_length(config, shape.context_len),
        config.attention,
        _weight_kind(config, folder, shape),
        kept_scales(folder, len(shape.windows)) if config.kv_dtype == "fp8" else None,
    )


def _weight_kind(
    config: RuntimeConfig, folder: Path | None, shape: ModelShape
) -> WeightKind | None:
    """As the processor decides it; weights that are stored as floats of 8 bits stay so here. Those
    of mixtures become the model's type, for which there are products.
    """
    if shape.mixture is not None:
        return config.quantize
    kind = config.quantize or quantized_type(config, folder)
    if kind is not None or config.dtype is not None or folder is None or folder.is_file():
        return kind
    how = read_quantization(read_config(folder))
    return None if how is None else "fp8"


# --- how many pages there is memory for -----------------------------------------------------------

USUAL_FRACTION = 0.9
"""Of what is left; the rest is for graphs, which come later, and for others."""
_TOP = 20
"""Of the most likely tokens, which a request may ask for."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The most tokens and rows of a step, and tokens of a row."""

    tokens: int
    rows: int
    row_tokens: int
    page_size: int

    @staticmethod
    def of(config: SchedulerConfig, context_len: int) -> StepSizes:
        rows = min(config.max_rows, config.token_budget)
        row_tokens = min(context_len, config.max_chunk or context_len)
        return StepSizes(
            min(config.token_budget, rows * row_tokens), rows, row_tokens, config.page_size
        )

    @property
    def num_pages(self) -> int:
        """That the largest step takes, at most."""
        return self.tokens // self.page_size + self.rows


def largest_steps(sizes: StepSizes) -> Iterator[Batch]:
    """As many tokens as there may be, in few rows, every logit wanted, as for scores; and as many
    rows of one token.
    """
    full, rest = divmod(sizes.tokens, sizes.row_tokens)
    yield _batch([sizes.row_tokens] * full + [rest] * bool(rest), sizes.page_size)
    yield _batch([1] * sizes.rows, sizes.page_size)


def free_beside(engine: DeviceEngine, sizes: StepSizes) -> int:
    """Bytes that are left for pages beside the largest steps. Raises DeviceMemoryFull where they do
    not fit.
    """
    asked = SamplingParams(temperature=1.0, logprobs=_TOP)
    for batch in largest_steps(sizes):
        logits = engine.forward(batch)
        picks = tuple(SampleRequest(row, asked, 0, 0) for row in range(batch.num_rows))
        score = ScoreRequest(0, (0,) * len(batch.logit_tokens), _TOP)
        engine.sampler.sample(logits, picks, (score,))
    engine.finish()
    info = engine.driver.memory_info()
    assert info is not None, "a device without a bound is not measured"
    return info.free + engine.attention.pages.mapped_bytes


def pages_in(free: int, fraction: float, engine: DeviceEngine, sizes: StepSizes) -> int:
    """How many pages `fraction` of `free` bytes hold. Raises NotSupported where they are fewer than
    the largest step takes.
    """
    each, least = engine.attention.bytes_per_page, sizes.num_pages
    found = int(free * fraction) // each
    if found < least:
        raise NotSupported(
            f"beside the model and its largest step ({sizes.tokens} tokens, {sizes.rows} rows) "
            f"{_mib(free)} of the device's memory are left, {fraction:g} of it for keys and "
            f"values; these take {_mib(least * each)} in one step. Lower token_budget or max_rows, "
            "or choose a smaller model"
        )
    return found


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.1f} MiB"


def _batch(counts: list[int], page_size: int) -> Batch:
    """Rows of so many first tokens, each on pages of its own."""

    def ints(values: object) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        return np.ascontiguousarray(np.array(values, np.int32))

    positions = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    used = [-(-count // page_size) for count in counts]
    page_starts, row_starts = ints([0, *np.cumsum(used)]), ints([0, *np.cumsum(counts)])
    first_slots = np.repeat(page_starts[:-1] * page_size, counts)
    each = np.arange(len(positions), dtype=np.int32)
    return Batch(
        tokens=np.zeros(len(positions), np.int32),
        positions=positions,
        row_starts=row_starts,
        kv_lens=ints(counts),
        page_starts=page_starts,
        pages=np.arange(page_starts[-1], dtype=np.int32),
        write_tokens=each,
        write_slots=(first_slots + positions).astype(np.int32),
        copies=np.zeros((0, 2), np.int32),
        logit_tokens=each,
        page_size=page_size,
    )
