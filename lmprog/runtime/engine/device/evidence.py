"""Evidence that the kernels are right on this very device: random trees against plain arithmetic.

Done at first use and kept by device, driver and sources, because kernels that are right on an
emulator may still be wrong on hardware that nobody has tried. Knows kernels and arithmetic.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from lmprog.native import cache_folder, kernels_folder
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.engine.attention.backend import Float8Scales, in_float8
from lmprog.runtime.engine.attention.reference import attend
from lmprog.runtime.engine.device.driver import TYPE_NAMES, Driver, ModuleKey
from lmprog.runtime.engine.device.kernels import Kernels
from lmprog.runtime.engine.device.page_pool import PageReader
from lmprog.runtime.engine.device.staging import Staging
from lmprog.runtime.engine.device.step_arrays import StepPlans, step_arrays
from lmprog.runtime.engine.device.tree_attention import RopeGiven, TreeAttention
from lmprog.runtime.scheduling.batch import Batch

log = logging.getLogger("lmprog")

_TOLERANCE = {"float": 1e-4, "bf16": 2e-2, "f16": 3e-3}
"""Of a token's relative error; several times what the emulator shows."""
_SCALES = Float8Scales((1 / 128,), (0.3,))
"""With the first some normally distributed numbers are beyond the largest e4m3 float."""
_PAGE = 16
_TREES = 40


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found: the worst relative error of a token over all trees (nan where one was)."""

    worst: float
    trees: int
    is_right: bool


ReaderOf: TypeAlias = Callable[[AttentionShape], PageReader | None]
"""What reads the pages of a model of this shape; None: the tree kernels."""


def kept_evidence(
    driver: Driver, key: ModuleKey, device_name: str, attention: str, reader_of: ReaderOf
) -> Evidence:
    """Looks at most once for each device, driver, kind of attention and state of the sources.

    `device_name` tells the device and its driver apart from others.
    """
    seen = hashlib.sha256(f"{device_name}|{key}|{attention}".encode())
    for path in sorted((kernels_folder() / "cuda").iterdir()):
        seen.update(path.read_bytes())
    kept = cache_folder() / "evidence" / f"{seen.hexdigest()[:24]}.json"
    if kept.exists():
        return Evidence(**json.loads(kept.read_text()))
    log.info("first use of this device: %d random trees are compared (%s)", _TREES, attention)
    evidence = gathered(driver, key, reader_of=reader_of)
    kept.parent.mkdir(parents=True, exist_ok=True)
    fields = {"worst": evidence.worst, "trees": evidence.trees, "is_right": evidence.is_right}
    kept.write_text(json.dumps(fields))
    return evidence


def gathered(
    driver: Driver, key: ModuleKey, trees: int = _TREES, reader_of: ReaderOf = lambda _: None
) -> Evidence:
    """Compares `trees` random trees; a minute on the emulator, some two seconds on a GPU."""
    worst = 0.0
    dtype = next(dtype for dtype, name in TYPE_NAMES.items() if name == key.type_name)
    for seed in range(trees):
        layer = LayerAttention(
            key.head_dim**-0.5,
            window=[None, None, 100][seed % 3],
            softcap=[None, 15.0][seed % 2],
        )
        heads = [(4, 2), (8, 1), (3, 3)][seed % 3]
        scales = _SCALES if key.kept_name else None
        shape = AttentionShape((layer,), *heads, key.head_dim, key.head_dim, dtype, scales)
        error = tree_error(driver, key, shape, seed, reader_of)
        if not error <= worst:  # also where it is nan
            worst = error
        if worst != worst:
            break
    return Evidence(worst, trees, worst <= _TOLERANCE[key.type_name])


def tree_error(
    driver: Driver,
    key: ModuleKey,
    shape: AttentionShape,
    seed: int,
    reader_of: ReaderOf = lambda _: None,
) -> float:
    """The worst relative error of a token in one random tree, nan where anything is."""
    rng = np.random.default_rng(seed)
    batch = _tree(rng)
    num_pages = int(batch.pages.max()) + 1
    attention = TreeAttention(Kernels(driver, key), shape, num_pages, _PAGE, 1024, reader_of(shape))
    dim, heads, kv_heads = shape.head_dim, shape.num_heads, shape.num_kv_heads
    values = torch.Generator().manual_seed(seed)
    lengths = batch.kv_lens.astype(np.int64)
    # The pages are filled through the write kernel, by a batch that brings every slot once.
    slots = num_pages * _PAGE
    filling = torch.randn(slots, heads + 2 * kv_heads, dim, generator=values).to(shape.dtype)
    pool = _filled(driver, attention, filling)
    queries = (2 * torch.randn(batch.num_tokens, heads, dim, generator=values)).to(shape.dtype)
    staging = Staging(driver, 1 << 16)
    at = staging.send(step_arrays(batch, StepPlans(attention.rules).of(batch)))
    q, out = (driver.memory(queries.nbytes).view(shape.dtype).view(queries.shape) for _ in "qo")
    q.copy_(queries)
    out.fill_(float("nan"))
    attention.begin(batch)
    attention.attend(0, at, q, out)
    driver.event().wait()
    got, worst = out.cpu().double(), 0.0
    for row in range(batch.num_rows):
        first, last = int(batch.row_starts[row]), int(batch.row_starts[row + 1])
        pages = batch.pages[batch.page_starts[row] : batch.page_starts[row + 1]].astype(np.int64)
        position = np.arange(lengths[row])
        own = pool[torch.from_numpy(pages[position // _PAGE] * _PAGE + position % _PAGE)]
        at_positions = torch.from_numpy(batch.positions[first:last].astype(np.int64))
        wanted = attend(
            queries[first:last].double(),
            own[:, :kv_heads],
            own[:, kv_heads:],
            at_positions,
            shape.layers[0],
        )
        wrong = (got[first:last] - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
        if not bool(wrong.isfinite().all()):
            return float("nan")
        worst = max(worst, float(wrong.max()))
    return worst


def _filled(driver: Driver, attention: TreeAttention, filling: torch.Tensor) -> torch.Tensor:
    """Writes keys and values of every slot, unturned; the numbers that stand there now, by slot.
    # [slots, 2 * kv_heads, dim] float64
    """
    slots, _, dim = filling.shape
    turns = torch.zeros(1, dim // 2, 2)
    turns[..., 0] = 1.0  # an angle of 0
    rotations, qkv = (driver.memory(one.nbytes).view(one.dtype) for one in (turns, filling))
    rotations.copy_(turns.flatten())
    qkv.copy_(filling.flatten())
    q = driver.memory(filling.nbytes)
    each = np.arange(slots, dtype=np.int32)
    counts = np.zeros(8, np.int32)
    counts[:2] = slots
    arrays = {
        "positions": np.zeros(slots, np.int32),
        "write_tokens": each,
        "write_slots": each,
        "counts0": counts,
    }
    staging = Staging(driver, 1 << 16)
    at = staging.send(arrays)
    attention.append(0, at, qkv, q, RopeGiven(rotations, None, 0.0))
    driver.event().wait()
    shape = attention.shape
    keys, values = filling[:, shape.num_heads :].chunk(2, 1)
    if shape.float8 is not None:
        keys = in_float8(keys, shape.float8.keys[0])
        values = in_float8(values, shape.float8.values[0])
    return torch.cat((keys, values), 1).double()


def _tree(rng: np.random.Generator) -> Batch:
    """Rows that take the first pages of an earlier row and go on with their own."""
    tables: list[list[int]] = []
    starts: list[int] = []
    counts: list[int] = []
    free = list(rng.permutation(160))
    for number in range(int(rng.integers(2, 7))):
        length = int(rng.integers(1, 330))
        count = min(length, int(rng.choice([1, 1, 1, 3, 40])))
        pages: list[int] = []
        if number and rng.random() < 0.8:
            other = int(rng.integers(number))
            kept = min(starts[other], length - count) // _PAGE
            pages = tables[other][:kept]
        while len(pages) * _PAGE < length:
            pages = [*pages, int(free.pop())]
        tables.append(pages)
        starts.append(length - count)
        counts.append(count)

    def ints(values: object) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        return np.ascontiguousarray(np.array(values, np.int32))

    total = sum(counts)
    pairs = list(zip(starts, counts, strict=True))
    return Batch(
        tokens=np.zeros(total, np.int32),
        positions=ints([at for start, count in pairs for at in range(start, start + count)]),
        row_starts=ints([0, *np.cumsum(counts)]),
        kv_lens=ints([start + count for start, count in pairs]),
        page_starts=ints([0, *np.cumsum([len(pages) for pages in tables])]),
        pages=ints([page for pages in tables for page in pages]),
        write_tokens=np.zeros(0, np.int32),
        write_slots=np.zeros(0, np.int32),
        copies=np.zeros((0, 2), np.int32),
        logit_tokens=np.zeros(0, np.int32),
        page_size=_PAGE,
    )
