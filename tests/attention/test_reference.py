"""The judge is judged by a float64 sum written out position by position, and by torch's own
attention.
"""

from __future__ import annotations

import math

import pytest
import torch
from ragged import Stretch, batch_of, inputs, run_step, shape_of

from lmprog.runtime.engine.attention.backend import AttentionShape, LayerAttention
from lmprog.runtime.engine.attention.reference import ReferenceAttention, attend


def oracle(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: list[int], layer: LayerAttention
) -> torch.Tensor:
    """One query, one head at a time, in Python floats (float64)."""
    group = q.shape[1] // k.shape[1]
    out = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=torch.float64)
    for n, position in enumerate(positions):
        for head in range(q.shape[1]):
            first = 0 if layer.window is None else max(0, position - layer.window + 1)
            scores = []
            for key in range(first, position + 1):
                score = sum(
                    a * b
                    for a, b in zip(
                        q[n, head].tolist(), k[key, head // group].tolist(), strict=True
                    )
                )
                score *= layer.scale
                scores.append(
                    score
                    if layer.softcap is None
                    else layer.softcap * math.tanh(score / layer.softcap)
                )
            weights = [math.exp(score - max(scores)) for score in scores]
            for weight, key in zip(weights, range(first, position + 1), strict=True):
                out[n, head] += weight / sum(weights) * v[key, head // group].double()
    return out


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_reference_equals_a_float64_sum_over_visible_positions(
    window: int | None, softcap: float | None
) -> None:
    rng = torch.Generator().manual_seed(1)
    shape = shape_of(heads=4, kv_heads=2, dim=8, v_dim=5, window=window, softcap=softcap)
    q, k, v = inputs(rng, shape, 7)
    expected = oracle(q, k, v, list(range(7)), shape.layers[0])
    backend = ReferenceAttention(shape, num_pages=9, page_size=2)
    first = run_step(backend, batch_of([Stretch(0, 4, (8, 3))], 2), (q[:4], k[:4], v[:4]))
    rest = run_step(backend, batch_of([Stretch(4, 3, (8, 3, 5, 1))], 2), (q[4:], k[4:], v[4:]))
    torch.testing.assert_close(torch.cat([first, rest]).double(), expected, rtol=1e-5, atol=1e-6)


def test_reference_equals_torch_attention() -> None:
    rng = torch.Generator().manual_seed(2)
    shape = shape_of(heads=6, kv_heads=2, dim=16)
    q, k, v = (x.double() for x in inputs(rng, shape, 33))
    ours = attend(q, k, v, torch.arange(33), shape.layers[0])
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1) for x in (q, k, v)), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(ours, theirs.transpose(0, 1), rtol=1e-12, atol=1e-12)


def test_rows_share_a_prefix_that_the_same_step_writes() -> None:
    rng = torch.Generator().manual_seed(3)
    shape = shape_of()
    q, k, v = inputs(rng, shape, 6)
    alone = ReferenceAttention(shape, 8, 4)
    expected = run_step(alone, batch_of([Stretch(0, 5, (0, 1))], 4), (q[:5], k[:5], v[:5]))
    both = ReferenceAttention(shape, 8, 4)
    batch = batch_of([Stretch(0, 4, (6,)), Stretch(4, 1, (6, 2))], 4)
    torch.testing.assert_close(run_step(both, batch, (q[:5], k[:5], v[:5])), expected)


def test_copies_read_every_source_before_they_write_a_target() -> None:
    shape = shape_of(num_layers=2)
    backend = ReferenceAttention(shape, 4, 2)
    for memory in (*backend.keys, *backend.values):
        memory.copy_(torch.arange(8.0).view(8, 1, 1).expand_as(memory))
    backend.plan(batch_of([Stretch(0, 1, (3,))], 2, copies=[(0, 1), (1, 2), (2, 0)]))
    for memory in (*backend.keys, *backend.values):
        assert memory[:, 0, 0].tolist() == [2, 0, 1, 3, 4, 5, 6, 7]


def test_a_mirror_writes_a_token_to_a_second_slot() -> None:
    rng = torch.Generator().manual_seed(4)
    shape = shape_of()
    backend = ReferenceAttention(shape, 4, 2)
    q, k, v = inputs(rng, shape, 2)
    run_step(backend, batch_of([Stretch(0, 2, (1,))], 2, mirrors=[(1, 7)]), (q, k, v))
    assert torch.equal(backend.keys[0][[2, 3, 7]], k[[0, 1, 1]])
    assert torch.equal(backend.values[0][[2, 3, 7]], v[[0, 1, 1]])


def test_slots_nobody_wrote_never_reach_a_result() -> None:
    rng = torch.Generator().manual_seed(5)
    shape = shape_of()
    backend = ReferenceAttention(shape, 4, 4)
    for memory in (*backend.keys, *backend.values):
        memory.fill_(math.nan)
    out = run_step(backend, batch_of([Stretch(0, 6, (3, 0))], 4), inputs(rng, shape, 6))
    assert bool(torch.isfinite(out).all())


def test_bytes_per_page_counts_keys_and_values_of_all_layers() -> None:
    layers = (LayerAttention(1.0),) * 3
    shape = AttentionShape(
        layers, num_heads=4, num_kv_heads=2, head_dim=8, v_head_dim=6, dtype=torch.bfloat16
    )
    assert ReferenceAttention(shape, 2, 16).bytes_per_page == 3 * 16 * 2 * (8 + 6) * 2
