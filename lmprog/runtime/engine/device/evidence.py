"""Evidence that the kernels are right on this very device: random trees, and every other kernel and
product, against plain arithmetic.

Gathered at first use, because kernels that are right on an emulator may still be wrong on hardware
that nobody has tried. What was right is kept by device, driver, compiler and sources; what was
wrong is looked at again at the next start. Knows kernels and arithmetic.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, get_args

import numpy as np
import torch
from torch.nn import functional

from lmprog.errors import NotSupported
from lmprog.native import cache_folder, kernels_folder
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.engine.attention.backend import Float8Scales, in_float8
from lmprog.runtime.engine.attention.reference import attend
from lmprog.runtime.engine.device.driver import TYPE_NAMES, Driver, ModuleKey
from lmprog.runtime.engine.device.kernels import (
    NUM_COUNTS,
    Count,
    Kernels,
    NormArgs,
    SiluArgs,
    address,
)
from lmprog.runtime.engine.device.page_pool import PageReader
from lmprog.runtime.engine.device.products import (
    Product,
    ProductInputs,
    Products,
    QuantizedWeight,
    WeightKind,
    of_floats,
    rounded,
    unpacked,
)
from lmprog.runtime.engine.device.sampling import DeviceLogits, DeviceSampler
from lmprog.runtime.engine.device.staging import Staging
from lmprog.runtime.engine.device.step_arrays import StepPlans, step_arrays
from lmprog.runtime.engine.device.tree_attention import RopeGiven, TreeAttention, placed
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest
from lmprog.wire import SamplingParams

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


ReaderOf: TypeAlias = Callable[[AttentionShape], PageReader[Any] | None]
"""What reads the pages of a model of this shape; None: the tree kernels."""


def kept_evidence(
    driver: Driver,
    key: ModuleKey,
    device_name: str,
    attention: str,
    reader_of: ReaderOf,
    like: AttentionShape | None = None,
) -> Evidence:
    """Of a kind of attention. Where it was right once it is not looked at again.

    `device_name` tells the device, its driver and what compiles for it apart from others. `like`:
    the model whose rules and heads alone are looked at, where others would be compiled for minutes.
    """
    rules = "" if like is None else f"|{_rules(like)}"
    kept = _place(f"{device_name}|{key}|{attention}{rules}")
    if kept.exists():
        return Evidence(**json.loads(kept.read_text()))
    log.info("first use of this device: %d random trees are compared (%s)", _TREES, attention)
    if like is not None:
        log.info("%s compiles its kernels for this model, which may take minutes", attention)
    evidence = gathered(driver, key, reader_of=reader_of, like=like)
    if evidence.is_right:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(asdict(evidence)))
    return evidence


def require_right_kernels(kernels: Kernels, device_name: str) -> None:
    """Raises NotSupported where a kernel or a product besides attention is wrong on this device.
    Where all were right once they are not looked at again.
    """
    kept = _place(f"{device_name}|{sorted(kernels.shapes)}|{kernels.key}")
    if kept.exists():
        return
    log.info("first use of this device: every kernel is compared with plain arithmetic")
    errors = kernel_errors(kernels)
    wrong = wrong_kernels(errors, kernels.key)
    if wrong:
        said = ", ".join(f"{name} ({errors[name]:.2g})" for name in wrong)
        raise NotSupported(
            f"wrong on {device_name}, by their relative errors: {said}; please report this. "
            "device='cpu' is not concerned"
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(errors))


def _place(seen: str) -> Path:
    """Where it is kept what these sources gave."""
    digest = hashlib.sha256(f"{seen}|torch {torch.__version__}".encode())
    for path in sorted((kernels_folder() / "cuda").iterdir()):
        digest.update(path.read_bytes())
    return cache_folder() / "evidence" / f"{digest.hexdigest()[:24]}.json"


def gathered(
    driver: Driver,
    key: ModuleKey,
    trees: int = _TREES,
    reader_of: ReaderOf = lambda _: None,
    like: AttentionShape | None = None,
) -> Evidence:
    """Compares `trees` random trees; a minute on the emulator, some two seconds on a GPU. With
    windows, caps, sinks and groups of heads of all kinds, or those of `like` alone.
    """
    worst = 0.0
    dtype = _dtype(key)
    for seed in range(trees):
        heads: Sequence[int] = [(4, 2), (8, 1), (3, 3)][seed % 3]
        sinks = tuple(float(head % 3 * 8 - 8) for head in range(heads[0]))
        layer = LayerAttention(
            key.head_dim**-0.5,
            window=[None, None, 100][seed % 3],
            softcap=[None, 15.0][seed % 2],
            sinks=[None, sinks][seed % 4 // 2],
        )
        if like is not None:
            layers, *heads = _rules(like)
            layer = layers[seed % len(layers)]
        scales = _SCALES if key.kept_name else None
        num_heads, num_kv_heads = heads
        dim = key.head_dim
        shape = AttentionShape((layer,), num_heads, num_kv_heads, dim, dim, dtype, scales)
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


def _rules(shape: AttentionShape) -> tuple[tuple[LayerAttention, ...], int, int]:
    """The different layers of a model, and its heads."""
    return tuple(dict.fromkeys(shape.layers)), shape.num_heads, shape.num_kv_heads


def _dtype(key: ModuleKey) -> torch.dtype:
    return next(dtype for dtype, name in TYPE_NAMES.items() if name == key.type_name)


# --- all other kernels ----------------------------------------------------------------------------

_HIDDEN, _TOKENS, _VOCAB = 2056, 5, 3000
_OUTPUTS, _INPUTS = 70, 584
"""Neither whole tiles of outputs nor whole chunks of inputs."""
_KEPT_TOLERANCE = 1e-2
"""Of keys and values of 8 bits: one that is rounded the other way is a sixteenth off."""
_SUBNORMAL = 1e-30


def wrong_kernels(errors: Mapping[str, float], key: ModuleKey) -> list[str]:
    """Those that are farther off than their type explains."""
    most = dict.fromkeys(errors, _TOLERANCE[key.type_name])
    if key.kept_name:
        most["rope_append"] = max(most["rope_append"], _KEPT_TOLERANCE)
    return [name for name, error in errors.items() if not error <= most[name]]


def kernel_errors(kernels: Kernels) -> dict[str, float]:
    """How far every kernel but attention and its merge, and torch's product, are from their plain
    twins: of the whole result, relative; nan where anything is. Copies and choices are right (0) or
    wrong (nan).
    """
    looks: dict[str, Callable[[Kernels], float]] = {
        "norm_add": _norm_error,
        "silu_mul": _silu_error,
        "rope_append": _rope_error,
        "kv_copy": _copy_error,
        "mask_sample": _choice_error,
        "score_rows": _score_error,
        "torch's product": partial(_product_error, weight=None),
    }
    kinds: tuple[WeightKind, ...] = get_args(WeightKind)
    for kind in kinds:
        if f"product_{kind}_few" in kernels.shapes:
            looks[f"products of {kind}"] = partial(_product_error, weight=_small(kind))
    return {name: look(kernels) for name, look in looks.items()}


def _random(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def _off(got: torch.Tensor, wanted: torch.Tensor) -> float:
    there = got.cpu().double()
    return float((there - wanted).norm() / (wanted.norm() + _SUBNORMAL))


def _worst(errors: list[float]) -> float:
    """nan where any is."""
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error)


def _counts(driver: Driver) -> torch.Tensor:
    """Of a step with these tokens."""
    return placed(driver, torch.tensor([_TOKENS] * NUM_COUNTS, dtype=torch.int32))


def _norm_error(kernels: Kernels) -> float:
    driver, dtype = kernels.driver, _dtype(kernels.key)
    x, added, weight = (
        given.to(dtype)
        for given in (_random(_TOKENS, _HIDDEN), _random(_HIDDEN, _TOKENS).t(), _random(_HIDDEN))
    )
    there, more, factor = (placed(driver, given) for given in (x, added, weight))
    out, counts = placed(driver, torch.full_like(x, math.nan)), _counts(driver)
    args = NormArgs(
        x=address(there),
        added=address(more),
        weight=address(factor),
        out=address(out),
        counts=address(counts),
        hidden=_HIDDEN,
        count_at=Count.TOKENS,
        eps=0.5,
        factor=2.0,
    )
    kernels.launch("norm_add", args)
    driver.event().wait()
    total = (x.double() + added.double()).to(dtype).double()
    wanted = total * 2 / (total.pow(2).sum(-1, keepdim=True) + 0.5).sqrt() * weight.double()
    return _worst([_off(out, wanted), _off(there, total)])


def _silu_error(kernels: Kernels) -> float:
    driver, dtype = kernels.driver, _dtype(kernels.key)
    both = (_random(_TOKENS, 2 * _HIDDEN) * 3).to(dtype)
    there, counts = placed(driver, both), _counts(driver)
    gate, up = both.double().chunk(2, -1)
    opened = [functional.silu(gate), functional.gelu(gate, approximate="tanh")]
    errors = []
    for is_gelu, wanted in enumerate(opened):
        out = placed(driver, torch.full((_TOKENS, _HIDDEN), math.nan, dtype=dtype))
        args = SiluArgs(
            gate_up=address(there),
            out=address(out),
            counts=address(counts),
            inner=_HIDDEN,
            count_at=Count.TOKENS,
            is_gelu=is_gelu,
        )
        kernels.launch("silu_mul", args)
        driver.event().wait()
        errors.append(_off(out, wanted * up))
    return _worst(errors)


def _some_attention(kernels: Kernels) -> TreeAttention:
    """A layer of a few small pages."""
    key = kernels.key
    scales = _SCALES if key.kept_name else None
    layer, dim = LayerAttention(key.head_dim**-0.5), key.head_dim
    shape = AttentionShape((layer,), 6, 2, dim, dim, _dtype(key), scales)
    return TreeAttention(kernels, shape, 4, 8, 64)


def _rope_error(kernels: Kernels) -> float:
    """Of heads that are normalized and turned: queries, and keys and values in their slots."""
    driver, attention = kernels.driver, _some_attention(kernels)
    shape, dim = attention.shape, attention.shape.head_dim
    heads, kv_heads, both = shape.num_heads, shape.num_kv_heads, 8
    qkv = _random(_TOKENS, both + kv_heads, dim).to(shape.dtype)
    norm = (1 + 0.2 * _random(both, dim)).to(shape.dtype)
    turns = torch.polar(torch.ones(40, dim // 2), 3 * _random(40, dim // 2))
    positions, slots = np.array([3, 0, 39, 17, 4], np.int32), np.array([9, 30, 0, 21, 10], np.int32)
    staging = Staging(driver, 1 << 12)
    at = staging.send(
        {
            "positions": positions,
            "write_tokens": np.arange(_TOKENS, dtype=np.int32),
            "write_slots": slots,
            "counts0": np.full(NUM_COUNTS, _TOKENS, np.int32),
        }
    )
    given = RopeGiven(placed(driver, torch.view_as_real(turns)), placed(driver, norm), 1e-5)
    q = placed(driver, torch.full((_TOKENS, heads, dim), math.nan, dtype=shape.dtype))
    there = placed(driver, qkv)
    attention.append(0, at, there, q, given)
    driver.event().wait()
    exact = qkv.double()
    turned = exact[:, :both] / (exact[:, :both].pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    turned = torch.view_as_complex((turned * norm.double()).view(_TOKENS, both, dim // 2, 2))
    exact[:, :both] = torch.view_as_real(turned * turns[positions][:, None]).flatten(-2)
    pages = attention.pages.memory.cpu().view(shape.kept).view(-1, 2, kv_heads, 8, dim)
    found = pages[slots // 8, :, :, slots % 8].double()  # [tokens, 2, kv_heads, dim]
    errors = [_off(q, exact[:, :heads])]
    for side, wanted in enumerate((exact[:, heads:both], exact[:, both:])):
        scale = 1.0
        if shape.float8 is not None:
            scale = (shape.float8.keys, shape.float8.values)[side][0]
            wanted = in_float8(wanted, scale).double()
        errors.append(_off(found[:, side] * scale, wanted))
    return _worst(errors)


def _copy_error(kernels: Kernels) -> float:
    """All sources are read before a target is written."""
    attention = _some_attention(kernels)
    pool, shape = attention.pages.memory, attention.shape
    before = torch.randint(0, 255, (len(pool),), dtype=torch.uint8)
    pool.copy_(before)
    copies = torch.tensor([(3, 17), (17, 30), (30, 3), (8, 9)], dtype=torch.int32)
    attention.copy(copies)
    attention.driver.event().wait()
    sizes = (-1, 2, shape.num_kv_heads, 8, len(pool) // 4 // 2 // shape.num_kv_heads // 8)
    old, got = before.view(sizes), pool.cpu().view(sizes)
    wanted = old.clone()
    for source, target in copies.tolist():
        wanted[target // 8, :, :, target % 8] = old[source // 8, :, :, source % 8]
    return 0.0 if torch.equal(got, wanted) else math.nan


class _EveryFifth:
    """A mask, as far as samplers ask it."""

    ids = None
    count = len(range(0, _VOCAB, 5))

    def __init__(self) -> None:
        bits = np.zeros(-(-_VOCAB // 32) * 32, np.uint8)
        bits[:_VOCAB:5] = 1
        self.bits = np.packbits(bits, bitorder="little").view(np.uint32)

    def allows(self, token: int) -> bool:
        return token % 5 == 0


def _choice_error(kernels: Kernels) -> float:
    """Every rule of sampling, in two rows each: the very tokens that the processor chooses."""
    rules = [
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=9),
        SamplingParams(top_p=0.5),
        SamplingParams(min_p=0.2),
        SamplingParams(temperature=0.0, repetition_penalty=1.7),
        SamplingParams(top_p=0.9, top_k=40, presence_penalty=1.0),
        SamplingParams(temperature=1.5),
    ]
    rows = 2 * len(rules)
    logits, mask = 2 * _random(rows, _VOCAB), _EveryFifth()
    generated = tuple(range(0, _VOCAB, 3))
    picks = [
        SampleRequest(
            row,
            rules[row % len(rules)],
            3,
            row,
            generated=generated,
            mask=mask if row >= len(rules) else None,  # type: ignore[arg-type]
        )
        for row in range(rows)
    ]
    there = placed(kernels.driver, logits)
    got = DeviceSampler(kernels, _VOCAB).sample(DeviceLogits(there, rows), picks, ())
    wanted = TorchSampler().sample(logits, picks, ())
    tokens = [[one and one.token for one in found.samples] for found in (got, wanted)]
    is_restored = torch.equal(there.cpu(), logits)
    return 0.0 if tokens[0] == tokens[1] and is_restored else math.nan


def _score_error(kernels: Kernels) -> float:
    logits = 2 * _random(3, _VOCAB)
    asked = ScoreRequest(1, (7, _VOCAB - 1))
    there = DeviceLogits(placed(kernels.driver, logits), 3)
    (got,) = DeviceSampler(kernels, _VOCAB).sample(there, (), (asked,)).scores
    wanted = logits.double().log_softmax(1)[[1, 2], asked.targets]
    return math.nan if got is None else _off(torch.tensor(got.logprobs).double(), wanted)


def _small(kind: WeightKind) -> QuantizedWeight:
    weight = _random(_OUTPUTS, _INPUTS)
    if kind != "fp8":
        return rounded(weight, kind)
    bits = weight.to(torch.float8_e4m3fn).view(torch.uint8)
    return of_floats(bits, torch.rand(_OUTPUTS, 2) / 100 + 0.01, 384)


def _product_error(kernels: Kernels, weight: QuantizedWeight | None) -> float:
    """The tile of few tokens, that of many, and torch's product; with a bias."""
    driver, dtype = kernels.driver, _dtype(kernels.key)
    products = Products(kernels)
    products.make_room(dtype)
    bias, numbers = _random(_OUTPUTS).to(dtype), _random(_OUTPUTS, _INPUTS).to(dtype)
    own: Product = placed(driver, numbers.t().contiguous())
    if weight is not None:
        numbers = unpacked(weight)
        words, scales = placed(driver, weight.words), placed(driver, weight.scales)
        own = QuantizedWeight(weight.kind, words, scales, weight.inputs, weight.group)
    added, errors = placed(driver, bias), []
    for tokens in (3, 20, 66):
        x = _random(tokens, _INPUTS).to(dtype)
        counts = placed(driver, torch.full((NUM_COUNTS,), tokens, dtype=torch.int32))
        out = placed(driver, torch.full((tokens, _OUTPUTS), math.nan, dtype=dtype))
        given = ProductInputs(placed(driver, x), address(counts), Count.TOKENS)
        products.issue(given, own, added, out)
        driver.event().wait()
        errors.append(_off(out, x.double() @ numbers.double().t() + bias.double()))
    return _worst(errors)
