"""LoRA adapters: those that a configuration names, read from folders of PEFT's layout, checked
against the shape of their base, and packed as the native engine reads them.

Fields of adapter_config.json by which PEFT computes something else than `up @ (down @ x)` with a
scale are refused by name. Packed, every low-rank part is in float32, in panels of 32 outputs
(`lmprog_engine.h`), in one block of memory. Knows the names of weights in such files, and in
which product of a model each of them stands.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter, ModelError
from lmprog.runtime.documents.checkpoint_documents import json_document
from lmprog.runtime.engine.machine.resources import Region, aligned
from lmprog.runtime.engine.model import weight_table
from lmprog.runtime.engine.model.checkpoint import FLOATS, Checkpoint, listed
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.model.weight_table import up32
from lmprog.runtime.engine.native import interface
from lmprog.runtime.engine.native.engine import PackedAdapters

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PRODUCTS = ("qkv", "out", "gate_up", "down", "gates")
"""Of a layer: what adapters change, in the order of the C interface."""
_PREFIX = "base_model.model."
_ENDS = (".lora_A.weight", ".lora_B.weight")

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Raised:
    """Outputs `first .. first + len(up)` of a product gain `up @ t[rank_first ..]`, where t is what
    the product's `down` gives, as many numbers as `up` has columns. Of gate_up, gates come first,
    then all ups. The adapter's scale is in `up`.
    """

    first: int
    rank_first: int
    up: Floats  # [outputs, rank]


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one product."""

    down: Floats  # [ranks, inputs], the changed weights' one after the other
    raised: tuple[Raised, ...]


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter of one base."""

    name: str
    digest: str
    """Of its files' content: caches and checkpoints know it by this."""
    layers: tuple[Mapping[str, LowRank], ...]
    """By the name of the product, one of `PRODUCTS`; what it does not change is absent."""

    @property
    def num_bytes(self) -> int:
        """Of all its numbers."""
        return sum(
            part.down.nbytes + sum(one.up.nbytes for one in part.raised)
            for layer in self.layers
            for part in layer.values()
        )


def read_adapter(name: str, folder: Path, shape: ModelShape) -> Adapter:
    """Raises `ModelError`, which names the folder and all that is wrong with its weights."""
    config = read_adapter_config(folder)
    weights = folder / WEIGHTS
    if not weights.is_file():
        pickled = " (pickled files, .bin, are not read)" if list(folder.glob("*.bin")) else ""
        raise ModelError(f"{folder} has no {WEIGHTS}{pickled}")
    digest = hashlib.sha256((folder / CONFIG).read_bytes() + b"\0")
    with weights.open("rb") as opened:
        digest.update(hashlib.file_digest(opened, "sha256").digest())
    reader = _Reader(folder, Checkpoint(weights), config)
    layers = reader.layers(shape)
    return Adapter(name, digest.hexdigest()[:32], layers)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where rows `begin .. begin + rows` of a module, which has `of` in all, stand in a product."""

    first: int
    begin: int
    rows: int
    of: int
    inputs: int


class _Reader:
    """One folder's weights."""

    def __init__(self, folder: Path, stored: Checkpoint, config: AdapterConfig) -> None:
        self._folder = folder
        self._stored = stored
        self._config = config

    def layers(self, shape: ModelShape) -> tuple[Mapping[str, LowRank], ...]:
        places = [_places(shape, layer) for layer in range(shape.num_layers)]
        modules = {module for layer in places for product in layer.values() for module in product}
        self._check_names(modules)
        return tuple(
            {
                name: self._low_rank(product)
                for name, product in layer.items()
                if any(self._has(module) for module in product)
            }
            for layer in places
        )

    def _has(self, module: str) -> bool:
        return f"{_PREFIX}{module}{_ENDS[0]}" in self._stored.names

    def _check_names(self, modules: set[str]) -> None:
        """Every weight must be of a module that is computed with, and have its other half."""
        wrong = []
        known = {f"{_PREFIX}{module}{end}" for module in modules for end in _ENDS}
        found = self._stored.names
        for name in sorted(found - known):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
            wrong.append(name + (f" (did you mean {near[0]}?)" if near else ""))
        if wrong:
            known_ends = sorted({module.rpartition(".")[2] for module in modules})
            raise ModelError(
                f"{self._folder} changes what adapters cannot change here: {listed(wrong)}; "
                f"they can change {', '.join(known_ends)} of this model's layers"
            )
        if not found:
            raise ModelError(f"{self._folder / WEIGHTS} is empty")
        halves = [name for name in sorted(found) if name.replace(*_other(name)) not in found]
        if halves:
            raise ModelError(f"{self._folder} has only one half of: {listed(halves)}")

    def _low_rank(self, product: Mapping[str, tuple[_Place, ...]]) -> LowRank:
        downs: list[Floats] = []
        raised: list[Raised] = []
        ranks = 0
        for module, places in product.items():
            if not self._has(module):
                continue
            rank = self._config.rank_of(module)
            downs.append(self._array(module, 0, (rank, places[0].inputs)))
            scale = np.float32(self._config.scale_of(module))
            up = self._array(module, 1, (places[0].of, rank)) * scale
            for place in places:
                part = up[place.begin : place.begin + place.rows]
                raised.append(Raised(place.first, ranks, part))
            ranks += rank
        return LowRank(np.concatenate(downs), tuple(raised))

    def _array(self, module: str, half: int, wanted: tuple[int, int]) -> Floats:
        name = f"{_PREFIX}{module}{_ENDS[half]}"
        kind, size = self._stored.dtype(name), self._stored.shape(name)
        if kind not in FLOATS:
            raise ModelError(f"{self._folder}: {name} is {kind}, not F32, BF16 or F16")
        if size != wanted:
            raise ModelError(
                f"{self._folder} does not fit its base: {name} is {list(size)} instead of "
                f"{list(wanted)}"
            )
        numbers = _widened(self._stored.array(name))
        if not np.isfinite(numbers).all():
            raise ModelError(f"{self._folder}: {name} has numbers that are not finite")
        return numbers


