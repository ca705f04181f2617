"""Runs of pages that rows share as requests of FlashInfer, against a plain twin and float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lmprog.errors import NotSupported
from lmprog.native import compiler
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.engine.device import evidence, flashinfer_reader, step_arrays
from lmprog.runtime.engine.device.attention_choice import page_reader
from lmprog.runtime.engine.device.driver import ModuleKey
from lmprog.runtime.engine.device.emulated_driver import EmulatedDriver, emulated_kernels
from lmprog.runtime.engine.device.flashinfer_reader import (
    FlashInferCascadeReader,
    SharedRuns,
    paged_rows,
    shared_runs,
)
from lmprog.runtime.scheduling.batch import Batch
from tests.cuda.flashinfer_double import flashinfer_double
from tests.cuda.trees import Row, batch_of, fork, random_rows

KEY = ModuleKey("bf16", 64)


@pytest.fixture(autouse=True)
def small_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_reader, "WORKSPACE_BYTES", 64)


def pages_of(shared: SharedRuns, token: int) -> list[tuple[int, ...]]:
    """What each request of a token reads."""
    requests, found = shared.requests, {}
    for at in np.flatnonzero(shared.gather == token).tolist():
        request = int(np.searchsorted(requests.query_starts, at, "right")) - 1
        first, end = requests.page_starts[request : request + 2].tolist()
        found[int(shared.parts[at])] = tuple(requests.pages[first:end].tolist())
    first, end = shared.part_starts[token : token + 2].tolist()
    assert sorted(found) == list(range(first + 1, end)), "the first part is its own row's"
    return [found[part] for part in sorted(found)]


@pytest.mark.parametrize("seed", range(40))
def test_requests_and_own_pages_of_a_token_are_its_row_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 4, 16]))
    rows = random_rows(rng, page_size=size, num_rows=int(rng.integers(1, 9)), longest=90)
    batch = batch_of(rows, size)
    shared = shared_runs(batch, 1 << 20, worth=1)
    if shared is None:
        firsts = [row.pages[0] for row in rows if row.start >= size]
        assert len(set(firsts)) == len(firsts), "nobody has a page in common"
        return
    own = paged_rows(batch, shared.depths)
    token = 0
    for number, row in enumerate(rows):
        late = own.pages[own.page_starts[number] : own.page_starts[number + 1]].tolist()
        length = (len(late) - 1) * size + own.last_page_lens[number]
        for _ in range(row.count):
            early = [page for pages in pages_of(shared, token) for page in pages]
            assert sorted(early) == sorted(row.pages[: len(early)])
            assert [*row.pages[: len(early)], *late] == list(row.pages[: len(early) + len(late)])
            assert len(early) * size + length == row.start + row.count
            assert len(early) * size <= row.start, "what is shared lies before every new token"
            token += 1
    assert len({one for token in range(token) for one in pages_of(shared, token)}) == len(
        shared.requests.last_page_lens
    ), "no run of pages is read twice"


def families() -> Batch:
    """Two programs whose branches share 8 and 6 pages of 4, three rows between, and a loner."""
    first, second = tuple(range(8)), tuple(range(20, 26))
    rows = [Row(33, 1, (*first, 40 + index)) for index in range(3)]
    rows += [Row(26, 1, (*second, 50 + index)) for index in range(2)]
    return batch_of([*rows, Row(0, 5, (60, 61))], 4)


def test_what_is_shared_at_any_depth_is_read_once_and_what_saves_little_is_not_shared() -> None:
    """16 rows share 64 pages, each four of them 16 more, and two pairs one page more."""
    rows = [
        Row(
            4 * 81 + 1,
            1,
            (*range(64), *range(100 + 16 * (n // 4), 116 + 16 * (n // 4)), 200 + n // 2, 300 + n),
        )
        for n in range(16)
    ]
    order = np.random.default_rng(0).permutation(16).tolist()  # neighbours need not be together
    shared = shared_runs(batch_of([rows[n] for n in order], 4), 1 << 20)
    assert shared is not None
    assert sorted(np.diff(shared.requests.page_starts).tolist()) == [16, 16, 16, 16, 64]
    assert sorted(np.diff(shared.requests.query_starts).tolist()) == [4, 4, 4, 4, 16]
    assert shared.depths.tolist() == [80] * 16
    few = shared_runs(batch_of(rows, 4), 32)  # room for one more part a token
    assert few is not None
    assert np.diff(few.requests.page_starts).tolist() == [64]
    assert shared_runs(batch_of(rows, 4), 31) is None


def shape(*layers: LayerAttention) -> AttentionShape:
    return AttentionShape(layers, 4, 2, 64, 64, torch.bfloat16)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("fault", ["", "parts", "depths", "gather", "is_causal"])
def test_the_cascade_gives_what_float64_gives_on_random_trees(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With windows and caps, through our own merge; what is planted is found."""
    find, plan = flashinfer_reader.shared_runs, flashinfer_reader._Wrappers.plan

    def wrong(batch: Batch, most_parts: int) -> SharedRuns | None:
        # the double refuses a causal request with more queries than keys
        found = find(batch, most_parts, worth=128 if fault == "is_causal" else 1)
        if found is None:
            return None
        if fault == "parts":
            found.parts[:] = found.parts[::-1]
        if fault == "depths":
            found.depths[0] = 0
        if fault == "gather":
            found.gather[:] = np.roll(found.gather, 1)
        return found

    def causal(self: Any, rows: Any, size: int, is_causal: bool = True) -> None:
        plan(self, rows, size, is_causal or fault == "is_causal")

    monkeypatch.setattr(flashinfer_reader, "shared_runs", wrong)
    monkeypatch.setattr(flashinfer_reader._Wrappers, "plan", causal)
    driver = EmulatedDriver(emulated_kernels(KEY))
    found = []
    with flashinfer_double():
        for seed in range(40 if not fault else 4):
            layer = LayerAttention(0.125, [None, None, None, 20][seed % 4], [None, 15.0][seed % 2])
            found.append(
                evidence.tree_error(
                    driver,
                    KEY,
                    shape(layer),
                    seed,
                    lambda own: page_reader("cascade", own, driver.device),
                )
            )
    assert (max(found) < 1e-2) is (not fault)


