"""The index arrays of FlashInfer's cascade against a plain twin of their layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.engine.device import flashinfer_reader
from lmprog.runtime.engine.device.attention_choice import page_reader
from lmprog.runtime.engine.device.flashinfer_reader import (
    FlashInferCascadeReader,
    PagedRows,
    cascade_levels,
)
from lmprog.runtime.scheduling.batch import Batch
from tests.cuda.flashinfer_double import flashinfer_double
from tests.cuda.trees import Row, batch_of, random_rows


@pytest.fixture(autouse=True)
def small_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_reader, "WORKSPACE_BYTES", 64)


def slots(level: PagedRows, query: int, size: int) -> list[int]:
    """Where a query of this level finds keys, in order, its own and later ones included."""
    part = int(np.searchsorted(level.query_starts, query, "right")) - 1
    pages = level.pages[level.page_starts[part] : level.page_starts[part + 1]].tolist()
    found = [page * size + at for page in pages for at in range(size)]
    return found[: max(0, len(pages) - 1) * size + int(level.last_page_lens[part])]


@pytest.mark.parametrize("seed", range(40))
def test_the_levels_of_a_query_are_its_row_once_and_in_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 4, 16]))
    rows = random_rows(rng, page_size=size, num_rows=int(rng.integers(1, 9)), longest=90)
    if seed % 2:  # neighbours as a scheduler has them: branches of a program together
        rows.sort(key=lambda row: row.pages)
    shared, own = cascade_levels(batch_of(rows, size))
    query = 0
    for row in rows:
        table = [page * size + at for page in row.pages for at in range(size)]
        for _ in range(row.count):
            early, late = slots(shared, query, size), slots(own, query, size)
            assert early + late == table[: row.start + row.count]
            assert len(early) <= row.start, "what is shared lies before every new token"
            assert len(late) >= row.count
            query += 1
    assert shared.query_starts[-1] == own.query_starts[-1] == query


def families() -> Batch:
    """Two programs whose branches share 8 and 6 pages of 4, three rows between, and a loner."""
    first, second = tuple(range(8)), tuple(range(20, 26))
    rows = [Row(33, 1, (*first, 40 + index)) for index in range(3)]
    rows += [Row(26, 1, (*second, 50 + index)) for index in range(2)]
    return batch_of([*rows, Row(0, 5, (60, 61))], 4)


def test_neighbours_read_what_they_share_once() -> None:
    shared, own = cascade_levels(families())
    assert shared.query_starts.tolist() == [0, 3, 5, 10]
    assert np.diff(shared.page_starts).tolist() == [8, 6, 0]
    assert shared.last_page_lens.tolist() == [4, 4, 0]
    assert np.diff(own.page_starts).tolist() == [1, 1, 1, 1, 1, 2]


def test_a_far_relative_does_not_cost_near_ones_their_share() -> None:
    """All share a page; 16 of 20 share 30: these are read once, the one page four times more."""
    near = [Row(124, 1, (*range(31), 100 + index)) for index in range(16)]
    far = [Row(124, 1, (0, *range(200 + 40 * index, 231 + 40 * index))) for index in range(4)]
    shared, _ = cascade_levels(batch_of([*near, *far], 4))
    assert np.diff(shared.page_starts).tolist()[0] == 31
    assert np.diff(shared.query_starts).tolist()[0] == 16


def shape(*layers: LayerAttention) -> AttentionShape:
    return AttentionShape(layers, 4, 2, 8, 8, torch.bfloat16)


@pytest.mark.parametrize("batch_seed", range(4))
def test_the_cascade_gives_what_the_reference_gives(batch_seed: int) -> None:
    rng = np.random.default_rng(batch_seed)
    rows = random_rows(rng, page_size=4, num_rows=6, longest=60)
    batch = batch_of(sorted(rows, key=lambda row: row.pages), 4) if batch_seed else families()
    layers = (LayerAttention(0.3), LayerAttention(0.3, window=9), LayerAttention(0.3, softcap=5.0))
    asked = shape(*layers)
    values = torch.Generator().manual_seed(batch_seed)
    count = int(batch.pages.max()) + 1
    pages = torch.randn(count, 2, 2, 4, 8, generator=values).to(torch.bfloat16)
    q = torch.randn(batch.num_tokens + 3, 4, 8, generator=values).to(torch.bfloat16)
    with flashinfer_double():
        readers = [
            page_reader(name, asked, torch.device("cpu")) for name in ("cascade", "reference")
        ]
        for layer in range(len(layers)):
            found = []
            for reader in readers:
                assert reader is not None
                reader.begin(batch)
                out = torch.zeros_like(q)
                reader.read(layer, pages, q, out)
                found.append(out.float())
            assert torch.allclose(*found, atol=0.03, rtol=0.03), layers[layer]
            assert not found[0][batch.num_tokens :].any()


def test_a_cascade_loads_fewer_pages_than_its_rows_have() -> None:
    with flashinfer_double():
        reader = FlashInferCascadeReader(shape(LayerAttention(0.3)), torch.device("cpu"))
        batch = families()
        reader.begin(batch)
        (wrapper,) = reader._wrappers.values()
    assert wrapper.loaded_pages == 8 + 6 + 7
    assert len(batch.pages) == 3 * 9 + 2 * 7 + 2