def _other(name: str) -> tuple[str, str]:
    return _ENDS if name.endswith(_ENDS[0]) else (_ENDS[1], _ENDS[0])


def _places(shape: ModelShape, layer: int) -> dict[str, dict[str, tuple[_Place, ...]]]:
    """By product, then by module: where the module's rows become outputs, in their order."""
    found: dict[str, dict[str, tuple[_Place, ...]]] = {}
    of_experts = () if shape.mixture_of(layer) is None else ("gate_up", "down")  # are not changed
    changed = [name for name in PRODUCTS if name not in of_experts]
    products = weight_table.products(shape, layer)
    products = {name: products[name] for name in changed if name in products}
    rows = Counter[str]()
    for part in chain.from_iterable(matrix.parts for matrix in products.values()):
        rows[part.name] = max(rows[part.name], part.begin + part.rows)
    for name, matrix in products.items():
        modules: dict[str, tuple[_Place, ...]] = {}
        for part in _in_order(matrix.parts):
            first = part.offset * shape.inner_of(layer) if name == "gate_up" else part.first
            module = part.name.removesuffix(".weight")
            place = _Place(first, part.begin, part.rows, rows[part.name], matrix.inputs)
            modules[module] = (*modules.get(module, ()), place)
        found[name] = modules
    return found


def _in_order(parts: tuple[weight_table.Part, ...]) -> Iterator[weight_table.Part]:
    yield from sorted(parts, key=lambda part: (part.name, part.begin))


