"""The kernels between products, against plain torch; and what Python knows of kernels, against what
they say.
"""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from lmprog.runtime.engine.device import kernels as declared
from lmprog.runtime.engine.device.driver import Driver, ModuleKey
from lmprog.runtime.engine.device.emulated_driver import emulated_kernels
from lmprog.runtime.engine.device.kernels import (
    CopyArgs,
    Count,
    NormArgs,
    RopeArgs,
    SiluArgs,
    address,
    kernel_shapes,
)
from tests.cuda.attending import TYPES, ints, placed
from tests.cuda.conftest import TRIED_MODULES, MakeKernels

ARGS = {
    "tree_attention_small": "TreeArgs",
    "tree_attention_large": "TreeArgs",
    "tree_merge": "MergeArgs",
    "rope_append": "RopeArgs",
    "norm_add": "NormArgs",
    "silu_mul": "SiluArgs",
    "mask_sample": "SampleArgs",
    "score_rows": "ScoreArgs",
    "kv_copy": "CopyArgs",
}
PLAIN = [("float", 64, 1e-6), ("bf16", 64, 5e-3), ("f16", 128, 6e-4)]


@pytest.mark.parametrize("key", TRIED_MODULES, ids=lambda key: key.name)
def test_python_declares_what_the_kernels_were_compiled_for(
    kernels_of: MakeKernels, key: ModuleKey
) -> None:
    kernels_of(key.type_name, key.head_dim, kept=key.kept_name)  # skips without a compiler
    said = emulated_kernels(key).kernels
    shapes = kernel_shapes(key)
    assert said.keys() == shapes.keys()
    for name, needs in said.items():
        assert needs.argument_bytes == ctypes.sizeof(getattr(declared, ARGS[name])), name
        assert (needs.threads, needs.shared_bytes) == (
            shapes[name].threads,
            shapes[name].shared_bytes,
        ), name


def counts(driver: Driver, **given: int) -> torch.Tensor:
    values = [0] * declared.NUM_COUNTS
    for name, count in given.items():
        values[Count[name.upper()]] = count
    return ints(driver, values)