def test_a_cascade_loads_each_page_once_and_plans_anew_only_where_rows_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []
    real = flashinfer_reader.shared_runs

    def counted(batch: Batch, most_parts: int) -> SharedRuns | None:
        looked.append(batch.num_rows)
        return real(batch, most_parts, worth=16)

    monkeypatch.setattr(flashinfer_reader, "shared_runs", counted)
    with flashinfer_double():
        reader = FlashInferCascadeReader(shape(LayerAttention(0.3)), torch.device("cpu"))
        reader.begin(reader.plan(families(), 1 << 20))
        wrappers = [*reader._shared._wrappers.values(), *reader._own._wrappers.values()]
        assert [one.loaded_pages for one in wrappers] == [8 + 6, 7]
        before = [Row(row.start, 1, row.pages) for row in fork(64, 5, 3, 4)]
        for more in range(4):
            grown = [
                Row(row.start + more, 1, (*row.pages, *range(900 + n, 901 + n))[: 17 + more // 2])
                for n, row in enumerate(before)
            ]
            reader.begin(reader.plan(batch_of(grown, 4), 1 << 20))
    assert looked == [6, 5]
    assert step_arrays.goes_on(batch_of(before, 4), batch_of(before, 4)) is False


def test_a_cascade_is_refused_where_nothing_finds_what_rows_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flashinfer_reader, "_runs_library", lambda: None)
    with flashinfer_double(), pytest.raises(NotSupported, match="nor a C\\+\\+ compiler"):
        FlashInferCascadeReader(shape(LayerAttention(0.3)), torch.device("cpu"))
