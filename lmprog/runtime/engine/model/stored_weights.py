"""Opens a checkpoint's weights, whatever files hold them and in whatever form; or random numbers in
their place.

Quantized weights are given as float32. Small integers, as GPTQ, AWQ and compressed-tensors write
them, are `(integer - zero) * scale`, the zero and the scale those of a group of inputs; float32
holds these products of a float16 scale exactly. Floats of 8 or 4 bits with scales are fp8's and
GPT-OSS's mxfp4. Knows names and places of bits.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.checkpoint import Checkpoint
from lmprog.runtime.engine.model.derived_weights import (
    Derived,
    DerivedWeights,
    Float8Weight,
    StoredCheckpoint,
    shared_experts,
    single_experts,
)
from lmprog.runtime.engine.model.gguf_weights import GgufCheckpoint
from lmprog.runtime.engine.model.mixture import ExpertNames
from lmprog.runtime.engine.model.quantization import Quantization, read_quantization
from lmprog.runtime.engine.model.shape import ModelShape, read_config
from lmprog.runtime.engine.model.weight_table import Part, expected, joined_parts, not_read

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


class WeightSource(Protocol):
    """Where whole weights come from: a checkpoint, or random numbers."""

    def array(self, name: str) -> NDArray[Any]: ...
    def release(self, name: str, first: int, end: int) -> None: ...


StoredWeights = Checkpoint | DerivedWeights | GgufCheckpoint

_FLOAT32 = np.dtype(np.float32)
_ACTIVATION_SCALES = tuple(
    f"{name}_{kind}"
    for name in (".q", ".k", ".v", ".input", ".output")
    for kind in ("scale", "zero_point")
)
"""How others round activations, keys and values: here these are rounded as they come, if at all."""


def stored_weights(location: Path, shape: ModelShape) -> StoredWeights:
    """The weights of a folder or of a GGUF file, by the names that `shape` asks for. Raises
    ModelError.
    """
    if location.is_file():
        file = GgufCheckpoint(location)  # each expert of it is a weight already
        derived = _with_shared_experts(file, {}, frozenset(), shape)
        return DerivedWeights(file, derived) if derived else file
    checkpoint = Checkpoint(location, shape.predicts)
    how = read_quantization(read_config(location))
    derived = {} if how is None else dict(_quantized(checkpoint, how, shape))
    derived |= _olmo_weights(checkpoint, shape)
    if shape.mixture is not None:
        derived |= single_experts(checkpoint, shape.mixture)
    scales = {name for name in checkpoint.names if name.endswith(_ACTIVATION_SCALES)}
    unread = checkpoint.names & not_read(shape)
    unused = frozenset(scales | unread)
    derived = _with_shared_experts(checkpoint, derived, unused, shape)
    if how is None and not derived and not unread:
        return checkpoint
    return DerivedWeights(checkpoint, derived, unused)


def _olmo_weights(checkpoint: Checkpoint, shape: ModelShape) -> dict[str, Derived]:
    """An OLMo hybrid's convolutions, which are three there. And norms behind attention, which
    transformers saves under the name that norms of its recurrent layers have."""
    own, found = shape.recurrent_norms, dict[str, Derived]()
    for layer in range(0 if own is None else shape.num_layers):
        prefix = f"model.layers.{layer}."
        if shape.recurrent_of(layer) is not None:
            name = f"{prefix}linear_attn.conv1d.weight"
            stored = [f"{prefix}linear_attn.{one}_conv1d.weight" for one in "qkv"]
        else:
            name = f"{prefix}{shape.norms.attention_post_norm}.weight"
            stored = [f"{prefix}{own and own.mlp_norm}.weight"]
        if checkpoint.names.issuperset(stored):
            found[name] = _one_after_the_other(checkpoint, tuple(stored))
    return found


def _one_after_the_other(checkpoint: Checkpoint, names: tuple[str, ...]) -> Derived:
    def rows(first: int, end: int) -> NDArray[np.generic]:
        whole: NDArray[np.generic] = np.concatenate([checkpoint.array(name) for name in names])
        return whole[first:end]

    sizes = [checkpoint.shape(name) for name in names]
    size = (sum(one[0] for one in sizes), *sizes[0][1:])
    return Derived(size, checkpoint.number_type(names[0]), rows, names)


def _with_shared_experts(
    stored: StoredCheckpoint,
    derived: dict[str, Derived],
    unused: frozenset[str],
    shape: ModelShape,
) -> dict[str, Derived]:
    """`derived`, with a shared expert's weights cut into experts."""
    if shape.mixture is None or shape.mixture.shared is None:
        return derived
    parts = shared_experts(DerivedWeights(stored, derived, unused), shape, derived)
    used = {source for part in parts.values() for source in part.sources}
    return {name: one for name, one in derived.items() if used.isdisjoint(one.sources)} | parts