def _widened(array: NDArray[Any]) -> Floats:
    """In float32; 16 bits without a type are bfloat16."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return np.array(array, np.float32)


# --- adapter_config.json --------------------------------------------------------------------------

MOST_RANK = 1024
"""Of one weight: more is no low rank, but a mistake."""
_REFUSED: Mapping[str, str] = {
    "use_dora": "DoRA",
    "modules_to_save": "modules_to_save (whole weights beside the low-rank parts)",
    "lora_bias": "lora_bias (biases in the low-rank parts)",
    "layer_replication": "layer_replication",
    "trainable_token_indices": "trainable_token_indices",
    "target_parameters": "target_parameters",
    "megatron_config": "megatron_config",
    "corda_config": "corda_config",
    "eva_config": "eva_config",
    "use_qalora": "QALoRA",
    "alora_invocation_tokens": "aLoRA",
    "arrow_config": "Arrow",
    "fan_in_fan_out": "fan_in_fan_out",
}
"""Fields that must be unset, and what they are called."""
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq")
"""Ways to begin that change the base's own weights, too: such an adapter is of another base."""
_PATTERN = re.compile(r"(?:[\w^$|-]|\\\.|\\d\+?|\.[*+]?)*")
_MOST_REPEATS = 4
"""Patterns of a stranger's file: names, with so many stretches that may be anything."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Ranks and scales by the names of weights."""

    rank: int
    alpha: float
    is_rank_stabilized: bool
    ranks: Mapping[str, int]
    """By a pattern of names, where they have their own."""
    alphas: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        """What `module` ("model.layers.0.self_attn.q_proj") must have."""
        return int(_matching(self.ranks, module, self.rank))

    def scale_of(self, module: str) -> float:
        """What the low-rank part is multiplied by."""
        rank = self.rank_of(module)
        alpha = _matching(self.alphas, module, self.alpha)
        return float(alpha) / (math.sqrt(rank) if self.is_rank_stabilized else rank)


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Raises `ModelError`, which names the folder and what is not computed."""
    described = json_document(folder, CONFIG)
    if described is None:
        raise ModelError(f"{folder} is no LoRA adapter: it has no {CONFIG}")
    kind = described.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{folder}: peft_type {kind!r} is not supported; only LORA is")
    refused = [what for name, what in _REFUSED.items() if described.get(name)]
    begun = described.get("init_lora_weights", True)
    if isinstance(begun, str) and begun.lower().startswith(_CHANGED_BASE):
        refused.append(f"init_lora_weights = {begun!r}, which changes the base's weights")
    if described.get("bias", "none") != "none":
        refused.append(f"bias = {described['bias']!r}")
    if refused:
        raise ModelError(f"{folder} is a LoRA adapter with {', '.join(refused)}: not supported")
    try:
        return AdapterConfig(
            _rank(described["r"]),
            _alpha(described.get("lora_alpha", 8)),
            bool(described.get("use_rslora", False)),
            _patterns(described.get("rank_pattern"), _rank),
            _patterns(described.get("alpha_pattern"), _alpha),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(
            f"{folder / CONFIG} is malformed: {type(error).__name__}: {error}"
        ) from None


def _rank(given: Any) -> int:
    if type(given) is not int or not 1 <= given <= MOST_RANK:
        raise ValueError(f"a rank must be a whole number from 1 to {MOST_RANK}, not {given!r}")
    return given


def _alpha(given: Any) -> float:
    if type(given) not in (int, float) or not math.isfinite(given):
        raise ValueError(f"lora_alpha must be a number, not {given!r}")
    return float(given)


def _patterns(given: Any, number: Any) -> dict[str, Any]:
    found = {str(pattern): number(value) for pattern, value in (given or {}).items()}
    for pattern in found:
        repeats = pattern.count("*") + pattern.count("+")
        if not _PATTERN.fullmatch(pattern) or repeats > _MOST_REPEATS:
            raise ValueError(
                f"{pattern[:80]!r} is no name of a module, nor a simple pattern of such"
            )
    return found


def _matching(numbers: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    """As PEFT matches: the pattern is the name, or its end behind a dot; the first one counts."""
    for pattern, number in numbers.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return number
    return otherwise


LONGEST_NAME = 128


def adapter_folders(config: RuntimeConfig) -> dict[str, Path]:
    """The folders by name. Raises InvalidParameter."""
    found: dict[str, Path] = {}
    for one in config.lora:
        name, equals, folder = one.partition("=")
        if not (name and equals and folder) or not name.isprintable() or len(name) > LONGEST_NAME:
            raise _wrong(one, "name=folder, the name printable")
        if name in found:
            raise _wrong(one, f"another name: there are two adapters {name!r}")
        if name == config.model:
            raise _wrong(one, "another name: this one is the model's own")
        found[name] = Path(folder).expanduser()
    return found


def load_adapters(config: RuntimeConfig, shape: ModelShape) -> tuple[Adapter, ...]:
    """Those of `config.lora`, in its order. Raises InvalidParameter, and ModelError for folders
    that do not fit `shape`.
    """
    found = []
    for name, folder in adapter_folders(config).items():
        if not folder.is_dir():
            raise ModelError(f"the adapter {name!r} is no folder: {folder}")
        found.append(read_adapter(name, folder, shape))
    return tuple(found)


def _wrong(given: str, allowed: str) -> InvalidParameter:
    return InvalidParameter(
        f"lora = {given!r} is not allowed; give {allowed}",
        name="lora",
        value=given,
        allowed=allowed,
    )


_PANEL = 32


def packed_adapters(adapters: Sequence[Adapter], shape: ModelShape) -> PackedAdapters:
    """Gates of feed-forwards are filled up to whole panels."""
    parts = [
        (layer.get(product), shape.inner_of(index) if product == "gate_up" else 0)
        for adapter in adapters
        for index, layer in enumerate(adapter.layers)
        for product in PRODUCTS
    ]
    sizes = [aligned(_bytes(matrix)) for part, _ in parts if part for matrix in _matrices(part)]
    region = Region(sum(sizes))
    low_ranks = (interface.CLowRank * len(parts))()
    held: list[object] = [region]
    for place, (part, inner) in enumerate(parts):
        if part is None:
            continue
        raised = (interface.CRaised * len(part.raised))(
            *(
                interface.CRaised(
                    up=_packed(one.up, region),
                    outputs=one.up.shape[0],
                    rank=one.up.shape[1],
                    first=one.first + (up32(inner) - inner if one.first >= inner else 0),
                    rank_first=one.rank_first,
                )
                for one in part.raised
            )
        )
        held.append(raised)
        ranks, inputs = part.down.shape
        low_ranks[place] = interface.CLowRank(
            _packed(part.down, region), ranks, inputs, len(raised), raised
        )
    digests = {one.name: one.digest for one in adapters}
    return PackedAdapters(low_ranks, digests, tuple(held))


def _matrices(part: LowRank) -> Iterator[Floats]:
    yield part.down
    yield from (one.up for one in part.raised)


def _bytes(matrix: Floats) -> int:
    outputs, inputs = matrix.shape
    return int(up32(outputs) * inputs * 4)


def _packed(matrix: Floats, region: Region) -> int:
    """The address of [outputs / 32][inputs][32]."""
    outputs, inputs = matrix.shape
    panels = up32(outputs) // _PANEL
    place = region.take(_bytes(matrix)).view(np.float32).reshape(panels, inputs, _PANEL)
    whole = np.zeros((panels * _PANEL, inputs), np.float32)
    whole[:outputs] = matrix
    place[:] = whole.reshape(panels, _PANEL, inputs).transpose(0, 2, 1)
    address: int = place.ctypes.data
    return address
