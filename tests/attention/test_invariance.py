"""What the kernels guarantee to the last bit: a result depends on nothing but what it is computed
from.
"""

from __future__ import annotations

import pytest
import torch
from ragged import Stretch, batch_of, inputs, run_step, shape_of

from lmprog.native import compiler
from lmprog.runtime.engine.attention import AttentionShape, NativeAttention

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

SHAPES = {
    "f32": shape_of(heads=6, kv_heads=2, dim=24),
    "bf16": shape_of(heads=6, kv_heads=2, dim=24, dtype=torch.bfloat16),
    "bf16 window": shape_of(
        heads=4, kv_heads=4, dim=16, dtype=torch.bfloat16, window=301, softcap=5.0
    ),
    "int8": shape_of(heads=6, kv_heads=2, dim=24, dtype=torch.int8),
    "int8 window": shape_of(
        heads=4, kv_heads=4, dim=18, dtype=torch.int8, window=301, sinks=(1.0, -1.0, 0.0, 9.0)
    ),
    "f32 window": shape_of(heads=3, kv_heads=1, dim=16, window=270),
}
LONG = 1100

QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> AttentionShape:
    return SHAPES[request.param]


def numbers(shape: AttentionShape, tokens: int, seed: int = 7) -> QKV:
    return inputs(torch.Generator().manual_seed(seed), shape, tokens)


def pages_for(tokens: int, page_size: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + -(-tokens // page_size)))


def whole(
    shape: AttentionShape, path: str, qkv: QKV, page_size: int = 16, threads: int = 1
) -> torch.Tensor:
    tokens = len(qkv[0])
    pages = pages_for(tokens, page_size)
    backend = NativeAttention(shape, len(pages), page_size, threads, path=path)
    return run_step(backend, batch_of([Stretch(0, tokens, pages)], page_size), qkv)


def test_chunks_of_a_prompt_give_the_bits_of_the_whole(shape: AttentionShape, path: str) -> None:
    qkv = numbers(shape, LONG)
    pages = pages_for(LONG, 16)
    for cuts in ([1, 2, 3, 700], [255, 256, 257, 1024], [64, 65, 999, 1099]):
        backend = NativeAttention(shape, len(pages), 16, path=path)
        parts = [
            run_step(backend, batch_of([Stretch(a, b - a, pages)], 16), tuple(x[a:b] for x in qkv))  # type: ignore[arg-type]
            for a, b in zip([0, *cuts], [*cuts, LONG], strict=True)
        ]
        assert torch.equal(torch.cat(parts), whole(shape, path, qkv)), cuts


def test_token_by_token_gives_the_bits_of_the_whole(shape: AttentionShape, path: str) -> None:
    qkv, tokens = numbers(shape, 300), 300
    pages = pages_for(tokens, 16)
    backend = NativeAttention(shape, len(pages), 16, path=path)
    parts = [
        run_step(backend, batch_of([Stretch(i, 1, pages)], 16), tuple(x[i : i + 1] for x in qkv))  # type: ignore[arg-type]
        for i in range(tokens)
    ]
    assert torch.equal(torch.cat(parts), whole(shape, path, qkv))


@pytest.mark.parametrize("page_size", [1, 8, 48])
def test_page_size_and_page_numbers_change_no_bit(
    shape: AttentionShape, path: str, page_size: int
) -> None:
    qkv = numbers(shape, LONG)
    assert torch.equal(whole(shape, path, qkv, page_size), whole(shape, path, qkv))
    backwards = pages_for(LONG, page_size)[::-1]
    backend = NativeAttention(shape, len(backwards), page_size, path=path)
    batch = batch_of([Stretch(0, LONG, backwards)], page_size)
    assert torch.equal(run_step(backend, batch, qkv), whole(shape, path, qkv))


@pytest.mark.parametrize("threads", [2, 5])
def test_the_number_of_threads_changes_no_bit(
    shape: AttentionShape, path: str, threads: int
) -> None:
    qkv = numbers(shape, LONG)
    alone, together = (NativeAttention(shape, 94, 16, n, path=path) for n in (1, threads))
    for stretch in (
        Stretch(0, LONG - 3, pages_for(LONG, 16)),
        Stretch(LONG - 3, 2, pages_for(LONG, 16)),
    ):
        part = tuple(x[stretch.start : stretch.start + stretch.count] for x in qkv)
        results = [
            run_step(backend, batch_of([stretch], 16), part) for backend in (alone, together)
        ]  # type: ignore[arg-type]
        assert torch.equal(*results)


def family(common: int) -> list[Stretch]:
    """Decode rows on a tree of prefixes: all share `common` positions, four of them 512 more; one
    stands alone.
    """
    shared, more = pages_for(common, 16), pages_for(512, 16, 200)
    rows, free = [], 300
    for row in range(9):
        start, base = (common + 512, shared + more) if row % 2 else (common, shared)
        own = 20 + 37 * row
        rows.append(Stretch(start + own, 1 + row % 3, base + pages_for(own + 3, 16, free)))
        free += 30
    return [*rows, Stretch(700, 1, pages_for(701, 16, free))]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_prefix_read_once_for_many_rows_gives_the_bits_of_each_alone(
    shape: AttentionShape,
    path: str,
    threads: int,
) -> None:
    rows = family(1024)
    apart = NativeAttention(shape, 700, 16, path=path, share_prefixes=False)
    together = NativeAttention(shape, 700, 16, threads, path=path)
    for (keys, values), (other_keys, other_values) in zip(
        apart.memory, together.memory, strict=True
    ):
        keys.fill_(0x3C)  # a finite number in both types, the same everywhere; then random rows
        values.fill_(0x3C)
        for first in range(0, 700, 25):
            batch = batch_of([Stretch(0, 400, tuple(range(first, first + 25)))], 16)
            run_step(apart, batch, numbers(shape, 400, first))
        other_keys.copy_(keys)
        other_values.copy_(values)
    qkv = numbers(shape, sum(row.count for row in rows))
    expected, at = [], 0
    for row in rows:
        part = tuple(x[at : at + row.count] for x in qkv)
        expected.append(run_step(apart, batch_of([row], 16), part))  # type: ignore[arg-type]
        at += row.count
    assert torch.equal(run_step(together, batch_of(rows, 16), qkv), torch.cat(expected))
    assert torch.equal(run_step(apart, batch_of(rows, 16), qkv), torch.cat(expected))
