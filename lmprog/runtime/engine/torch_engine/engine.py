"""The engine on torch: a decoder or a model of transformers, an attention backend and its memory.

The judge of the native engine, and what runs where that one knows no model or has no compiler.
Knows batches; it knows no request, no tree and no text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter
from lmprog.runtime.engine.adapters.adapter_folder import Adapter, load_adapters
from lmprog.runtime.engine.attention import (
    AttentionBackend,
    AttentionShape,
    make_attention,
    page_bytes,
)
from lmprog.runtime.engine.attention.backend import kept_scales
from lmprog.runtime.engine.machine.resources import default_threads
from lmprog.runtime.engine.model.locate import DUMMY_SEED, dummy_shape
from lmprog.runtime.engine.model.resolution import (
    StateSlots,
    computable,
    context_length,
    data_type,
    num_pages,
    state_slots,
)
from lmprog.runtime.engine.model.rope import FeatureNotComputed
from lmprog.runtime.engine.model.shape import FAMILIES, ModelShape, read_config, read_shape
from lmprog.runtime.engine.torch_engine.adapted_decoder import AdaptedDecoder, fused_adapter
from lmprog.runtime.engine.torch_engine.decoder import Decoder
from lmprog.runtime.engine.torch_engine.weights import load_weights, random_weights, weight_reader
from lmprog.runtime.scheduling.batch import Batch

if TYPE_CHECKING:
    from lmprog.runtime.engine.torch_engine.recurrent_layers import RecurrentLayers

log = logging.getLogger("lmprog")

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_KV_DTYPES = DTYPES | {"int8": torch.int8}
"""What keys and values are kept as, without a scale or each with its own."""
_ALONE_PRODUCTS = 400_000_000
"""Multiplications of weights up to which one thread does a step: more of them gain nothing there,
and lose much where other processes want the cores, since each product then waits for the slowest
(docs/performance.md has the figures)."""
_ALONE_BYTES = 256 << 20
"""Weights beyond this are read faster by several threads, however few tokens meet them."""


class Model(Protocol):
    """What computes logits: the native decoder, or the fallback through transformers."""

    @property
    def vocab_size(self) -> int: ...

    def attention_shape(self, kv_dtype: torch.dtype) -> AttentionShape: ...

    def forward(self, batch: Batch, attention: AttentionBackend) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, and what the engine still has to know of it."""

    model: Model
    location: Path | None
    """The checkpoint's folder; None for a dummy, which has no files and speaks bytes."""
    context_len: int
    dtype: torch.dtype
    num_weights: int
    adapters: tuple[Adapter, ...] = ()
    recurrent: RecurrentLayers | None = None
    """None: it has no recurrent layers."""


class TorchEngine:
    """A loaded model with its key/value memory. One thread calls `forward`."""

    name = "torch"

    def __init__(
        self,
        loaded: Loaded,
        attention: AttentionBackend,
        shape: AttentionShape,
        num_pages: int,
        threads: Threads,
        states: StateSlots | None = None,
    ) -> None:
        """`states`: slots of the model's recurrent layers, which have them already."""
        self.states = states
        self.location = loaded.location
        self.context_len = loaded.context_len
        self.vocab_size = loaded.model.vocab_size
        self.dtype = type_name(loaded.dtype)
        self.shape = shape
        self.num_pages = num_pages
        self.attention = attention
        self.adapters = {one.name: one.digest for one in loaded.adapters}
        """By name; rows' numbers count them from 1 on."""
        self._model = loaded.model
        self._threads = threads

    @property
    def kv_dtype(self) -> str:
        return type_name(self.shape.kept)

    @property
    def label(self) -> str:
        """For people."""
        kernels = type(self.attention).__name__.removesuffix("Attention").lower()
        return f"torch, {kernels} attention"

    def forward(self, batch: Batch) -> torch.Tensor:
        """Computes the batch's tokens and keeps their keys and values in its slots. # [L, vocab]
        float32
        """
        self._threads.take(batch.num_tokens)
        with torch.inference_mode():
            return self._model.forward(batch, self.attention)

    def finish(self) -> None:
        """Returns when all steps are computed: each is, when `forward` returns."""


def type_name(dtype: torch.dtype) -> str:
    """As configurations and fingerprints spell it."""
    return str(dtype).removeprefix("torch.")


class Threads:
    """How many threads torch takes for a step: one for little work, all for more, or always those
    asked for.
    """

    def __init__(self, asked: int | None, num_weights: int, num_bytes: int) -> None:
        self.most = asked or default_threads()
        large = asked is not None or num_bytes > _ALONE_BYTES
        self._alone = 0 if large else _ALONE_PRODUCTS // max(1, num_weights)
        """Tokens of a step up to which one thread does it."""
        torch.set_num_threads(self.most)

    def take(self, num_tokens: int) -> None:
        """Sets them, for the thread that calls. 2 us."""
        torch.set_num_threads(1 if num_tokens <= self._alone else self.most)


