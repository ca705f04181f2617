"""Faults planted in kernels and plan are found: tests that could not fail would prove nothing.

Each fault in a kernel is compiled by itself, for a second. So every eighth is tried here, and all
of them in the night: `LMPROG_FAULTS_EVERY=1 pytest tests/cuda/test_planted_faults.py`.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from lmprog.native import compiler, kernels_folder
from lmprog.runtime.engine.attention import LayerAttention
from lmprog.runtime.engine.attention.backend import e4m3
from lmprog.runtime.engine.device import emulated_driver, items
from lmprog.runtime.engine.device.driver import KernelsKey, ModuleKey, ProductKey
from lmprog.runtime.engine.device.emulated_driver import (
    EmulatedDriver,
    KernelFault,
    emulated_kernels,
)
from lmprog.runtime.engine.device.items import Tiling
from lmprog.runtime.engine.device.kernels import WEIGHT_KINDS, Kernels, MergeArgs, address
from lmprog.runtime.engine.device.sampling import DeviceLogits, DeviceSampler
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest
from lmprog.wire import SamplingParams
from tests.cuda.attending import TOLERANCE, Heads, TreeStep, error, ints, placed
from tests.cuda.planted import ATTENTION, BETWEEN, FLOAT8, PLAN, PRODUCTS, SAMPLING, Fault
from tests.cuda.test_items import read_once
from tests.cuda.test_products import error as product_error
from tests.cuda.test_products import inputs_of, multiplied, small_weight
from tests.cuda.trees import Row, batch_of, fork, random_rows
from tests.cuda.writing import written
from tests.sampler.plain import mask_of

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
EVERY = int(os.environ.get("LMPROG_FAULTS_EVERY", "8"))
KEY = ModuleKey("bf16", 64)
FLOAT8_KEY = ModuleKey("bf16", 64, "e4m3")


def tried(faults: dict[str, Fault]) -> list[str]:
    """The names of those that are compiled."""
    return list(faults)[::EVERY]


def patched(fault: Fault, text: str) -> str:
    """`text` with the fault in it; spaces and line ends do not matter."""
    file, old, new = fault
    words = re.findall(r"\w+|[^\w\s]", old)
    pattern = r"\s*".join(map(re.escape, words))
    found = re.findall(pattern, text)
    assert len(found) == 1, f"{len(found)} times in {file}: {old}"
    return re.sub(pattern, lambda _: new, text)


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the sources include of the standard library, read once for all compilations."""
    made = tmp_path_factory.mktemp("headers") / "standard.h"
    texts = [path.read_text() for path in (kernels_folder() / "cuda").glob("*.h")]
    made.write_text("\n".join(re.findall(r"^#include <.*>", "\n".join(texts), re.MULTILINE)))
    command = [str(compiler()), "-O0", *emulated_driver._FLAGS, "-x", "c++-header", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: Path) -> Iterator[None]:
    """What is compiled here is of no use to anybody."""
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path / "cache"))
    flags = (*emulated_driver._FLAGS, "-include", str(headers))
    monkeypatch.setattr(emulated_driver, "_FLAGS", flags)
    yield
    shutil.rmtree(tmp_path, ignore_errors=True)


SAMPLERS = frozenset(["mask_sample", "score_rows"])
READERS = frozenset(["tree_attention_small", "tree_attention_large", "tree_merge", "rope_append"])
OTHERS = frozenset(["norm_add", "silu_mul", "kv_copy"])


def leave_out_others(sources: Path, needed: frozenset[str]) -> None:
    """Kernels that the test of a fault does not launch are not compiled: that takes longest."""
    for name, begin in (
        ("module.cu", r"LM_KERNEL\({}, [^{{]*{{[^}}]*}}"),
        ("emulated.cpp", r"LM_ENTRY\({}, .*\),"),
    ):
        text = (sources / name).read_text()
        for kernel in (SAMPLERS | READERS | OTHERS) - needed:
            text, count = re.subn(begin.format(kernel), "", text)
            assert count == (2 if (name, kernel) in TWICE else 1), kernel
        (sources / name).write_text(text)


TWICE = {(name, "tree_attention_small") for name in ("module.cu", "emulated.cpp")}
"""For floats, and for others."""


def kernels_with(
    fault: Fault,
    folder: Path,
    seed: int,
    products: ProductKey | None = None,
    own: ModuleKey = KEY,
    needed: frozenset[str] = READERS,
) -> Kernels:
    """Those of `own`, or `products` alone."""
    sources = Path(shutil.copytree(kernels_folder() / "cuda", folder / "cuda"))
    path = sources / fault[0]
    path.write_text(patched(fault, path.read_text()))
    if products is None:
        leave_out_others(sources, needed)
    key: KernelsKey = products or own
    driver = EmulatedDriver(emulated_kernels(key, sources=sources, optimize="-O0"), seed)
    return Kernels(driver, own, products)