@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize(
    ("type_name", "dim", "tolerance"),
    [*PLAIN, ("float", 32, 1e-6), ("bf16", 256, 5e-3), ("bf16", 80, 5e-3)],
)
def test_rope_append_turns_normalizes_and_writes_to_slots(
    kernels_of: MakeKernels, type_name: str, dim: int, tolerance: float, is_normed: bool
) -> None:
    rng = torch.Generator().manual_seed(dim)
    kernels = kernels_of(type_name, dim, dim)
    driver, dtype = kernels.driver, TYPES[type_name]
    tokens, heads, kv_heads, page_size, num_pages = 5, 6, 2, 8, 7
    qkv = torch.randn(tokens, heads + 2 * kv_heads, dim, generator=rng).to(dtype)
    norm = (
        (1 + 0.2 * torch.randn(heads + kv_heads, dim, generator=rng)).to(dtype)
        if is_normed
        else None
    )
    angles = torch.rand(40, dim // 2, generator=rng) * 6
    turns = torch.polar(torch.ones_like(angles), angles)
    positions = [3, 0, 39, 17, 4]
    write_tokens, write_slots = [0, 1, 2, 3, 4, 2], [9, 55, 0, 31, 10, 20]
    held = {
        "qkv": placed(driver, qkv),
        "rotations": placed(driver, torch.view_as_real(turns)),
        "positions": ints(driver, positions),
        "write_tokens": ints(driver, write_tokens),
        "write_slots": ints(driver, write_slots),
        "counts": counts(driver, tokens=tokens, writes=6),
        "q": placed(driver, torch.full((tokens, heads, dim), math.nan, dtype=dtype)),
        "kv": placed(
            driver, torch.full((num_pages, 2, kv_heads, page_size, dim), math.nan, dtype=dtype)
        ),
    }
    own_norm = None if norm is None else placed(driver, norm)
    args = RopeArgs(
        **{name: address(tensor) for name, tensor in held.items()},
        norm=address(own_norm),
        heads=heads,
        kv_heads=kv_heads,
        page_shift=3,
        eps=1e-5,
    )
    kernels.launch("rope_append", args)
    driver.event().wait()
    held = {name: tensor.cpu() for name, tensor in held.items()}

    exact = qkv.double()
    if norm is not None:
        qk = exact[:, : heads + kv_heads]
        exact[:, : heads + kv_heads] = (
            qk / (qk.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.double()
        )
    turned = torch.view_as_complex(
        exact[:, : heads + kv_heads].reshape(tokens, heads + kv_heads, dim // 2, 2)
    )
    exact[:, : heads + kv_heads] = torch.view_as_real(turned * turns[positions][:, None]).flatten(
        -2
    )
    assert torch.allclose(held["q"].double(), exact[:, :heads], atol=tolerance * 4, rtol=tolerance)
    wanted = torch.full(held["kv"].shape, math.nan, dtype=torch.float64)
    for token, slot in zip(write_tokens, write_slots, strict=True):
        wanted[slot // page_size, 0, :, slot % page_size] = exact[token, heads : heads + kv_heads]
        wanted[slot // page_size, 1, :, slot % page_size] = exact[token, heads + kv_heads :]
    assert torch.allclose(
        held["kv"].double(), wanted, atol=tolerance * 4, rtol=tolerance, equal_nan=True
    )


@pytest.mark.parametrize("has_all", [False, True])
@pytest.mark.parametrize(("type_name", "dim", "tolerance"), PLAIN)
def test_norm_add_adds_the_product_and_divides_by_the_length(
    kernels_of: MakeKernels, type_name: str, dim: int, tolerance: float, has_all: bool
) -> None:
    rng = torch.Generator().manual_seed(1)
    kernels = kernels_of(type_name, dim, 3)
    driver, dtype, hidden = kernels.driver, TYPES[type_name], 2056
    x, added = (torch.randn(4, hidden, generator=rng).to(dtype) for _ in range(2))
    weight = torch.randn(hidden, generator=rng).to(dtype)
    there, more = placed(driver, x), placed(driver, added)
    scale, out = placed(driver, weight), placed(driver, torch.full_like(x, math.nan))
    number = counts(driver, tokens=3)
    args = NormArgs(
        x=address(there),
        added=address(more if has_all else None),
        weight=address(scale if has_all else None),
        out=address(out),
        counts=address(number),
        hidden=hidden,
        count_at=Count.TOKENS,
        eps=0.5,
        factor=2.0,
    )
    kernels.launch("norm_add", args)
    driver.event().wait()
    there, out = there.cpu(), out.cpu()
    total = (x.double() + added.double() if has_all else x.double()).to(dtype)
    wanted = total.double() * 2 / (total.double().pow(2).sum(-1, keepdim=True) + 0.5).sqrt()
    wanted = wanted * weight.double() if has_all else wanted
    assert torch.equal(there[:3], total[:3])
    assert torch.equal(there[3], x[3]), "a token beyond the count is left alone"
    assert torch.allclose(out[:3].double(), wanted[:3], atol=tolerance, rtol=tolerance)
    assert out[3].isnan().all()


@pytest.mark.parametrize("is_gelu", [False, True])
@pytest.mark.parametrize(("type_name", "dim", "tolerance"), PLAIN)
def test_silu_mul_gates(
    kernels_of: MakeKernels, type_name: str, dim: int, tolerance: float, is_gelu: bool
) -> None:
    kernels = kernels_of(type_name, dim, 4)
    driver, dtype, inner = kernels.driver, TYPES[type_name], 1048
    both = (torch.randn(5, 2 * inner, generator=torch.Generator().manual_seed(0)) * 5).to(dtype)
    there, out = placed(driver, both), placed(driver, torch.full((5, inner), math.nan, dtype=dtype))
    number = counts(driver, tokens=4)
    args = SiluArgs(
        gate_up=address(there),
        out=address(out),
        counts=address(number),
        inner=inner,
        count_at=Count.TOKENS,
        is_gelu=int(is_gelu),
    )
    kernels.launch("silu_mul", args)
    driver.event().wait()
    out = out.cpu()
    gate, up = both.double().chunk(2, -1)
    opened = functional.gelu(gate, approximate="tanh") if is_gelu else functional.silu(gate)
    wanted = (opened * up)[:4]
    assert torch.allclose(out[:4].double(), wanted, atol=tolerance, rtol=tolerance)
    assert out[4].isnan().all()


def test_kv_copy_reads_all_sources_before_it_writes_a_target(kernels_of: MakeKernels) -> None:
    kernels = kernels_of("bf16", 64)
    driver = kernels.driver
    layers, pages, kv_heads, page_size, dim = 3, 6, 2, 8, 64
    pool = torch.randn(
        layers, pages, 2, kv_heads, page_size, dim, generator=torch.Generator().manual_seed(0)
    ).bfloat16()
    copies = np.array([(3, 17), (17, 40), (40, 3), (8, 9)], np.int32)
    there, wanted = placed(driver, pool), pool.clone()
    staging = driver.memory(len(copies) * layers * 2 * kv_heads * dim * 2)
    number = counts(driver, copies=len(copies))
    for is_gather, column in ((1, 0), (0, 1)):
        slots = ints(driver, np.ascontiguousarray(copies[:, column]))
        args = CopyArgs(
            pool=address(there),
            staging=address(staging),
            slots=address(slots),
            counts=address(number),
            layers=layers,
            pages=pages,
            kv_heads=kv_heads,
            page_shift=3,
            bytes=dim * 2,
            is_gather=is_gather,
            all_layers=layers,
        )
        kernels.launch("kv_copy", args)
        driver.event().wait()
    for source, target in copies.tolist():
        wanted[:, target // page_size, :, :, target % page_size] = pool[
            :, source // page_size, :, :, source % page_size
        ]
    assert torch.equal(there.cpu(), wanted)
