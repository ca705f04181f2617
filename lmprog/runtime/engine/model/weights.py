"""The weights of a checkpoint, or random ones, in the fused form that the torch decoder computes
with.

Files are memory-mapped and read one layer at a time, so that the peak is the model plus one layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmprog.runtime.engine.model.decoder import Weights
from lmprog.runtime.engine.model.fusing import fused
from lmprog.runtime.engine.model.random_weights import RandomSource
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.model.stored_weights import stored_weights


def load_weights(
    folder: Path, shape: ModelShape, dtype: torch.dtype, progress: bool | None = None
) -> Weights:
    """The weights of `folder` as `dtype`. `progress` shows a bar; None: on a terminal, if it takes
    long.
    """
    checkpoint = stored_weights(folder)
    checkpoint.check(expected(shape), shape.tied_head)
    return fused(shape, dtype, lambda name: as_tensor(checkpoint.array(name)), progress)


def random_weights(shape: ModelShape, dtype: torch.dtype, seed: int) -> Weights:
    """Weights drawn from `seed`: a model that computes like any other and says nothing sensible."""
    source = RandomSource(expected(shape), seed)
    return fused(shape, dtype, lambda name: as_tensor(source.array(name)), progress=False)


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor in the array's memory; 16 bits without a type are bfloat16."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def expected(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every weight that a checkpoint of this shape has, with its size."""
    hidden, inner, dim = shape.hidden, shape.inner, shape.head_dim
    q, kv = shape.num_heads * dim, shape.num_kv_heads * dim
    products = {
        "self_attn.q_proj": (q, hidden, shape.qkv_bias),
        "self_attn.k_proj": (kv, hidden, shape.qkv_bias),
        "self_attn.v_proj": (kv, hidden, shape.qkv_bias),
        "self_attn.o_proj": (hidden, q, shape.out_bias),
        "mlp.gate_proj": (inner, hidden, shape.mlp_bias),
        "mlp.up_proj": (inner, hidden, shape.mlp_bias),
        "mlp.down_proj": (hidden, inner, shape.mlp_bias),
    }
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not shape.tied_head:
        found["lm_head.weight"] = (shape.vocab_size, hidden)
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns, bias) in products.items():
            found[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                found[f"{prefix}{name}.bias"] = (rows,)
        found[f"{prefix}input_layernorm.weight"] = (hidden,)
        found[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        if shape.qk_norm:
            found[f"{prefix}self_attn.q_norm.weight"] = (dim,)
            found[f"{prefix}self_attn.k_norm.weight"] = (dim,)
    return found