def attention_is_right(kernels: Kernels) -> None:
    """Two small batches that meet every branch of the attention kernels."""
    parted = [*fork(64, 5, 24, 16), Row(200, 80, tuple(range(60, 78))), *fork(288, 2, 20, 16)]
    late = [
        Row(310, 40, tuple(range(22))),
        Row(330, 1, tuple(range(30, 51))),
        Row(505, 20, tuple(range(60, 93))),
    ]
    for rows, layer in (
        (parted, LayerAttention(0.125, softcap=8.0)),
        (late, LayerAttention(0.125, window=20)),
        (late[:2], LayerAttention(0.125, window=20, sinks=(-3.0, 0.5, 2.0, 1.0))),
    ):
        step = TreeStep(kernels, batch_of(rows, 16), Heads(4, 2))
        assert error(step.run(layer), step.expected(layer)) < TOLERANCE["bf16"]
    step.first_page = 1 << 21  # pools of more numbers than 32 bits count
    assert error(step.run(layer), step.expected(layer)) < TOLERANCE["bf16"]
    merge_is_right(kernels)


def merge_is_right(kernels: Kernels) -> None:
    """Partials whose weights are farther apart than floats reach; the heaviest one is the last,
    then the first.
    """
    driver, dim = kernels.driver, kernels.key.head_dim
    partials = torch.randn(6, dim, generator=torch.Generator().manual_seed(0))
    weights = [-40.0, 0.0, 160.0, 127.0, -127.0, 0.0]
    there, sums = placed(driver, partials), placed(driver, torch.tensor(weights))
    counts, starts = ints(driver, [2, *([0] * 7)]), ints(driver, [0, 3, 6])
    out = driver.memory(2 * dim * 2).view(torch.bfloat16).view(2, dim)
    args = MergeArgs(
        partials=address(there),
        sums=address(sums),
        out=address(out),
        counts=address(counts),
        part_starts=address(starts),
        sinks=None,
        heads=1,
    )
    kernels.launch("tree_merge", args)
    driver.event().wait()
    assert error(out, partials[[2, 3]]) < TOLERANCE["bf16"]


def products_are_right(kernels: Kernels) -> None:
    """Few tokens, many, and so many that torch multiplies."""
    for kind in WEIGHT_KINDS:
        weight = small_weight(kind, 128)
        for rows, tokens in ((10, 9), (20, 20), (66, 66)):
            x = inputs_of(rows, torch.bfloat16)
            got = multiplied(kernels, weight, x, tokens)
            assert product_error(got[:tokens], x[:tokens], weight) < 6e-3
            assert rows > 64 or bool(got[tokens:].isnan().all())


def float8_is_right(kernels: Kernels) -> None:
    """Numbers of all sizes are written; both tiles read them; what is no number is not lost."""
    sizes = 2.0 ** torch.arange(-12, 12)[:, None, None]
    drawn = torch.randn(24, 1, 64, generator=torch.Generator().manual_seed(0)) * sizes
    drawn[3, 0, :5] = torch.tensor([17.0, 19.0, 500.0, -1e9, torch.nan])
    drawn = drawn.bfloat16()
    scales = (1.0, 0.3)
    pages = written(kernels, drawn.nan_to_num(0.0), drawn, scales)
    for side, given in enumerate((drawn.nan_to_num(0.0), drawn)):
        wanted = e4m3(given, scales[side])
        assert torch.equal(pages[side].float().nan_to_num(1e9), wanted.float().nan_to_num(1e9))
    rows = [*fork(48, 20, 9, 16), Row(0, 40, (100, 101, 102))]
    step, layer = TreeStep(kernels, batch_of(rows, 16), Heads(4, 1)), LayerAttention(0.125)
    assert error(step.run(layer), step.expected(layer)) < TOLERANCE["bf16"]
    for side in (0, 1):
        before = step.kv.clone()
        step.kv.view(torch.uint8)[1, side, 0, 2, 40] = 0x7F
        assert bool(step.run(layer)[:20].isnan().flatten(1).any(1).all())
        step.kv.copy_(before)