def weight_source(folder: Path | None, shape: ModelShape, seed: int = 0) -> WeightSource:
    """Each weight of `folder`, which fits `shape`, by itself; without a folder random ones."""
    if folder is None:
        return RandomSource(expected(shape), seed)
    stored = stored_weights(folder, shape)
    stored.check(expected(shape), shape.tied_head)
    parts = joined_parts(shape)
    return SplitWeights(stored, parts) if parts else stored


class SplitWeights:
    """`source`, whose joined weights (Phi 3, GLM) are given by themselves: `parts`, by name."""

    def __init__(self, source: WeightSource, parts: Mapping[str, Part]) -> None:
        self._source, self._parts = source, parts

    def array(self, name: str) -> NDArray[Any]:
        part = self._parts.get(name)
        if part is None:
            return self._source.array(name)
        return self._source.array(part.name)[part.begin : part.begin + part.rows]

    def release(self, name: str, first: int, end: int) -> None:
        part = self._parts.get(name)
        if part is None:
            self._source.release(name, first, end)
        else:
            self._source.release(part.name, part.begin + first, part.begin + end)


def _quantized(
    checkpoint: Checkpoint, how: Quantization, shape: ModelShape
) -> Iterator[tuple[str, Derived]]:
    if how.layout == "gptq":
        yield from _gptq_weights(checkpoint, how)
    elif how.layout == "awq":
        yield from _awq_weights(checkpoint, how)
    elif how.layout == "compressed":
        yield from _packed_weights(checkpoint)
        yield from _byte_weights(checkpoint)
        yield from _fp8_weights(checkpoint, how.block)
    elif how.layout == "fp8":
        yield from _fp8_weights(checkpoint, how.block)
    elif shape.mixture is not None and shape.mixture.layout == "gpt_oss":
        yield from _mxfp4_experts(checkpoint, shape.mixture.names)
    else:
        raise ModelError("mxfp4 is read for GPT-OSS only")


# --- small integers -------------------------------------------------------------------------------

_AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])
"""The outputs, of eight, that the 4 bits of a word hold, lowest first."""


