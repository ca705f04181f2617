"""Weights that a checkpoint keeps as small integers with scales, as GPTQ, AWQ and
compressed-tensors write them.

Every weight is `(integer - zero) * scale`, the zero and the scale those of its group of inputs. All
are given as float32, which holds these products of a float16 scale exactly. Knows places of bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.checkpoint import Checkpoint
from lmprog.runtime.engine.model.derived_weights import Derived
from lmprog.runtime.engine.model.quantization import Quantization

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
_AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])
"""The outputs, of eight, that the 4 bits of a word hold, lowest first."""
_FLOAT32 = np.dtype(np.float32)


def gptq_weights(checkpoint: Checkpoint, how: Quantization) -> Iterator[tuple[str, Derived]]:
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


def awq_weights(checkpoint: Checkpoint, how: Quantization) -> Iterator[tuple[str, Derived]]:
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


def packed_weights(checkpoint: Checkpoint) -> Iterator[tuple[str, Derived]]:
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


def byte_weights(checkpoint: Checkpoint) -> Iterator[tuple[str, Derived]]:
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
