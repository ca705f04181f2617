"""The kernels on a GPU, compared with FlashInfer's and with the model of a step.

Copy bandwidth and the rate of products first; then, for each shape of the model, one layer of decode attention: with the
prefix shared, and with each branch reading it for itself (the same kernels, the plan without
sharing), and the same by FlashInfer where it is installed; `--cascade` adds its cascade, which may
compile for half an hour on Hopper; `--fp8` keeps keys and values as e4m3 floats. Then the sampler.
Times are medians of wall-clock over replays of a graph. On the emulated device shapes are tiny.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from benchmarks.gpu.model import SHAPES, Hardware, Shape, fork, step
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.engine.attention.backend import Float8Scales
from lmprog.runtime.engine.device.attention_choice import DeviceAttentionName, page_reader
from lmprog.runtime.engine.device.driver import Driver, ModuleKey
from lmprog.runtime.engine.device.flashinfer_reader import is_installed
from lmprog.runtime.engine.device.kernels import Kernels
from lmprog.runtime.engine.device.loading import open_driver
from lmprog.runtime.engine.device.sampling import DeviceLogits, DeviceSampler
from lmprog.runtime.engine.device.staging import Staging
from lmprog.runtime.engine.device.step_arrays import StepPlans, step_arrays
from lmprog.runtime.engine.device.tree_attention import TreeAttention
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.sampling_requests import SampleRequest
from lmprog.wire import SamplingParams

TINY = [(2, 64, 16)]
VOCAB = 128_256


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one layer, or of one call of the sampler."""

    name: str
    microseconds: float
    limit: float  # by the model, from the copy bandwidth measured here; nan where it says nothing


def timed(driver: Driver, work: Callable[[], None], repeats: int) -> float:
    """Median seconds of `work`, captured as a graph and replayed ten times between two looks at the
    clock.
    """
    graph = driver.capture(work)
    found = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        for _ in range(10):
            graph.replay()
        driver.event().wait()
        found.append((time.perf_counter() - began) / 10)
    return statistics.median(found[1:])  # the first one warms up


def copy_bandwidth(driver: Driver, num_bytes: int, repeats: int) -> float:
    """Bytes read and written in a second."""
    source, target = driver.memory(num_bytes), driver.memory(num_bytes)
    seconds = timed(driver, lambda: driver.compute(lambda: target.copy_(source)), repeats)
    return 2 * num_bytes / seconds


def product_rate(driver: Driver, size: int, repeats: int) -> float:
    """Floating-point operations a second of torch's product of two square matrices in bfloat16."""
    num_bytes = 2 * size * size
    a, b, out = (
        driver.memory(num_bytes).zero_().view(torch.bfloat16).view(size, size) for _ in range(3)
    )
    work = partial(driver.compute, partial(torch.mm, a, b, out=out))
    return 2 * size**3 / timed(driver, work, repeats)


def apart(batch: Batch) -> Batch:
    """The same step with every branch on pages of its own."""
    return replace(batch, pages=np.arange(len(batch.pages), dtype=np.int32))


def attention(
    driver: Driver,
    key: ModuleKey,
    batch: Batch,
    shape: Shape,
    repeats: int,
    name: DeviceAttentionName = "tree",
) -> float:
    """Seconds of one layer; FlashInfer's plan, made once a step, is not in it."""
    layer = LayerAttention(shape.dim**-0.5)
    heads = (shape.heads, shape.kv_heads, shape.dim, shape.dim)
    scales = Float8Scales((1.0,), (1.0,)) if key.kept_name else None
    described = AttentionShape((layer,), *heads, torch.bfloat16, scales)
    pages = int(batch.pages.max()) + 1
    reader = page_reader(name, described, driver.device)
    tree = TreeAttention(Kernels(driver, key), described, pages, batch.page_size, 256, reader)
    arrays = step_arrays(batch, StepPlans(tree.rules).of(batch))
    staging = Staging(driver, 2 * sum(array.nbytes for array in arrays.values()))
    at = staging.send(arrays)
    size = batch.num_tokens * shape.heads * shape.dim * 2
    q, out = driver.memory(size).zero_(), driver.memory(size)
    tree.fill(0.5)
    tree.begin(batch)
    return timed(driver, lambda: tree.attend(0, at, q, out), repeats)


def sampler(driver: Driver, key: ModuleKey, rows: int, vocab: int) -> float:
    """Seconds of drawing `rows` tokens with top-p, all of what the host does included."""
    values = driver.memory(rows * vocab * 4).view(torch.float32).view(rows, vocab)
    values.copy_(torch.randn(rows, vocab))
    picks = [SampleRequest(row, SamplingParams(top_p=0.9), 1, row) for row in range(rows)]
    made, found = DeviceSampler(Kernels(driver, key), vocab), []
    for _ in range(5):
        began = time.perf_counter()
        made.sample(DeviceLogits(values, rows), picks, [])
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def measures(
    device: str, has_cascade: bool = False, kept: str = ""
) -> Iterator[tuple[str, Callable[[], Timing]]]:
    """What is measured, by name, to be called in this order: the first gives the bandwidth that
    limits are made of. `kept` "e4m3": keys and values are such floats.
    """
    is_tiny = device == "emulated"
    shape = Shape(heads=4, kv_heads=2, dim=64) if is_tiny else Shape()
    shape = replace(shape, kept_bytes=1 if kept else 2)
    key, repeats = ModuleKey("bf16", shape.dim, kept), 1 if is_tiny else 50
    driver = open_driver(device, key)
    hardware = Hardware()

    def copied() -> Timing:
        nonlocal hardware
        bandwidth = copy_bandwidth(driver, 1 << (16 if is_tiny else 30), repeats)
        hardware = replace(hardware, bytes_per_second=bandwidth)
        return Timing(f"copy {bandwidth / 1e9:.0f} GB/s", float("nan"), float("nan"))

    def multiplied() -> Timing:
        products = product_rate(driver, 64 if is_tiny else 8192, repeats)
        return Timing(f"products {products / 1e12:.0f} TFLOP/s", float("nan"), float("nan"))

    def attended(title: str, kind: DeviceAttentionName, batch: Batch, is_shared: bool) -> Timing:
        best = step(batch, shape, hardware)
        limit = best.once if is_shared else best.paged
        one = batch if is_shared else apart(batch)
        seconds = attention(driver, key, one, shape, repeats, kind)
        return Timing(title, seconds * 1e6, limit / shape.layers * 1e6)

    def sampled(title: str, count: int) -> Timing:
        seconds = sampler(driver, key, count, 300 if is_tiny else VOCAB)
        return Timing(title, seconds * 1e6, float("nan"))

    yield "copy", copied
    yield "products", multiplied
    kinds: list[DeviceAttentionName] = ["tree"]
    if is_installed() and not is_tiny:
        kinds += ["flashinfer", "cascade"] if has_cascade else ["flashinfer"]
    for branches, prefix, own in TINY if is_tiny else SHAPES:
        batch = fork(branches, prefix, own)
        for name in ("shared", "apart"):
            for kind in kinds:
                title = f"{kind} attention {branches} x {prefix} + {own}, {name}"
                yield title, partial(attended, title, kind, batch, name == "shared")
    for count in (1, 2) if is_tiny else (1, 64, 256):
        yield f"sampler {count} rows", partial(sampled, f"sampler {count} rows", count)


def measure(device: str, has_cascade: bool = False, kept: str = "") -> list[Timing]:
    """See `measures`."""
    return [work() for _, work in measures(device, has_cascade, kept)]
