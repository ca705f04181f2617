"""A model's weights for the native engine: packed one by one into one block of memory, or mapped
from the file that an earlier start left.

Where weights come from is a `Source`: a checkpoint's files, or random numbers. What was packed
is given back to the system stretch by stretch, so that the peak is the packed model and one
stretch.

The name of a kept file hashes all that its bytes depend on: what is in the checkpoint's files,
the model's shape, the type, and how this build of the kernels packs. Small models are packed
each time.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.engine.machine.resources import Bytes, Region, aligned
from lmprog.runtime.engine.model import weight_table
from lmprog.runtime.engine.model.checkpoint_digests import weight_digests
from lmprog.runtime.engine.model.quantization import read_quantization
from lmprog.runtime.engine.model.shape import ModelShape, read_config
from lmprog.runtime.engine.model.stored_weights import RandomSource, StoredWeights, stored_weights
from lmprog.runtime.engine.model.weight_table import EMBEDDING, up32
from lmprog.runtime.engine.native import interface
from lmprog.weight_cache import user_cache

Floats = NDArray[np.float32]
_PANEL = 32
_AT_ONCE = 2 << 20
"""Numbers that one thread packs at a time."""
_SOURCE_TYPES = {np.dtype(np.float32): interface.F32, np.dtype(np.float16): interface.F16}
_SOURCE_TYPES[np.dtype(np.uint16)] = interface.BF16


class Source(Protocol):
    """Weights by their names in a checkpoint: float32, float16, or the bits of bfloat16 as uint16.

    Several threads ask at once.
    """

    def number_type(self, name: str) -> np.dtype[Any]: ...

    def array(self, name: str) -> NDArray[Any]: ...

    def rows(self, name: str, first: int, end: int) -> NDArray[Any]:
        """Rows `first .. end` of a matrix, one after the other."""
        ...

    def release(self, name: str, first: int, end: int) -> None:
        """These rows are not needed any more."""
        ...


@dataclass(frozen=True, slots=True)
class PackedInputs:
    """A model's inputs per layer (`weight_table.PerLayerInputs`)."""

    embedding: NDArray[Any]
    projection: Bytes
    norm: Bytes


@dataclass(frozen=True, slots=True)
class Packed:
    """A model's packed weights. `layers` have a place for each product and vector of the C
    interface.
    """

    weight_type: str
    layers: tuple[Mapping[str, Bytes], ...]
    head: Bytes
    norm: Bytes
    embedding: NDArray[Any] | None
    """None: the head is the embedding."""
    num_weights: int
    """Those that a token is multiplied with on its way to logits."""
    per_layer: PackedInputs | None = None

    @property
    def num_bytes(self) -> int:
        parts: list[NDArray[Any]] = [self.head, self.norm]
        parts += [] if self.embedding is None else [self.embedding]
        if (own := self.per_layer) is not None:
            parts += [own.embedding, own.projection, own.norm]
        kept = sum(part.nbytes for part in parts)
        return kept + sum(part.nbytes for layer in self.layers for part in layer.values())


