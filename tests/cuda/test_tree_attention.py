"""Tree attention by the emulated kernels against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lmprog.runtime.engine.attention import LayerAttention
from lmprog.runtime.engine.device.driver import Launch, ModuleKey
from lmprog.runtime.engine.device.emulated_driver import EmulatedDriver
from lmprog.runtime.engine.device.items import Tiling, plan_items
from lmprog.runtime.engine.device.kernels import Kernels
from tests.cuda.attending import TOLERANCE, Heads, TreeStep, error
from tests.cuda.conftest import TRIED_MODULES, MakeKernels
from tests.cuda.trees import Row, batch_of, fork, random_rows

HEADS = [Heads(4, 2), Heads(3, 3), Heads(8, 1), Heads(6, 2), Heads(32, 1)]


@pytest.mark.parametrize("seed", range(24))
def test_random_trees_agree_with_float64(kernels_of: MakeKernels, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dims = (64, 64, 64, (80, 96, 80)[seed % 3])
    type_name, dim = ("bf16", "f16", "float")[seed % 3], dims[seed // 3 % 4]
    page_size = int(rng.choice([8, 16, 32]))
    rows = random_rows(
        rng,
        page_size=page_size,
        num_rows=int(rng.integers(1, 7)),
        longest=int(rng.choice([40, 330])),
    )
    layer = LayerAttention(
        dim**-0.5,
        window=[None, None, 5, 130][int(rng.integers(4))],
        softcap=[None, 20.0][int(rng.integers(2))],
    )
    heads = HEADS[int(rng.integers(len(HEADS) - (type_name == "float")))]
    if has_sinks := seed % 4 == 1:
        sinks = rng.normal(size=heads.heads) * 4
        layer = replace(layer, sinks=tuple(sinks.astype(np.float32).tolist()))
    step = TreeStep(kernels_of(type_name, dim, seed), batch_of(rows, page_size), heads, seed=seed)
    tiling = step.tiling(fold=[1, None][seed % 2])
    got = step.run(layer, plan_items(step.batch, tiling, layer.window, None, has_sinks))
    assert error(got, step.expected(layer)) < TOLERANCE[type_name]


@pytest.mark.parametrize("key", TRIED_MODULES, ids=lambda key: key.name)
def test_every_module_agrees_with_float64_on_both_tiles(
    kernels_of: MakeKernels, key: ModuleKey
) -> None:
    kernels = kernels_of(key.type_name, key.head_dim, kept=key.kept_name)
    rows = [*fork(80, 20, 9, 16), Row(0, 70, tuple(range(100, 105)))]
    step = TreeStep(kernels, batch_of(rows, 16), Heads(4, 1))
    layer = LayerAttention(key.head_dim**-0.5)
    items = plan_items(step.batch, step.tiling())
    assert len(items.small)
    assert len(items.large) or key.is_exact
    assert error(step.run(layer, items), step.expected(layer)) < TOLERANCE[key.type_name]


@pytest.mark.parametrize(
    ("type_name", "dim", "kept"),
    [
        ("bf16", 64, ""),
        ("f16", 256, ""),
        ("float", 64, ""),
        ("bf16", 64, "e4m3"),
        ("bf16", 80, ""),
        ("f16", 96, "e4m3"),
    ],
)
def test_a_query_gets_the_same_bits_alone_and_in_company(
    kernels_of: MakeKernels, type_name: str, dim: int, kept: str
) -> None:
    """Whether 24 branches share a tile of 64 rows or one decodes alone: the tiles do the same
    arithmetic.
    """
    rows = fork(272, 24, 20, 16)
    step = TreeStep(kernels_of(type_name, dim, kept=kept), batch_of(rows, 16), Heads(4, 2))
    layer = LayerAttention(dim**-0.5)
    tiling = Tiling(2, large_rows=None if type_name == "float" else 64, fold=None)
    together = step.run(layer, plan_items(step.batch, tiling))
    company = kernels_of(type_name, dim, 9, kept)
    alone = TreeStep(company, batch_of(rows[:1], 16), Heads(4, 2))
    alone.kv, alone.q = step.kv, step.q
    alone.kernels = step.kernels
    assert torch.equal(alone.run(layer, plan_items(alone.batch, tiling))[:1], together[:1])


def test_chunks_of_a_prompt_get_the_same_bits_as_the_whole_prompt(kernels_of: MakeKernels) -> None:
    pages, layer = tuple(range(20)), LayerAttention(0.125)
    kernels = kernels_of("float", 64)
    whole = TreeStep(kernels, batch_of([Row(0, 300, pages)], 16), Heads(4, 2))
    wanted = whole.run(layer)
    chunk = TreeStep(kernels, batch_of([Row(250, 50, pages)], 16), Heads(4, 2))
    chunk.kv, chunk.q = whole.kv, whole.q[250:]
    assert torch.equal(chunk.run(layer), wanted[250:])


def test_no_result_depends_on_the_order_in_which_blocks_and_warps_run(
    kernels_of: MakeKernels,
) -> None:
    batch = batch_of(
        random_rows(np.random.default_rng(5), page_size=16, num_rows=6, longest=300), 16
    )
    layer = LayerAttention(0.125)
    results = []
    for seed in (0, 1, 1000, 2000):
        step = TreeStep(kernels_of("bf16", 64, seed), batch, Heads(8, 2))
        results.append(step.run(layer))
    assert all(torch.equal(result, results[0]) for result in results)


def test_shared_keys_are_loaded_once_for_all_branches_below_them(kernels_of: MakeKernels) -> None:
    """Counted by the emulator: bytes of global memory that the kernel reads."""
    kernels = kernels_of("bf16", 64)
    driver = kernels.driver
    assert isinstance(driver, EmulatedDriver)
    read = {branches: bytes_read_by_attention(kernels, driver, branches) for branches in (1, 16)}
    one = 2 * 64 * 2  # keys and values of a position
    # What is added is the branches' own, never the prefix again.
    assert read[16] < read[1] + 15 * (16 * one + 4 * 4096)


def bytes_read_by_attention(kernels: Kernels, driver: EmulatedDriver, branches: int) -> int:
    step = TreeStep(kernels, batch_of(fork(512, branches, 16, 16), 16), Heads(4, 1))
    total: list[int] = []
    run = driver.kernels.run

    def counted(launch: Launch, seed: int) -> None:
        run(launch, seed)
        total.append(driver.kernels.bytes_read)

    driver.kernels.run = counted  # type: ignore[method-assign]
    step.run(LayerAttention(0.125))
    driver.kernels.run = run  # type: ignore[method-assign]
    return sum(total[:-1])  # without the merge
