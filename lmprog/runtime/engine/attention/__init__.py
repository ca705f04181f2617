"""Attention backends: one contract (`base`), a plain-torch judge (`reference`), our C++ kernels
(`native`).

This file only chooses among them.
"""

from __future__ import annotations

from lmprog.errors import InvalidParameter
from lmprog.native import library
from lmprog.runtime.engine.attention.backend import AttentionBackend, AttentionShape, LayerAttention
from lmprog.runtime.engine.attention.native_attention import NativeAttention
from lmprog.runtime.engine.attention.reference import ReferenceAttention

__all__ = [
    "AttentionBackend",
    "AttentionShape",
    "LayerAttention",
    "NativeAttention",
    "ReferenceAttention",
    "make_attention",
    "page_bytes",
]

_BACKENDS = {"native": NativeAttention, "reference": ReferenceAttention}


def make_attention(
    name: str | None, shape: AttentionShape, num_pages: int, page_size: int, threads: int = 1
) -> AttentionBackend:
    """The backend called `name`; None means native where its library can be built (the log says
    when it cannot).

    The reference computes with torch's threads; `threads` is native's.
    """
    if _backend(name) is NativeAttention:
        return NativeAttention(shape, num_pages, page_size, threads)
    return ReferenceAttention(shape, num_pages, page_size)


def page_bytes(name: str | None, shape: AttentionShape, page_size: int) -> int:
    """`bytes_per_page` of that backend before it exists, to turn a memory budget into pages."""
    return _backend(name).page_bytes(shape, page_size)


def _backend(name: str | None) -> type[NativeAttention] | type[ReferenceAttention]:
    if name is None:
        return ReferenceAttention if library("attention") is None else NativeAttention
    if name not in _BACKENDS:
        allowed = ", ".join(_BACKENDS)
        raise InvalidParameter(
            f"there is no attention backend {name!r}; there are {allowed}",
            name="attention",
            value=name,
            allowed=allowed,
        )
    return _BACKENDS[name]