class PackedLayout:
    """Where each weight of a model lies in one block of memory, and how it gets there.

    The embedding is kept in `embedding_type`, which see.
    """

    def __init__(self, shape: ModelShape, weight_type: str, embedding_type: np.dtype[Any]) -> None:
        self.shape = shape
        self.weight_type = weight_type
        self.embedding_type = embedding_type
        self._library = interface.opened()
        layers = range(shape.num_layers)
        self._products = [weight_table.products(shape, layer) for layer in layers]
        self._vectors = [weight_table.vectors(shape, layer) for layer in layers]
        self._head, self._norm = weight_table.head(shape), weight_table.norm(shape)
        self._per_layer = weight_table.per_layer_inputs(shape)
        self._matrices = [
            self._head,
            *([] if self._per_layer is None else [self._per_layer.projection]),
            *(matrix for layer in self._products for matrix in layer.values()),
        ]

    @property
    def num_bytes(self) -> int:
        vectors = [self._norm, *(one for layer in self._vectors for one in layer.values())]
        total = sum(aligned(self._matrix_bytes(matrix)) for matrix in self._matrices)
        if self._per_layer is not None:
            vectors.append(self._per_layer.norm)
            total += aligned(self._per_layer_bytes)
        total += sum(aligned(_vector_bytes(vector)) for vector in vectors)
        return total + aligned(self._embedding_bytes)

    def placed(self, region: Region) -> Packed:
        """The places in `region`, which has `num_bytes`."""
        layers = []
        for products, vectors in zip(self._products, self._vectors, strict=True):
            places = {
                name: region.take(self._matrix_bytes(matrix)) for name, matrix in products.items()
            }
            for name, vector in vectors.items():
                places[name] = region.take(_vector_bytes(vector))
            layers.append(places)
        embedding = None
        if not self.shape.tied_head:
            size = (self.shape.vocab_size, self.shape.hidden)
            embedding = region.take(self._embedding_bytes).view(self.embedding_type).reshape(size)
        inputs = None
        if (own := self._per_layer) is not None:
            table = region.take(self._per_layer_bytes).view(self.embedding_type)
            projection = region.take(self._matrix_bytes(own.projection))
            norm = region.take(_vector_bytes(own.norm))
            inputs = PackedInputs(table.reshape(-1, own.columns), projection, norm)
        weights = (part.rows * one.inputs * one.met for one in self._matrices for part in one.parts)
        return Packed(
            weight_type=self.weight_type,
            layers=tuple(layers),
            head=region.take(self._matrix_bytes(self._head)),
            norm=region.take(_vector_bytes(self._norm)),
            embedding=embedding,
            num_weights=round(sum(weights)),
            per_layer=inputs,
        )

    def fill(self, packed: Packed, source: Source, threads: int) -> None:
        """Packs all weights to their places, which were zero, by so many threads."""
        with ThreadPoolExecutor(threads) as pool:
            for index, places in enumerate(packed.layers):
                for name, matrix in self._products[index].items():
                    self._pack(matrix, places[name], source, pool)
                for name, vector in self._vectors[index].items():
                    _copy_vector(vector, places[name], source)
            self._pack(self._head, packed.head, source, pool)
            _copy_vector(self._norm, packed.norm, source)
            if packed.embedding is not None:
                _copy_table(EMBEDDING, packed.embedding, source, pool)
            if (own := self._per_layer) is not None and packed.per_layer is not None:
                _copy_table(own.table, packed.per_layer.embedding, source, pool)
                self._pack(own.projection, packed.per_layer.projection, source, pool)
                _copy_vector(own.norm, packed.per_layer.norm, source)

    @property
    def _per_layer_bytes(self) -> int:
        columns = 0 if self._per_layer is None else self._per_layer.columns
        return self.shape.vocab_size * columns * self.embedding_type.itemsize

    @property
    def _embedding_bytes(self) -> int:
        count = 0 if self.shape.tied_head else self.shape.vocab_size * self.shape.hidden
        return count * self.embedding_type.itemsize

    def _product(self, matrix: weight_table.Matrix) -> interface.CProduct:
        kind = matrix.weight_type or self.weight_type
        return interface.CProduct(interface.TYPES[kind], matrix.outputs, matrix.inputs)

    def _matrix_bytes(self, matrix: weight_table.Matrix) -> int:
        return int(self._library.lmprog_engine_packed_bytes(byref(self._product(matrix))))

    def _pack(
        self, matrix: weight_table.Matrix, place: Bytes, source: Source, pool: ThreadPoolExecutor
    ) -> None:
        product, to = self._product(matrix), ctypes.c_void_p(place.ctypes.data)

        def packed(part: weight_table.Part, first: int, end: int) -> None:
            begin = part.begin
            array = source.rows(part.name, begin + first, begin + end)
            assert array.flags.c_contiguous
            assert array.shape == (end - first, matrix.inputs), (part, array.shape)
            rows = interface.CSourceRows(
                array.ctypes.data,
                _SOURCE_TYPES[array.dtype],
                end - first,
                matrix.inputs,
                part.first + first,
                part.step,
                part.offset,
            )
            self._library.lmprog_engine_pack(byref(product), to, byref(rows), 0, end - first)
            source.release(part.name, begin + first, begin + end)

        for part in matrix.parts:
            _in_stretches(
                pool, part.rows, matrix.inputs, functools.partial(packed, part), part.first
            )


def _copy_table(name: str, kept: NDArray[Any], source: Source, pool: ThreadPoolExecutor) -> None:
    """Rows of an embedding, in their own type or in the smaller one of `kept`."""

    def copied(first: int, end: int) -> None:
        array = source.rows(name, first, end)
        if array.dtype != kept.dtype:
            array = widened(array)
            array = narrowed(array) if kept.dtype == np.uint16 else array.astype(kept.dtype)
        kept[first:end] = array
        source.release(name, first, end)

    _in_stretches(pool, kept.shape[0], kept.shape[1], copied)


def packed_layout(shape: ModelShape, source: Source, weight_type: str) -> PackedLayout:
    """The layout of `source` as `weight_type`. The embedding keeps its own type, or has that of
    the products if it is smaller.
    """
    own = source.number_type(EMBEDDING)
    small = own != np.float32 or weight_type == "float32"
    return PackedLayout(shape, weight_type, own if small else np.dtype(np.uint16))