def load_torch_engine(config: RuntimeConfig, folder: Path | None) -> TorchEngine:
    """The engine for the checkpoint in `folder`, or for a dummy. Raises ModelError where the model
    cannot be loaded, InvalidParameter where it cannot be as asked.
    """
    torch.set_num_threads(config.threads or default_threads())
    with torch.inference_mode():
        loaded = _load(config, folder)
        threads = Threads(
            config.threads, loaded.num_weights, loaded.num_weights * loaded.dtype.itemsize
        )
        shape = attention_shape(loaded, config.kv_dtype)
        page_size = config.scheduler.page_size
        pages = num_pages(
            config, loaded.context_len, page_bytes(config.attention, shape, page_size)
        )
        states = None
        if loaded.recurrent:
            states = state_slots(
                pages * page_bytes(config.attention, shape, page_size),
                pages * page_size,
                loaded.recurrent.state_bytes,
            )
            loaded.recurrent.take_slots(states.num_slots)
        attention = make_attention(config.attention, shape, pages, page_size, threads.most)
    return TorchEngine(loaded, attention, shape, pages, threads, states)


def attention_shape(loaded: Loaded, kv_dtype: str | None) -> AttentionShape:
    """With keys and values kept as `kv_dtype` says; None: as the model's type."""
    if kv_dtype != "fp8":
        kept = loaded.dtype if kv_dtype is None else _KV_DTYPES[kv_dtype]
        return loaded.model.attention_shape(kept)
    shape = loaded.model.attention_shape(loaded.dtype)
    return replace(shape, float8=kept_scales(loaded.location, len(shape.layers)))


def _load(config: RuntimeConfig, folder: Path | None) -> Loaded:
    if folder is None:
        shape = dummy_shape(config.model)
        dtype = DTYPES[computable(config.dtype or "float32")]
        return _native(config, shape, None, dtype)
    described = read_config(folder)
    own = _own_shape(described, folder)
    if own is not None:
        dtype = DTYPES[data_type(config, described, folder, frozenset())]
        return _native(config, own, folder, dtype)
    if config.lora:
        raise InvalidParameter(
            f"lora = {config.lora[0]!r} is not possible here: the way through transformers "
            "computes no adapters",
            name="lora",
            value=config.lora[0],
        )
    # imports transformers: seconds that few models need
    from lmprog.runtime.engine.torch_engine.fallback import (
        Fallback,
        check,
        foreign_config,
    )

    foreign = foreign_config(folder)
    dtype = DTYPES[data_type(config, described, folder, frozenset())]
    model = Fallback(folder, foreign, dtype)
    model.recurrent.take_slots(1)  # the check computes one sequence
    check(model, folder, dtype)
    return Loaded(
        model,
        folder,
        context_length(config, model.context_len),
        dtype,
        model.num_weights,
        recurrent=model.recurrent or None,
    )


def computed_by(folder: Path | None) -> str:
    """Whose decoder computes it. Raises ModelError for what its config says that none does."""
    if folder is None or _own_shape(read_config(folder), folder) is not None:
        return "lmprog's own decoder"
    from lmprog.runtime.engine.torch_engine.fallback import RECURRENT, foreign_config

    config = foreign_config(folder)
    if config.model_type in RECURRENT:
        return "transformers, with recurrent layers (without adapters and a second tier)"
    return "transformers"


def _own_shape(described: Mapping[str, Any], location: Path) -> ModelShape | None:
    """The shape for our decoder; None for what transformers must compute."""
    if described["model_type"] not in FAMILIES:
        return None
    try:
        return read_shape(described)
    except FeatureNotComputed as error:
        if location.is_file():  # transformers reads folders
            raise
        log.info("%s is computed by transformers: %s", location, error)
        return None


def _native(
    config: RuntimeConfig, shape: ModelShape, folder: Path | None, dtype: torch.dtype
) -> Loaded:
    """With our decoder; `folder` None: random weights."""
    context_len = context_length(config, shape.context_len)
    if folder is None:
        weights = random_weights(shape, dtype, DUMMY_SEED)
    else:
        weights = load_weights(folder, shape, dtype)
    decoder, adapters = Decoder(shape, weights, context_len), load_adapters(config, shape)
    if adapters:
        read = weight_reader(folder, shape, DUMMY_SEED)
        parts = [fused_adapter(one, shape, read) for one in adapters]
        decoder = AdaptedDecoder(shape, weights, context_len, parts)
    return Loaded(decoder, folder, context_len, dtype, weights.num_weights, adapters)
