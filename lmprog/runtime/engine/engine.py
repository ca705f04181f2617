"""The engine: one model, its attention backend and its key/value memory. A batch in, logits out.

Decides what the configuration leaves open: threads, types, context length, number of pages. Knows
batches; it knows no request, no tree and no text. Nothing left of it imports torch.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter
from lmprog.runtime.engine.attention import (
    AttentionBackend,
    AttentionShape,
    make_attention,
    page_bytes,
)
from lmprog.runtime.engine.batch import Batch
from lmprog.runtime.engine.kv_pool import pages_that_fit
from lmprog.runtime.engine.model.decoder import Decoder
from lmprog.runtime.engine.model.locate import dummy_shape, locate
from lmprog.runtime.engine.model.shape import FAMILIES, ModelShape, read_config, read_shape
from lmprog.runtime.engine.model.weights import checkpoint_files, load_weights, random_weights

log = logging.getLogger("lmprog")

_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_USUAL_TOKENS = 65_536
"""Key/value memory is sized for so many tokens, or for eight whole contexts, where the
configuration is silent.
"""
_ALONE_PRODUCTS = 400_000_000
"""Multiplications of weights up to which one thread does a step: more of them gain nothing there,
and lose much where other processes want the cores, since each product then waits for the slowest
(docs/performance.md has the figures)."""
_ALONE_BYTES = 256 << 20
"""Weights beyond this are read faster by several threads, however few tokens meet them."""
_DUMMY_SEED = 0
_GIB = 1 << 30


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


class ModelEngine:
    """A loaded model with its key/value memory. One thread calls `forward`."""

    def __init__(
        self,
        loaded: Loaded,
        attention: AttentionBackend,
        shape: AttentionShape,
        num_pages: int,
        threads: Threads,
    ) -> None:
        self.location = loaded.location
        self.context_len = loaded.context_len
        self.vocab_size = loaded.model.vocab_size
        self.dtype = loaded.dtype
        self.shape = shape
        self.num_pages = num_pages
        self.attention = attention
        self._model = loaded.model
        self._threads = threads

    def forward(self, batch: Batch) -> torch.Tensor:
        """Computes the batch's tokens and keeps their keys and values in its slots. # [L, vocab]
        float32
        """
        self._threads.take(batch.num_tokens)
        with torch.inference_mode():
            return self._model.forward(batch, self.attention)


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


def load_engine(config: RuntimeConfig) -> ModelEngine:
    """The engine that `config` asks for. Raises ModelError where the model cannot be loaded,
    InvalidParameter where it cannot be as asked."""
    torch.set_num_threads(config.threads or default_threads())
    with torch.inference_mode():
        loaded = _load(config)
        threads = Threads(
            config.threads, loaded.num_weights, loaded.num_weights * loaded.dtype.itemsize
        )
        shape = loaded.model.attention_shape(
            _DTYPES[config.kv_dtype] if config.kv_dtype else loaded.dtype
        )
        page_size = config.scheduler.page_size
        num_pages = _num_pages(
            config, loaded.context_len, page_bytes(config.attention, shape, page_size)
        )
        attention = make_attention(config.attention, shape, num_pages, page_size, threads.most)
    return ModelEngine(loaded, attention, shape, num_pages, threads)


def default_threads() -> int:
    """OMP_NUM_THREADS, else the physical cores that this process may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    allowed = (
        os.sched_getaffinity(0)
        if hasattr(os, "sched_getaffinity")
        else set(range(os.cpu_count() or 1))
    )
    siblings = {_siblings(cpu) for cpu in allowed}
    return max(1, len(siblings))


def _siblings(cpu: int) -> str:
    """Names the core of a hardware thread: equal for the threads of one core."""
    try:
        return (
            Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
            .read_text()
            .strip()
        )
    except OSError:  # not Linux, or a sandbox that hides it: every thread counts as a core
        return str(cpu)


def _load(config: RuntimeConfig) -> Loaded:
    folder = locate(config.model)
    if folder is None:
        shape = dummy_shape(config.model)
        dtype = _computable(_DTYPES[config.dtype or "float32"])
        return _native(shape, None, _context_len(config, shape.context_len), dtype)
    described = read_config(folder)
    if described["model_type"] in FAMILIES:
        shape = read_shape(described)
        return _native(
            shape,
            folder,
            _context_len(config, shape.context_len),
            _dtype(config, described, folder),
        )
    # imports transformers: seconds that few models need
    from lmprog.runtime.engine.model.fallback import (
        Fallback,
        foreign_config,
    )
    from lmprog.runtime.engine.model.selfcheck import check

    foreign = foreign_config(folder)
    dtype = _dtype(config, described, folder)
    model = Fallback(folder, foreign, dtype)
    check(model, folder, dtype)
    return Loaded(model, folder, _context_len(config, model.context_len), dtype, model.num_weights)


def _native(shape: ModelShape, folder: Path | None, context_len: int, dtype: torch.dtype) -> Loaded:
    if folder is None:
        weights = random_weights(shape, dtype, _DUMMY_SEED)
    else:
        weights = load_weights(folder, shape, dtype)
    return Loaded(
        Decoder(shape, weights, context_len), folder, context_len, dtype, weights.num_weights
    )


def _context_len(config: RuntimeConfig, limit: int) -> int:
    wanted = limit if config.context_len is None else config.context_len
    if not 1 <= wanted <= limit:
        raise InvalidParameter(
            f"context_len = {wanted} is not possible: {config.model} was made for at most {limit} tokens",
            name="context_len",
            value=wanted,
            allowed=f"1 .. {limit}",
        )
    return wanted


def _dtype(config: RuntimeConfig, described: dict[str, Any], folder: Path) -> torch.dtype:
    """As asked; else float32, the exact and on processors the fastest type, while the model stays
    below a quarter of the free memory in it; else the checkpoint's own."""
    if config.dtype is not None:
        return _computable(_DTYPES[config.dtype])
    own = described.get("dtype") or described.get("torch_dtype") or "float32"
    dtype = _DTYPES.get(own, torch.float32)
    size = sum(path.stat().st_size for path in checkpoint_files(folder))
    return torch.float32 if size * 4 // dtype.itemsize <= free_memory() // 4 else _computable(dtype)


def _computable(dtype: torch.dtype) -> torch.dtype:
    """float16 becomes float32, which holds all of its numbers: torch multiplies float16 on
    processors a thousand times slower (0.2 s instead of 2 ms for a product of 256 x 256 x 1536
    numbers)."""
    if dtype != torch.float16:
        return dtype
    log.info("float16 is computed in float32 on this processor, with twice the memory")
    return torch.float32


def _num_pages(config: RuntimeConfig, context_len: int, bytes_per_page: int) -> int:
    page_size = config.scheduler.page_size
    if config.scheduler.num_pages:
        return config.scheduler.num_pages
    if config.kv_memory_mb is not None:
        return pages_that_fit(config.kv_memory_mb << 20, bytes_per_page)
    usual = -(-max(8 * context_len, _USUAL_TOKENS) // page_size)
    return min(usual, pages_that_fit(free_memory() // 4, bytes_per_page))


def free_memory() -> int:
    """Bytes that can be taken without swapping; 4 GiB where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 4 * _GIB
    return next(
        (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 4 * _GIB
    )