def _in_stretches(
    pool: ThreadPoolExecutor,
    rows: int,
    columns: int,
    work: Callable[[int, int], None],
    offset: int = 0,
) -> None:
    """Calls work(first, end) for all rows, by several threads. Stretches end where a panel ends
    (`offset` rows lie before the first), so that no panel is written by two threads.
    """
    stretch = max(1, _AT_ONCE // columns // _PANEL) * _PANEL
    cuts = [*range(stretch - offset % _PANEL, rows, stretch), rows]
    list(pool.map(work, [0, *cuts[:-1]], cuts))


def _copy_vector(vector: weight_table.Vector, place: Bytes, source: Source) -> None:
    numbers = place.view(np.float32)
    for part in vector.parts:
        array = (widened(source.array(part.name)) + np.float32(vector.plus)) * vector.times
        if part.taps:
            array = array[:, 0].T.ravel()
        numbers[part.first : part.first + part.size] = array


def _vector_bytes(vector: weight_table.Vector) -> int:
    return up32(vector.size) * 4


def widened(array: NDArray[Any]) -> NDArray[np.float32]:
    """A source's numbers as float32."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def narrowed(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of bfloat16, rounded to nearest even; the checkpoint's numbers are finite."""
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


_SMALLEST_KEPT = 64 << 20
"""Bytes. Packing less takes a fifth of a second at most."""


def packed_checkpoint(
    folder: Path, shape: ModelShape, weight_type: str, threads: int, keep: bool = True
) -> Packed:
    """The weights of `folder`, left for the next start where `keep`. Raises ModelError where they
    do not fit `shape`.
    """
    checkpoint, layout = _laid_out(folder, shape, weight_type)
    files = user_cache()
    if layout.num_bytes < _SMALLEST_KEPT or not files.limit:
        return _packed_now(layout, checkpoint, threads)
    name = _name(layout, folder)
    memory = files.mapped(name, layout.num_bytes)
    if memory is None:
        label = f"{folder.name or folder}, {weight_type}"
        draft = files.draft(name, layout.num_bytes, label) if keep else None
        if draft is None:
            return _packed_now(layout, checkpoint, threads)
        try:
            region = Region(layout.num_bytes, draft.memory)
            layout.fill(layout.placed(region), checkpoint, threads)
            memory = draft.keep()
        except BaseException:
            draft.discard()
            raise
    return layout.placed(Region(layout.num_bytes, memory))


def packed_size(folder: Path, shape: ModelShape, weight_type: str) -> int:
    """Bytes that the weights of `folder` take. Raises ModelError where they do not fit `shape`."""
    return _laid_out(folder, shape, weight_type)[1].num_bytes


def _laid_out(
    folder: Path, shape: ModelShape, weight_type: str
) -> tuple[StoredWeights, PackedLayout]:
    checkpoint = stored_weights(folder, shape)
    checkpoint.check(weight_table.expected(shape), shape.tied_head)
    return checkpoint, packed_layout(shape, checkpoint, weight_type)


def packed_random(shape: ModelShape, seed: int, weight_type: str, threads: int) -> Packed:
    """Random weights, which no file keeps."""
    source = RandomSource(weight_table.expected(shape), seed)
    return _packed_now(packed_layout(shape, source, weight_type), source, threads)


def _packed_now(layout: PackedLayout, source: Source, threads: int) -> Packed:
    packed = layout.placed(Region(layout.num_bytes))
    layout.fill(packed, source, threads)
    return packed


def _name(layout: PackedLayout, location: Path) -> str:
    parts = (
        *(repr(layout.shape), layout.weight_type, layout.embedding_type.str),
        repr(read_quantization(read_config(location))),
        *(_packing_digest(layout.weight_type), *weight_digests(location)),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:40]


def _packing_digest(weight_type: str) -> str:
    """How this build packs, shown on a small matrix: another layout or rounding gives another."""
    outputs, inputs = 40, 104
    numbers = np.sin(np.arange(outputs * inputs, dtype=np.float64) ** 2).astype(np.float32)
    numbers[: inputs * 8] = np.rint(numbers[: inputs * 8] * 6)  # few enough for every type
    product = interface.CProduct(interface.TYPES[weight_type], outputs, inputs)
    library = interface.opened()
    place = np.zeros(int(library.lmprog_engine_packed_bytes(byref(product))), np.uint8)
    rows = interface.CSourceRows(numbers.ctypes.data, interface.F32, outputs, inputs, 0, 1, 0)
    library.lmprog_engine_pack(byref(product), place.ctypes.data, byref(rows), 0, outputs)
    return hashlib.sha256(place.tobytes()).hexdigest()
