"""Attention by our C++ kernels (`kernels/include/lmprog_attention.h`), which read the pages in
place.

Knows tensors, the C interface and the memory of one process. It does not know how a block of slots
is laid out, nor how the work is shared among threads: the kernels do. Results do not depend on the
other rows of a batch, on chunks of a prompt, on threads or on page numbers; the header says what
exactly is guaranteed.

Keys and values are kept in float32, bfloat16, or int8 with scales. For float16 they are kept in
float32: bfloat16 would lose three of its bits, and processors compute in float32 anyway.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_void_p

import numpy as np
import torch
from numpy.typing import NDArray

from lmprog.errors import NotSupported
from lmprog.native import library, may_await_threads
from lmprog.runtime.engine.attention.backend import (
    AttentionShape,
    HeadSizes,
    KvPool,
    LayerAttention,
)
from lmprog.runtime.engine.machine.resources import aligned
from lmprog.runtime.engine.native.interface import (
    PATHS,
    CAttentionBatch,
    CAttentionLayer,
    CAttentionShape,
    declare,
    declare_attention,
)
from lmprog.runtime.scheduling.batch import Batch, Ints

_TYPES = {torch.float32: 0, torch.bfloat16: 1}
_KEPT = _TYPES | {torch.int8: 3}
"""What memory holds; the kernels read and give `_TYPES`."""


class _Array(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("stride", c_int64), ("type", c_int32))


class NativeAttention:
    """See `AttentionBackend` for the contract. `threads` counts the caller's own; with 1 none is
    started.

    `path` names one of `PATHS` (None: the best of this processor); `share_prefixes=False` reads a
    prefix once for each row that stands on it, which gives the same numbers.
    """

    def __init__(
        self,
        shape: AttentionShape,
        num_pages: int,
        page_size: int,
        threads: int = 1,
        *,
        path: str | None = None,
        share_prefixes: bool = True,
    ) -> None:
        self.shape = shape
        self.page_size = page_size
        self._library = _opened()
        self._share_prefixes = share_prefixes
        self._shapes = _c_shapes(shape, page_size)
        self._sinks = [_sinks(layer) for layer in shape.layers]
        self._layers = [
            _c_layer(layer, sinks) for layer, sinks in zip(shape.layers, self._sinks, strict=True)
        ]
        self._pid = os.getpid()
        self._handle = self._open(threads, path)
        sizes = [_kv_bytes(self._shapes[layer], num_pages * page_size) for layer in shape.keeping]
        pool = KvPool(sum(aligned(size) for both in sizes for size in both))
        self.memory = [
            (pool.take((keys,), torch.uint8), pool.take((values,), torch.uint8))
            for keys, values in sizes
        ]
        """Keys and values of each layer that has its own."""
        own = {
            layer: (c_void_p(keys.data_ptr()), c_void_p(values.data_ptr()))
            for layer, (keys, values) in zip(shape.keeping, self.memory, strict=True)
        }
        self._pointers = [
            own[at if layer.source is None else layer.source]
            for at, layer in enumerate(shape.layers)
        ]
        self._batch: CAttentionBatch | None = None
        self._held: tuple[object, ...] = ()  # arrays that the C batch points into

    def _open(self, threads: int, path: str | None) -> c_void_p:
        wanted = path or os.environ.get("LMPROG_ATTENTION_PATH")
        handle = self._library.lmprog_attention_open(
            threads, None if wanted is None else wanted.encode()
        )
        if not handle:
            raise NotSupported(
                f"attention cannot run with {threads} threads on the path {wanted!r}: "
                f"there are {', '.join(PATHS)}, and this processor may lack some of them"
            )
        return c_void_p(handle)

    @staticmethod
    def page_bytes(shape: AttentionShape, page_size: int) -> int:
        """Memory of one page over all layers, known before a backend is made."""
        shapes, pages = _c_shapes(shape, page_size), 16  # whole blocks of slots for every page size
        each = (_kv_bytes(shapes[layer], pages * page_size) for layer in shape.keeping)
        return sum(keys + values for keys, values in each) // pages

    @property
    def bytes_per_page(self) -> int:
        return self.page_bytes(self.shape, self.page_size)

    @property
    def path(self) -> str:
        """The instruction set in use, one of `PATHS`."""
        name: bytes = self._library.lmprog_attention_path(self._handle)
        return name.decode()

    def plan(self, batch: Batch) -> None:
        if batch.page_size != self.page_size:
            raise ValueError(
                f"the batch has pages of {batch.page_size} slots, the memory of {self.page_size}"
            )
        if len(batch.copies):
            for layer in self.shape.keeping:
                self._library.lmprog_attention_copy(
                    byref(self._shapes[layer]),
                    *self._pointers[layer],
                    _pointer(batch.copies),
                    len(batch.copies),
                )
        self._batch = CAttentionBatch(
            num_rows=batch.num_rows,
            num_writes=len(batch.write_tokens),
            row_starts=_pointer(batch.row_starts),
            kv_lens=_pointer(batch.kv_lens),
            page_starts=_pointer(batch.page_starts),
            pages=_pointer(batch.pages),
            write_tokens=_pointer(batch.write_tokens),
            write_slots=_pointer(batch.write_slots),
        )
        self._held = (batch,)
        if self._share_prefixes and batch.num_rows > 1:
            order, common = np.empty(batch.num_rows, np.int32), np.empty(batch.num_rows, np.int32)
            self._library.lmprog_attention_group(
                byref(self._batch), self.page_size, _pointer(order), _pointer(common)
            )
            self._batch.order, self._batch.common = _pointer(order), _pointer(common)
            self._held = (batch, order, common)

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch = self._batch
        assert batch is not None, "plan() comes before run()"
        kept, (keys, values) = q.dtype, self._pointers[layer]
        opened, shape, at = self._library, byref(self._shapes[layer]), byref(batch)
        q, sizes = _readable(q), self._shapes[layer]
        out = torch.empty(q.shape[0], sizes.num_heads, sizes.v_head_dim, dtype=q.dtype)
        if self.shape.layers[layer].source is None:
            k, v = _readable(k), _readable(v.to(k.dtype))
            kv = _array(k), _array(v)
            opened.lmprog_attention_write(self._handle, shape, at, keys, values, *kv)
        opened.lmprog_attention_attend(
            self._handle,
            shape,
            byref(self._layers[layer]),
            at,
            keys,
            values,
            _array(q),
            _array(out),
        )
        return out.to(kept)

    def close(self) -> None:
        """Stops the threads. The backend cannot be used afterwards."""
        if self._handle:
            self._library.lmprog_attention_close(self._handle)
            self._handle = c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and may_await_threads(self._pid):
            self.close()


def _opened() -> ctypes.CDLL:
    opened = library("attention")
    if opened is None:
        raise NotSupported(
            "native attention needs a C++ compiler; the reference backend needs none"
        )
    declare_attention(opened)
    declare(opened, "lmprog_attention_open", c_void_p, c_int32, c_char_p)
    declare(opened, "lmprog_attention_path", c_char_p, c_void_p)
    declare(opened, "lmprog_attention_close", None, c_void_p)
    shape, batch = POINTER(CAttentionShape), POINTER(CAttentionBatch)
    array, memory = POINTER(_Array), (c_void_p, c_void_p)
    written = (c_void_p, shape, batch, *memory, array, array)
    declare(opened, "lmprog_attention_write", None, *written)
    attended = (c_void_p, shape, POINTER(CAttentionLayer), batch, *memory, array, array)
    declare(opened, "lmprog_attention_attend", None, *attended)
    declare(opened, "lmprog_attention_copy", None, shape, *memory, c_void_p, c_int32)
    return opened


def _kv_bytes(shape: CAttentionShape, slots: int) -> tuple[int, int]:
    """Memory of a layer's keys, and of its values."""
    opened = _opened()
    keys, values = opened.lmprog_attention_key_bytes, opened.lmprog_attention_value_bytes
    return int(keys(byref(shape), slots)), int(values(byref(shape), slots))