def sampling_is_right(kernels: Kernels) -> None:
    """Every rule once, in two rows each."""
    size = 300
    values = torch.from_numpy(np.random.default_rng(1).normal(0, 2, (12, size)).astype(np.float32))
    values[0, [7, 200]] = 9.0
    rules = [
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=9),
        SamplingParams(top_p=0.5),
        SamplingParams(min_p=0.2),
        SamplingParams(temperature=0.0, repetition_penalty=1.7),
        SamplingParams(top_p=0.9, top_k=40, presence_penalty=1.0),
    ]
    generated = tuple(range(0, size, 3))
    mask = mask_of(list(range(0, size, 5)), size, False)
    picks = [
        SampleRequest(
            row, rules[row % 6], 3, row, generated=generated, mask=mask if row > 6 else None
        )
        for row in range(12)
    ]
    values[[4, 10], 297], values[10, 295] = 8.0, 7.0
    # Half of the mass in one token: above the next ones lies exactly what top-p = 0.5 wants.
    values[[2, 8]] = -1000.0
    values[[2, 8], 5], values[[2, 8], 10], values[[2, 8], 15] = 0.0, -math.log(2), -math.log(2)
    scores = [ScoreRequest(4, (1, 2))]
    broken = torch.zeros(3, 900)
    broken[0, 0], broken[1, 700], broken[2, 31] = math.nan, -math.inf, math.inf
    there = DeviceLogits(placed(kernels.driver, broken), 3)
    greedy = [SampleRequest(row, rules[0], 0, 0) for row in range(3)]
    assert DeviceSampler(kernels, 900).sample(there, greedy, ()).samples == (None,) * 3
    there = DeviceLogits(placed(kernels.driver, values), 12)
    got = DeviceSampler(kernels, size).sample(there, picks, scores)
    wanted = TorchSampler().sample(values, picks, scores)
    assert [one and one.token for one in got.samples] == [
        one and one.token for one in wanted.samples
    ]
    assert got.scores[0] is not None
    assert wanted.scores[0] is not None
    assert got.scores[0].logprobs == pytest.approx(wanted.scores[0].logprobs, abs=1e-5)
    assert torch.equal(there.values, values)


@needs_compiler
def test_nothing_is_found_where_nothing_is_planted() -> None:
    """In the kernels that all other tests use."""

    def unchanged(key: KernelsKey, seed: int = 0) -> Kernels:
        products = key if isinstance(key, ProductKey) else None
        own = KEY if isinstance(key, ProductKey) else key
        return Kernels(EmulatedDriver(emulated_kernels(key), seed), own, products)

    for seed in range(3):
        kernels = unchanged(KEY, seed)
        attention_is_right(kernels)
        sampling_is_right(kernels)
    products_are_right(unchanged(ProductKey("bf16")))
    float8_is_right(unchanged(FLOAT8_KEY))


@needs_compiler
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", tried(ATTENTION))
def test_a_fault_in_attention_is_found(tmp_path: Path, name: str) -> None:
    kernels = kernels_with(ATTENTION[name], tmp_path, 0)
    with pytest.raises((AssertionError, KernelFault)):
        attention_is_right(kernels)


@needs_compiler
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", tried(BETWEEN))
def test_a_fault_in_heads_that_are_no_power_of_two_is_found(tmp_path: Path, name: str) -> None:
    kernels = kernels_with(BETWEEN[name], tmp_path, 0, own=ModuleKey("bf16", 80))
    with pytest.raises((AssertionError, KernelFault)):
        attention_is_right(kernels)


@needs_compiler
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", tried(SAMPLING))
def test_a_fault_in_sampling_is_found(tmp_path: Path, name: str) -> None:
    kernels = kernels_with(SAMPLING[name], tmp_path, 0, needed=SAMPLERS)
    with pytest.raises((AssertionError, KernelFault)):
        sampling_is_right(kernels)


@needs_compiler
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", tried(PRODUCTS))
def test_a_fault_in_products_is_found(tmp_path: Path, name: str) -> None:
    kernels = kernels_with(PRODUCTS[name], tmp_path, 0, ProductKey("bf16"))
    with pytest.raises((AssertionError, KernelFault)):
        products_are_right(kernels)


@needs_compiler
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", tried(FLOAT8))
def test_a_fault_in_pages_of_bytes_is_found(tmp_path: Path, name: str) -> None:
    kernels = kernels_with(FLOAT8[name], tmp_path, 0, own=FLOAT8_KEY)
    with pytest.raises((AssertionError, KernelFault)):
        float8_is_right(kernels)


def plan_is_right(planner: ModuleType) -> None:
    """A few of the random trees of the plan's own tests."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        rows = random_rows(rng, page_size=16, num_rows=7, longest=700)
        batch, window = batch_of(rows, 16), [None, 100][seed % 2]
        read_once(batch, planner.plan_items(batch, Tiling(group=2, fold=1), window), window)


@pytest.mark.parametrize("name", PLAN)
def test_a_fault_in_the_plan_is_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / "faulty_items.py"
    path.write_text(patched(PLAN[name], Path(items.__file__).read_text()))
    spec = importlib.util.spec_from_file_location("faulty_items", path)
    assert spec is not None
    assert spec.loader is not None
    faulty = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = faulty  # dataclasses look their module up
    try:
        spec.loader.exec_module(faulty)
        with pytest.raises((AssertionError, IndexError, ValueError)):
            plan_is_right(faulty)
    finally:
        del sys.modules[spec.name]


def test_there_are_many_faults() -> None:
    plan_is_right(items)
    kinds = (ATTENTION, BETWEEN, SAMPLING, PLAN, PRODUCTS, FLOAT8)
    assert sum(map(len, kinds)) >= 78


@pytest.mark.parametrize("kind", [ATTENTION, BETWEEN, SAMPLING, PRODUCTS, FLOAT8])
def test_every_fault_fits_the_sources(kind: dict[str, Fault]) -> None:
    for fault in kind.values():
        source = (kernels_folder() / "cuda" / fault[0]).read_text()
        assert patched(fault, source) != source
