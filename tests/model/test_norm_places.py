"""Norms of a layer's halves at every place, and nowhere: what a `ModelShape` says is all that an
engine needs to know of it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest
import torch

from lmprog.native import compiler
from lmprog.runtime.engine.attention import make_attention
from lmprog.runtime.engine.model.locate import dummy_shape
from lmprog.runtime.engine.model.shape import ModelShape, Norms
from lmprog.runtime.engine.native.engine import KvMemory, NativeEngine
from lmprog.runtime.engine.native.packing import packed_random
from lmprog.runtime.engine.torch_engine.decoder import Decoder
from lmprog.runtime.engine.torch_engine.weights import random_weights
from lmprog.runtime.scheduling.batch import Batch

SEED = 3
COUNT = 12
PLACES = [field.name for field in fields(Norms)]
COMBINED = [
    Norms(
        **{
            place: f"{place}_layernorm" if there else None
            for place, there in zip(PLACES, some, strict=True)
        }
    )
    for some in product((True, False), repeat=len(PLACES))
]


def one_prompt() -> Batch:
    """A sequence of `COUNT` tokens in one page; all logits are wanted."""
    each = np.arange(COUNT, dtype=np.int32)
    return Batch(
        tokens=each * 17 + 5,
        positions=each,
        row_starts=np.array([0, COUNT], np.int32),
        kv_lens=np.array([COUNT], np.int32),
        page_starts=np.array([0, 1], np.int32),
        pages=np.zeros(1, np.int32),
        write_tokens=each,
        write_slots=each,
        copies=np.zeros((0, 2), np.int32),
        logit_tokens=each,
        page_size=16,
    )


def torch_logits(shape: ModelShape) -> torch.Tensor:
    decoder = Decoder(shape, random_weights(shape, torch.float32, SEED), shape.context_len)
    attention = make_attention("reference", decoder.attention_shape(torch.float32), 1, 16)
    return decoder.forward(one_prompt(), attention)


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("norms", COMBINED, ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_both_engines_normalize_where_the_shape_says(norms: Norms, scale: float) -> None:
    shape = replace(dummy_shape("dummy:64x2"), norms=norms, residual_scale=scale)
    with torch.inference_mode():
        wanted = torch_logits(shape)
    packed = packed_random(shape, SEED, "float32", 1)
    engine = NativeEngine(shape, packed, KvMemory("float32", 16, 1))
    got = torch.from_numpy(engine.forward(one_prompt()).copy())
    assert (got - wanted).norm() < 1e-4 * wanted.norm()


def test_every_place_counts() -> None:
    with torch.inference_mode():
        found = [torch_logits(replace(dummy_shape("dummy:64x2"), norms=one)) for one in COMBINED]
    for at, one in enumerate(found):
        assert all((one - other).norm() > 1e-2 * one.norm() for other in found[:at])