def _c_shapes(shape: AttentionShape, page_size: int) -> list[CAttentionShape]:
    """Of each layer; those of the same sizes have one."""
    made: dict[HeadSizes, CAttentionShape] = {}
    for layer in range(len(shape.layers)):
        heads = shape.heads_of(layer)
        made.setdefault(heads, _c_shape(shape, heads, page_size))
    return [made[shape.heads_of(layer)] for layer in range(len(shape.layers))]


def _c_shape(shape: AttentionShape, heads: HeadSizes, page_size: int) -> CAttentionShape:
    kept = torch.float32 if shape.dtype == torch.float16 else shape.dtype
    if kept not in _KEPT or shape.float8 is not None:
        raise NotSupported(
            "native attention keeps keys and values in float32, bfloat16 or int8, not in "
            f"{shape.kept}"
        )
    return CAttentionShape(*heads, page_size=page_size, kv_type=_KEPT[kept])


def _sinks(layer: LayerAttention) -> NDArray[np.float32] | None:
    return None if layer.sinks is None else np.array(layer.sinks, np.float32)


def _c_layer(layer: LayerAttention, sinks: NDArray[np.float32] | None) -> CAttentionLayer:
    """`sinks` are the layer's, and have to live as long as what is returned."""
    return CAttentionLayer(
        scale=layer.scale,
        window=layer.window or 0,
        softcap=layer.softcap or 0.0,
        sinks=None if sinks is None else sinks.ctypes.data,
    )


def _pointer(array: Ints) -> int:
    assert array.dtype == np.int32, array.dtype
    assert array.flags.c_contiguous
    return array.ctypes.data


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """As the kernels read it: f32 or bf16, a token's heads and dims contiguous; tokens may lie
    apart.
    """
    if tensor.dtype not in _TYPES:
        tensor = tensor.float()
    _, heads, dim = tensor.shape
    return (
        tensor
        if tensor.stride()[1:] == (dim, 1) or heads == 1 == tensor.stride(2)
        else tensor.contiguous()
    )


def _array(tensor: torch.Tensor) -> _Array:
    return _Array(data=tensor.data_ptr(), stride=tensor.stride(0), type=_TYPES[tensor.dtype])
