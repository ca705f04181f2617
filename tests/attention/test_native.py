"""The C++ kernels against the reference, on every path of this processor, page size, head size and
mask.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from ragged import Stretch, batch_of, inputs, random_rows, run_step, shape_of

from lmprog.errors import InvalidParameter, NotSupported
from lmprog.native import compiler
from lmprog.runtime.engine.attention import (
    AttentionShape,
    LayerAttention,
    NativeAttention,
    ReferenceAttention,
    make_attention,
    page_bytes,
)
from lmprog.runtime.engine.attention.backend import HeadSizes

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

PAGE_SIZES = (1, 2, 8, 16, 32)
HEADS = (
    (4, 2, 32, 32),
    (14, 2, 64, 64),
    (3, 3, 80, 40),
    (8, 1, 128, 128),
    (2, 1, 9, 5),
    (2, 2, 256, 256),
)
"""(query heads, kv heads, head_dim, v_head_dim); 9 and 5 need padding everywhere."""
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.int8: 1e-5}
IN_DIGITS = ("avx512bf16", "avx512vnni", "avx2vnni", "neonbf16", "neondot")
"""Paths that round queries and weights to 14 bits where memory has bytes."""


def tolerance_of(dtype: torch.dtype, path: str) -> float:
    return 1e-3 if dtype == torch.int8 and path in IN_DIGITS else TOLERANCE[dtype]


def poison(backend: NativeAttention) -> None:
    """Every slot becomes NaN (0xffff and 0xffffffff are NaN in both types)."""
    for keys, values in backend.memory:
        keys.fill_(255)
        values.fill_(255)


def compare(
    shape: AttentionShape, page_size: int, seed: int, path: str, longest: int = 400
) -> None:
    print(f"seed {seed}")
    rng, torch_rng = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    num_pages = 8 * -(-900 // page_size)
    native = NativeAttention(shape, num_pages, page_size, threads=1 + seed % 2, path=path)
    reference = ReferenceAttention(shape, num_pages, page_size)
    poison(native)
    for stretches in random_rows(rng, num_pages, page_size, 4, longest):
        batch = batch_of(stretches, page_size)
        qkv = inputs(torch_rng, shape, batch.num_tokens)
        tolerance = tolerance_of(shape.dtype, path)
        torch.testing.assert_close(
            run_step(native, batch, qkv),
            run_step(reference, batch, qkv),
            rtol=tolerance,
            atol=tolerance,
        )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads", HEADS)
def test_native_agrees_with_the_reference_for_every_head_size(
    path: str, dtype: torch.dtype, heads: tuple[int, int, int, int]
) -> None:
    query_heads, kv_heads, dim, v_dim = heads
    shape = shape_of(heads=query_heads, kv_heads=kv_heads, dim=dim, v_dim=v_dim, dtype=dtype)
    compare(shape, 16, 100 + dim, path)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_native_agrees_with_the_reference_for_every_page_size(
    path: str, dtype: torch.dtype, page_size: int
) -> None:
    compare(shape_of(dim=24, dtype=dtype), page_size, 200 + page_size, path)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [1, 7, 100, 300])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_native_agrees_with_the_reference_for_windows_and_softcaps(
    path: str, dtype: torch.dtype, window: int, softcap: float | None
) -> None:
    page_size = 16 if window > 7 else 2
    compare(shape_of(window=window, softcap=softcap, dtype=dtype), page_size, 300 + window, path)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 7])
def test_native_agrees_with_the_reference_for_sinks(
    path: str, dtype: torch.dtype, window: int | None
) -> None:
    sinks = (-2.0, 0.0, 1.5, 9.0)
    compare(shape_of(window=window, sinks=sinks, dtype=dtype), 16, 400, path)


def test_softcap_alone_agrees_over_a_wide_range_of_scores(path: str) -> None:
    shape = shape_of(softcap=30.0)
    q, k, v = inputs(torch.Generator().manual_seed(9), shape, 40)
    batch = batch_of([Stretch(0, 40, (2, 0, 1))], 16)
    native, reference = NativeAttention(shape, 4, 16, path=path), ReferenceAttention(shape, 4, 16)
    for size in (0.01, 1.0, 30.0):
        ours, judge = (
            run_step(backend, batch, (size * q, size * k, v)) for backend in (native, reference)
        )
        torch.testing.assert_close(ours, judge, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("largest", [0, 300, 599])
def test_a_score_far_above_all_others_is_taken_wherever_it_stands(path: str, largest: int) -> None:
    shape = shape_of()
    q, k, v = inputs(torch.Generator().manual_seed(14), shape, 600)
    k[largest] = (
        40 * q[599, ::2]
    )  # each kv head's first query: scores of some 200, where exp overflows from 89 on
    batch = batch_of([Stretch(0, 600, tuple(range(38)))], 16)
    native, reference = NativeAttention(shape, 38, 16, path=path), ReferenceAttention(shape, 38, 16)
    torch.testing.assert_close(
        run_step(native, batch, (q, k, v)),
        run_step(reference, batch, (q, k, v)),
        rtol=1e-5,
        atol=1e-5,
    )


def test_bf16_queries_give_bf16_results() -> None:
    shape = shape_of(dtype=torch.bfloat16)
    batch = batch_of([Stretch(0, 40, (2, 0, 1))], 16)
    qkv = inputs(torch.Generator().manual_seed(10), shape, 40, torch.bfloat16)
    ours, judge = (
        run_step(kind(shape, 4, 16), batch, qkv) for kind in (NativeAttention, ReferenceAttention)
    )
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours, judge, rtol=2e-2, atol=2e-2)


def test_float16_is_kept_in_float32() -> None:
    shape = shape_of(dtype=torch.float16)
    batch = batch_of([Stretch(0, 40, (2, 0, 1))], 16)
    q, k, v = inputs(torch.Generator().manual_seed(11), shape, 40, torch.float16)
    native, reference = NativeAttention(shape, 4, 16), ReferenceAttention(shape, 4, 16)
    assert native.bytes_per_page == 2 * reference.bytes_per_page
    torch.testing.assert_close(
        run_step(native, batch, (q, k, v)), run_step(reference, batch, (q, k, v))
    )


def test_slots_nobody_wrote_never_reach_a_result(path: str) -> None:
    for dtype in TOLERANCE:
        for page_size in (3, 16):
            native = NativeAttention(shape_of(dtype=dtype), 20, page_size, path=path)
            poison(native)
            batch = batch_of(
                [Stretch(0, 17, tuple(range(19, 19 - -(-17 // page_size), -1)))], page_size
            )
            out = run_step(
                native, batch, inputs(torch.Generator().manual_seed(1), native.shape, 17)
            )
            assert bool(torch.isfinite(out).all())


def test_a_query_that_is_not_finite_spoils_no_other_row(path: str) -> None:
    shape = shape_of()
    q, k, v = inputs(torch.Generator().manual_seed(2), shape, 2)
    q[0] = math.nan
    out = run_step(
        NativeAttention(shape, 2, 16, path=path),
        batch_of([Stretch(0, 1, (0,)), Stretch(0, 1, (1,))], 16),
        (q, k, v),
    )
    assert bool(torch.isnan(out[0]).all())
    assert bool(torch.isfinite(out[1]).all())


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_copies_and_mirrors_move_slots_as_the_reference_does(dtype: torch.dtype) -> None:
    shape = shape_of(heads=2, kv_heads=2, dim=7, v_dim=5, dtype=dtype, num_layers=2)
    rng = torch.Generator().manual_seed(12)
    backends = NativeAttention(shape, 12, 4, threads=2), ReferenceAttention(shape, 12, 4)
    first = batch_of([Stretch(0, 11, (7, 3, 5))], 4, mirrors=[(8, 4), (9, 5), (10, 6)])
    # Sources that are targets too; then one row on the copied and mirrored slots, one on the two
    # that changed places.
    copies = [(28, 8), (29, 9), (30, 10), (31, 11), (28, 29), (29, 28)]
    second = batch_of([Stretch(11, 2, (2, 3, 1, 9)), Stretch(4, 1, (7, 6))], 4, copies=copies)
    for batch in (first, second):
        for backend in backends:
            backend.plan(batch)
        for layer in range(2):
            qkv = inputs(rng, shape, batch.num_tokens)
            ours, judge = (backend.run(layer, *qkv) for backend in backends)
            tolerance = tolerance_of(dtype, backends[0].path)
            torch.testing.assert_close(ours, judge, rtol=tolerance, atol=tolerance)


def test_values_that_lie_apart_in_memory_are_read_in_place() -> None:
    shape = shape_of(heads=2, kv_heads=2, dim=8)
    fused = torch.randn(5, 3, 2, 8, generator=torch.Generator().manual_seed(13))
    q, k, v = fused[:, 0], fused[:, 1], fused[:, 2]
    batch = batch_of([Stretch(0, 5, (0,))], 16)
    ours, judge = (
        run_step(kind(shape, 1, 16), batch, (q, k, v))
        for kind in (NativeAttention, ReferenceAttention)
    )
    torch.testing.assert_close(ours, judge)


def test_bytes_per_page_counts_the_padding() -> None:
    shape = shape_of(kv_heads=2, dim=9, v_dim=5, dtype=torch.bfloat16, num_layers=3)
    assert NativeAttention(shape, 2, 8).bytes_per_page == 3 * 8 * 2 * (10 + 16) * 2
    assert page_bytes("native", shape, 8) == NativeAttention(shape, 2, 8).bytes_per_page


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_layers_with_heads_of_their_own_share_pages_and_some_share_keys(
    dtype: torch.dtype,
) -> None:
    own = HeadSizes(8, 1, 40, 24)
    layers = (
        LayerAttention(0.25, window=50),
        LayerAttention(0.16, heads=own),
        LayerAttention(0.25, window=20, source=0),
        LayerAttention(0.16, heads=own, source=1),
    )
    shape = AttentionShape(layers, 4, 2, 16, 16, dtype)
    whole = [AttentionShape((one,), *shape.heads_of(at), dtype) for at, one in enumerate(layers)]
    native, judge = NativeAttention(shape, 60, 16), ReferenceAttention(shape, 60, 16)
    assert native.bytes_per_page == sum(page_bytes("native", one, 16) for one in whole[:2])
    assert judge.bytes_per_page == sum(page_bytes("reference", one, 16) for one in whole[:2])
    given = torch.Generator().manual_seed(3)
    for stretches in random_rows(np.random.default_rng(3), 60, 16, 3, 120):
        batch = batch_of(stretches, 16)
        native.plan(batch)
        judge.plan(batch)
        for layer, one in enumerate(whole):
            qkv = inputs(given, one, batch.num_tokens)
            if layers[layer].source is not None:
                qkv = (qkv[0], qkv[1] * torch.nan, qkv[2] * torch.nan)  # are not looked at
            tolerance = tolerance_of(dtype, native.path)
            torch.testing.assert_close(
                native.run(layer, *qkv), judge.run(layer, *qkv), rtol=tolerance, atol=tolerance
            )


def test_bytes_of_keys_and_values_have_a_scale_a_head_each() -> None:
    shape = shape_of(kv_heads=2, dim=64, dtype=torch.int8)
    assert NativeAttention(shape, 2, 16).bytes_per_page == 16 * 2 * (64 + 64 + 4 + 4)


def test_a_key_that_is_not_finite_spoils_its_row_only_in_bytes(path: str) -> None:
    shape = shape_of(dtype=torch.int8)
    q, k, v = inputs(torch.Generator().manual_seed(3), shape, 2)
    k[0, :, 3] = math.inf
    out = run_step(
        NativeAttention(shape, 2, 16, path=path),
        batch_of([Stretch(0, 1, (0,)), Stretch(0, 1, (1,))], 16),
        (q, k, v),
    )
    assert bool(torch.isnan(out[0]).all())
    assert bool(torch.isfinite(out[1]).all())


@pytest.mark.parametrize("what", ["query", "value"])
def test_a_number_that_is_not_finite_is_seen_in_bytes(path: str, what: str) -> None:
    shape = shape_of(dtype=torch.int8)
    q, k, v = inputs(torch.Generator().manual_seed(4), shape, 2)
    {"query": q, "value": v}[what][0, :, 5] = math.nan
    out = run_step(
        NativeAttention(shape, 2, 16, path=path),
        batch_of([Stretch(0, 1, (0,)), Stretch(0, 1, (1,))], 16),
        (q, k, v),
    )
    assert bool(torch.isnan(out[0]).all())
    assert bool(torch.isfinite(out[1]).all())


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_numbers_of_any_size_keep_their_digits(path: str, size: float) -> None:
    shape = shape_of(dtype=torch.int8)
    q, k, v = inputs(torch.Generator().manual_seed(5), shape, 300)
    batch = batch_of([Stretch(0, 300, tuple(range(19)))], 16)
    native, reference = NativeAttention(shape, 19, 16, path=path), ReferenceAttention(shape, 19, 16)
    ours, judge = (
        run_step(one, batch, (q * size, k / size, v * size)) for one in (native, reference)
    )
    tolerance = tolerance_of(shape.dtype, path)
    torch.testing.assert_close(ours / size, judge / size, rtol=tolerance, atol=tolerance)


def test_the_path_can_be_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMPROG_ATTENTION_PATH", "generic")
    assert NativeAttention(shape_of(), 1, 16).path == "generic"


def test_unknown_paths_and_backends_are_refused() -> None:
    with pytest.raises(NotSupported, match="mmx"):
        NativeAttention(shape_of(), 1, 16, path="mmx")
    with pytest.raises(InvalidParameter, match="native, reference"):
        make_attention("fast", shape_of(), 1, 16)


def test_native_is_the_default_where_it_can_be_built() -> None:
    assert isinstance(make_attention(None, shape_of(), 1, 16), NativeAttention)
    assert isinstance(make_attention("reference", shape_of(), 1, 16), ReferenceAttention)
