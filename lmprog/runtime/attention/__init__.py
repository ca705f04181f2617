"""Attention backends: one contract (`base`), a plain-torch judge (`reference`), our C++ kernels (`native`)."""

from __future__ import annotations

from lmprog.runtime.attention.base import AttentionBackend, AttentionShape, LayerAttention
from lmprog.runtime.attention.reference import ReferenceAttention

__all__ = ["AttentionBackend", "AttentionShape", "LayerAttention", "ReferenceAttention"]