def _gptq_weights(checkpoint: Checkpoint, how: Quantization) -> Iterator[tuple[str, Derived]]:
    """qweight [inputs / per word, outputs], qzeros [groups, outputs / per word], scales [groups,
    outputs], g_idx [inputs] where inputs of a group need not be neighbours.
    """
    per = 32 // how.bits
    for prefix in _prefixes(checkpoint, "qweight"):
        names = [f"{prefix}.{kind}" for kind in ("qweight", "qzeros", "scales")]
        words, outputs = _size(checkpoint, names[0], 2)
        inputs = words * per
        groups = _size(checkpoint, names[2], 2)[0]
        _expect(checkpoint, names[1], (groups, outputs // per))
        _expect(checkpoint, names[2], (groups, outputs))
        order = f"{prefix}.g_idx"
        if order in checkpoint.names:
            _expect(checkpoint, order, (inputs,))
            names.append(order)
        of_input = _groups_of(checkpoint, order, inputs, groups)

        def rows(first: int, end: int, names: list[str] = names, of: Ints = of_input) -> Floats:
            begin = first // per * per  # whole words of zeros
            stored, zeros, scales = (checkpoint.array(name) for name in names[:3])
            integers = _unpacked(stored[:, first:end], how.bits, axis=0)
            zero = _unpacked(zeros[:, begin // per : -(-end // per)], how.bits, axis=1)
            zero = (zero[:, first - begin : end - begin] + how.zeros_plus_one) % (1 << how.bits)
            scale = _widened(scales[:, first:end])
            return _as_rows(((integers - zero[of]) * scale[of]).T)

        yield f"{prefix}.weight", Derived((outputs, inputs), _FLOAT32, rows, tuple(names))


def _awq_weights(checkpoint: Checkpoint, how: Quantization) -> Iterator[tuple[str, Derived]]:
    """qweight [inputs, outputs / 8], qzeros [groups, outputs / 8], scales [groups, outputs]."""
    for prefix in _prefixes(checkpoint, "qweight"):
        names = tuple(f"{prefix}.{kind}" for kind in ("qweight", "qzeros", "scales"))
        inputs, words = _size(checkpoint, names[0], 2)
        outputs = words * 8
        groups = _size(checkpoint, names[2], 2)[0]
        _expect(checkpoint, names[1], (groups, words))
        _expect(checkpoint, names[2], (groups, outputs))
        of_input = _groups_of(checkpoint, "", inputs, groups)

        def rows(
            first: int, end: int, names: tuple[str, ...] = names, of: Ints = of_input
        ) -> Floats:
            begin, stop = first // 8, -(-end // 8)
            stored, zeros, scales = (checkpoint.array(name) for name in names)
            integers, zero = (_awq_order(part[:, begin:stop]) for part in (stored, zeros))
            scale = _widened(scales[:, begin * 8 : stop * 8])
            made = (integers - zero[of]) * scale[of]
            return _as_rows(made.T[first - begin * 8 : end - begin * 8])

        yield f"{prefix}.weight", Derived((outputs, inputs), _FLOAT32, rows, names)


def _packed_weights(checkpoint: Checkpoint) -> Iterator[tuple[str, Derived]]:
    """compressed-tensors' pack-quantized: weight_packed [outputs, inputs / per word], weight_shape,
    weight_scale [outputs, groups], weight_zero_point [outputs / per word, groups], weight_g_idx.
    Integers are stored plus half of their range.
    """
    for prefix in _prefixes(checkpoint, "weight_packed"):
        stored, size = f"{prefix}.weight_packed", f"{prefix}.weight_shape"
        words = _size(checkpoint, stored, 2)[1]
        _expect(checkpoint, size, (2,))
        outputs, inputs = (int(number) for number in checkpoint.array(size))
        bits = next((n for n in (4, 8) if words == -(-inputs * n // 32)), 0)
        if not bits or checkpoint.shape(stored)[0] != outputs:
            raise ModelError(f"{stored} does not hold {outputs} x {inputs} numbers of 4 or 8 bits")
        yield _compressed(checkpoint, prefix, (outputs, inputs), bits, (stored, size))


def _byte_weights(checkpoint: Checkpoint) -> Iterator[tuple[str, Derived]]:
    """compressed-tensors' int-quantized: weight [outputs, inputs] of int8, the rest as above, zero
    points not packed.
    """
    for prefix in _prefixes(checkpoint, "weight_scale"):
        stored = f"{prefix}.weight"
        if stored in checkpoint.names and checkpoint.dtype(stored) == "I8":
            outputs, inputs = _size(checkpoint, stored, 2)
            yield _compressed(checkpoint, prefix, (outputs, inputs), 0, (stored,))


def _compressed(
    checkpoint: Checkpoint,
    prefix: str,
    size: tuple[int, int],
    bits: int,
    sources: tuple[str, ...],
) -> tuple[str, Derived]:
    """`bits` are those of packed integers; 0: they are bytes."""
    outputs, inputs = size
    scales, zeros, order = (f"{prefix}.weight_{kind}" for kind in ("scale", "zero_point", "g_idx"))
    shape = checkpoint.shape(scales)
    is_whole = len(shape) < 2 and np.prod(shape, dtype=int) == 1
    if not is_whole and (len(shape) != 2 or shape[0] not in (1, outputs) or inputs % shape[1]):
        raise ModelError(f"{scales} of the size {list(shape)} does not fit {list(size)}")
    groups = 1 if is_whole else shape[1]
    has_zeros = zeros in checkpoint.names
    of = _groups_of(checkpoint, order, inputs, groups)
    further = tuple(name for name in (zeros, order) if name in checkpoint.names)

    def rows(first: int, end: int) -> Floats:
        stored = checkpoint.array(sources[0])[first:end]
        integers = stored.astype(np.int32)
        if bits:
            integers = _unpacked(stored, bits, axis=1)[:, :inputs] - (1 << (bits - 1))
        scale = _widened(checkpoint.array(scales)).reshape(-1, groups)
        scale = scale if len(scale) == 1 else scale[first:end]
        if has_zeros:
            zero = checkpoint.array(zeros)
            if bits and zero.dtype == np.int32:
                zero = _unpacked(zero, bits, axis=0)[:outputs] - (1 << (bits - 1))
            zero = zero.astype(np.int32).reshape(-1, groups)
            integers = integers - (zero if len(zero) == 1 else zero[first:end])[:, of]
        return _as_rows(integers * scale[:, of])

    made = Derived(size, _FLOAT32, rows, (*sources, scales, *further))
    return f"{prefix}.weight", made


def _unpacked(words: Ints, bits: int, axis: int) -> Ints:
    """The unsigned integers in words, lowest bits first, one after the other along `axis`."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    spread = np.expand_dims(words.view(np.uint32) if words.dtype == np.int32 else words, axis + 1)
    places = shifts.reshape(-1, 1) if axis == 0 else shifts
    numbers = (spread >> places) & np.uint32((1 << bits) - 1)
    shape = list(words.shape)
    shape[axis] *= len(shifts)
    return numbers.astype(np.int32).reshape(shape)


def _awq_order(words: Ints) -> Ints:
    """AWQ's words as outputs in their order."""
    stored = _unpacked(words, 4, axis=1).reshape(len(words), -1, 8)
    found = np.empty_like(stored)
    found[..., _AWQ_ORDER] = stored
    return found.reshape(len(words), -1)


def _groups_of(checkpoint: Checkpoint, order: str, inputs: int, groups: int) -> Ints:
    """The group of each input. # [inputs]"""
    if order in checkpoint.names:
        found = checkpoint.array(order).astype(np.int32)
        if found.size != inputs or (found.size and not 0 <= found.min() <= found.max() < groups):
            raise ModelError(f"{order} names groups that are not there: there are {groups}")
        return found
    if groups < 1 or (size := -(-inputs // groups)) * groups < inputs:
        raise ModelError(f"{inputs} inputs cannot be in {groups} groups")
    return np.arange(inputs, dtype=np.int32) // size


def _prefixes(checkpoint: Checkpoint, kind: str) -> list[str]:
    return sorted(
        name.removesuffix(f".{kind}") for name in checkpoint.names if name.endswith(f".{kind}")
    )


def _size(checkpoint: Checkpoint, name: str, dimensions: int) -> tuple[int, ...]:
    if name not in checkpoint.names:
        raise ModelError(f"a quantized weight lacks {name}")
    shape = checkpoint.shape(name)
    if len(shape) != dimensions or 0 in shape:
        raise ModelError(f"{name} has the size {list(shape)}")
    return shape


def _expect(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> None:
    if (found := _size(checkpoint, name, len(shape))) != shape:
        raise ModelError(f"{name} is {list(found)} instead of {list(shape)}")


def _widened(array: NDArray[np.generic]) -> Floats:
    if array.dtype == np.uint16:  # the bits of bfloat16
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def _as_rows(array: NDArray[np.generic]) -> Floats:
    return np.ascontiguousarray(array, np.float32)


# --- floats of 8 and 4 bits -----------------------------------------------------------------------


def _e4m3() -> Floats:
    """What each byte means: a sign, 4 bits of exponent, 3 of fraction; no infinities, one NaN."""
    byte = np.arange(256)
    exponent, fraction = (byte >> 3) & 15, byte & 7
    normal = (8 + fraction) * 2.0 ** (exponent - 10)
    size = np.where(exponent == 0, fraction * 2.0**-9, normal)
    size[(byte & 127) == 127] = np.nan
    return np.where(byte < 128, size, -size).astype(np.float32)


_BYTES = _e4m3()
_HALVES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""What 4 bits mean: a sign, 2 bits of exponent, 1 of fraction."""


def _fp8_weights(
    checkpoint: Checkpoint, block: tuple[int, int] | None
) -> Iterator[tuple[str, Derived]]:
    """weight [outputs, inputs] and its scales: one, one a row, or one a block of rows and columns.
    They are called weight_scale or weight_scale_inv, and are multiplied either way.
    """
    for stored in sorted(checkpoint.names):
        if not stored.endswith(".weight") or checkpoint.dtype(stored) != "F8_E4M3":
            continue
        names = [f"{stored}_{kind}" for kind in ("scale_inv", "scale")]
        scales = next((name for name in names if name in checkpoint.names), None)
        if scales is None:
            raise ModelError(f"the 8-bit weight {stored} has no {names[0]} or {names[1]}")
        outputs, inputs = checkpoint.shape(stored)
        shape = checkpoint.shape(scales)
        down, across = _block(shape, (outputs, inputs), block)
        wanted = (-(-outputs // down), -(-inputs // across))
        if shape not in ((), (1,), wanted):
            raise ModelError(f"{scales} of the size {list(shape)} does not fit {stored}")

        def rows(
            first: int,
            end: int,
            names: tuple[str, str] = (stored, scales),
            block: tuple[int, int] = (down, across),
        ) -> Floats:
            numbers = _BYTES[checkpoint.array(names[0])[first:end]]
            mine = _row_scales(checkpoint, names[1], first, end, block[0])
            made: Floats = numbers * np.repeat(mine, block[1], axis=1)[:, : numbers.shape[1]]
            return made

        def float8(
            names: tuple[str, str] = (stored, scales),
            size: int = outputs,
            block: tuple[int, int] = (down, across),
        ) -> Float8Weight:
            mine = _row_scales(checkpoint, names[1], 0, size, block[0])
            return Float8Weight(checkpoint.array(names[0]), mine, block[1])

        yield stored, Derived((outputs, inputs), _FLOAT32, rows, (stored, scales), float8)


def _row_scales(checkpoint: Checkpoint, name: str, first: int, end: int, down: int) -> Floats:
    """The scales of rows `first .. end`, of which `down` share theirs. # [rows, groups]"""
    scale = checkpoint.array(name)
    if scale.dtype == np.uint16:
        scale = (scale.astype(np.uint32) << 16).view(np.float32)
    scale = scale.astype(np.float32).reshape(-1, scale.shape[-1] if scale.ndim == 2 else 1)
    made: Floats = scale[np.arange(first, end) // down]
    return made


def _block(
    scales: tuple[int, ...], size: tuple[int, int], block: tuple[int, int] | None
) -> tuple[int, int]:
    """Rows and columns that share a scale: all, those of a block, or a row."""
    if len(scales) < 2:
        return size
    return (1, size[1]) if block is None else block


def _mxfp4_experts(checkpoint: Checkpoint, names: ExpertNames) -> Iterator[tuple[str, Derived]]:
    """GPT-OSS's experts one by one: `gate_up_proj_blocks` [experts, 2 * inner, hidden / 32, 16] has
    two numbers a byte, low bits first, and rows of gate and its partner in turn; `_scales`
    [experts, rows, blocks] are powers of two; `down_proj_*` alike.
    """
    for stored in sorted(name for name in checkpoint.names if name.endswith("_blocks")):
        prefix, dot, kind = stored.removesuffix("_blocks").rpartition(f".{names.block}.experts.")
        parts = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}.get(kind)
        if not dot or parts is None:
            raise ModelError(f"{stored} is no weight of an expert")
        scales = stored.removesuffix("_blocks") + "_scales"
        shape = checkpoint.shape(stored)
        if scales not in checkpoint.names or len(shape) != 4 or shape[3] != 16:
            raise ModelError(f"{stored} of the size {list(shape)} has no scales that fit")
        if checkpoint.shape(scales) != shape[:3] or shape[1] % len(parts):
            raise ModelError(f"{scales} of the size {list(checkpoint.shape(scales))} does not fit")
        for offset, product in enumerate(parts):
            for expert in range(shape[0]):
                place = (expert, offset, len(parts))
                made = _mxfp4(checkpoint, (stored, scales), place)
                yield f"{prefix}.{names.of_expert(expert, product)}", made


def _mxfp4(checkpoint: Checkpoint, names: tuple[str, str], place: tuple[int, int, int]) -> Derived:
    """`place`: the expert, its first row, and how far its rows are apart."""
    expert, offset, step = place
    _, count, blocks, _ = checkpoint.shape(names[0])

    def rows(first: int, end: int) -> Floats:
        mine = slice(offset + first * step, offset + end * step, step)
        stored, scales = (checkpoint.array(name)[expert, mine] for name in names)
        pairs = np.stack((_HALVES[stored & 15], _HALVES[stored >> 4]), axis=-1)
        numbers = pairs.reshape(end - first, blocks, 32)
        powers = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
        made: Floats = (numbers * powers[..., None]).reshape(end - first, blocks * 32)
        return made

    return Derived((count // step, blocks * 32), _FLOAT32, rows, names)


# --- random numbers -------------------------------------------------------------------------------


class RandomSource:
    """Weights drawn from a seed and their names: a model that computes like any other and says
    nothing sensible.
    """

    def __init__(self, sizes: Mapping[str, tuple[int, ...]], seed: int) -> None:
        self._sizes = sizes
        self._seed = seed
        self._lock = threading.Lock()
        self._last = ("", np.zeros((0, 0), np.float32))

    def array(self, name: str) -> NDArray[np.float32]:
        size = self._sizes[name]
        if name.endswith("norm.weight"):
            return np.ones(size, np.float32)
        drawn = np.random.default_rng((self._seed, zlib.crc32(name.encode()))).standard_normal(
            size, np.float32
        )
        return drawn if len(size) == 1 else drawn * np.float32(size[-1] ** -0.5)

    def number_type(self, name: str) -> np.dtype[np.float32]:
        return np.dtype(np.float32)

    def rows(self, name: str, first: int, end: int) -> NDArray[np.float32]:
        """Rows of a matrix, which is drawn once for all that are asked for in a row."""
        with self._lock:
            if self._last[0] != name:
                self._last = name, self.array(name)
            return self._last[1][first:end]

    def release(self, name: str, first: int, end: int) -> None:
        """The next matrix takes the place."""
