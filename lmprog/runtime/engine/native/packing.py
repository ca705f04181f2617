"""Packs a model's weights for the native engine, one by one, into one block of memory.

Where weights come from is a `Source`: a checkpoint's files, or random numbers. Each is given back
to the system as soon as it is packed, so that the peak is the packed model and one weight.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.engine.model.checkpoint import Checkpoint
from lmprog.runtime.engine.model.random_weights import RandomSource
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.native import interface, recipe
from lmprog.runtime.engine.region import Bytes, Region, aligned

_PANEL = 32
_ROWS_AT_ONCE = 64 * _PANEL
"""Rows that one thread packs at a time."""
_SOURCE_TYPES = {np.dtype(np.float32): interface.F32, np.dtype(np.float16): interface.F16}
_SOURCE_TYPES[np.dtype(np.uint16)] = interface.BF16


class Source(Protocol):
    """Weights by their names in a checkpoint: float32, float16, or the bits of bfloat16 as
    uint16.
    """

    def array(self, name: str) -> NDArray[Any]: ...

    def release(self, name: str) -> None:
        """The weight is not needed any more."""
        ...


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

    @property
    def num_bytes(self) -> int:
        kept = (
            self.head.nbytes
            + self.norm.nbytes
            + (0 if self.embedding is None else self.embedding.nbytes)
        )
        return kept + sum(part.nbytes for layer in self.layers for part in layer.values())


def pack(shape: ModelShape, source: Source, weight_type: str, threads: int) -> Packed:
    """All weights of `shape` as `weight_type`, packed by so many threads."""
    with ThreadPoolExecutor(threads) as pool:
        return _Packing(shape, source, weight_type, pool).packed()


class _Packing:
    """The packing of one model."""

    def __init__(
        self, shape: ModelShape, source: Source, weight_type: str, pool: ThreadPoolExecutor
    ) -> None:
        self._shape = shape
        self._source = source
        self._type = weight_type
        self._pool = pool
        self._library = interface.opened()
        self._num_weights = 0
        layers = range(shape.num_layers)
        self._products = [recipe.products(shape, layer) for layer in layers]
        self._vectors = [recipe.vectors(shape, layer) for layer in layers]

    def packed(self) -> Packed:
        shape = self._shape
        head, norm = recipe.head(shape), recipe.norm(shape)
        matrices = [head, *(matrix for layer in self._products for matrix in layer.values())]
        vectors = [norm, *(vector for layer in self._vectors for vector in layer.values())]
        total = sum(aligned(self._matrix_bytes(matrix)) for matrix in matrices)
        total += sum(aligned(_vector_bytes(vector)) for vector in vectors)
        region = Region(total)
        layers = tuple(self._layer(index, region) for index in range(shape.num_layers))
        return Packed(
            weight_type=self._type,
            layers=layers,
            head=self._matrix(head, region),
            norm=self._vector(norm, region),
            embedding=None if shape.tied_head else self._embedding(),
            num_weights=self._num_weights,
        )

    def _layer(self, index: int, region: Region) -> Mapping[str, Bytes]:
        made = {
            name: self._matrix(matrix, region) for name, matrix in self._products[index].items()
        }
        return made | {
            name: self._vector(vector, region) for name, vector in self._vectors[index].items()
        }

    def _embedding(self) -> NDArray[Any]:
        """A copy, in the checkpoint's own type or that of the products if it is smaller."""
        name = "model.embed_tokens.weight"
        array = self._source.array(name)
        kept = (
            narrowed(array)
            if array.dtype == np.float32 and self._type != "float32"
            else np.array(array)
        )
        self._source.release(name)
        return kept

    def _product(self, matrix: recipe.Matrix) -> interface.CProduct:
        return interface.CProduct(interface.TYPES[self._type], matrix.outputs, matrix.inputs)

    def _matrix_bytes(self, matrix: recipe.Matrix) -> int:
        return int(self._library.lmprog_engine_packed_bytes(byref(self._product(matrix))))

    def _matrix(self, matrix: recipe.Matrix, region: Region) -> Bytes:
        place, product = region.take(self._matrix_bytes(matrix)), self._product(matrix)
        for part in matrix.parts:
            array = self._source.array(part.name)
            assert array.flags.c_contiguous
            rows = interface.CSourceRows(
                array.ctypes.data + part.begin * array.strides[0],
                _SOURCE_TYPES[array.dtype],
                part.rows,
                matrix.inputs,
                part.first,
                part.step,
                part.offset,
            )
            self._pack_rows(product, place, rows)
            self._source.release(part.name)
            self._num_weights += part.rows * matrix.inputs
        return place

    def _pack_rows(
        self, product: interface.CProduct, place: Bytes, rows: interface.CSourceRows
    ) -> None:
        """In stretches that end where a panel ends, so that no panel is written by two threads."""
        cuts = [*range(_ROWS_AT_ONCE - rows.first % _PANEL, rows.rows, _ROWS_AT_ONCE), rows.rows]
        to = ctypes.c_void_p(place.ctypes.data)

        def packed(first: int, end: int) -> None:
            self._library.lmprog_engine_pack(byref(product), to, byref(rows), first, end)

        list(self._pool.map(packed, [0, *cuts[:-1]], cuts))

    def _vector(self, vector: recipe.Vector, region: Region) -> Bytes:
        place = region.take(_vector_bytes(vector))
        numbers = place.view(np.float32)
        at = 0
        for name in vector.names:
            array = widened(self._source.array(name))
            numbers[at : at + len(array)] = array + np.float32(vector.plus)
            at += len(array)
        assert at == vector.size, vector
        return place


def _vector_bytes(vector: recipe.Vector) -> int:
    return interface.up32(vector.size) * 4


def widened(array: NDArray[Any]) -> NDArray[np.float32]:
    """A source's numbers as float32."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def narrowed(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of bfloat16, rounded to nearest even; the checkpoint's numbers are finite."""
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def checkpoint_source(checkpoint: Checkpoint, shape: ModelShape) -> Source:
    """The checkpoint, once all that `shape` needs has been found in it."""
    checkpoint.check(recipe.expected(shape), shape.tied_head)
    return checkpoint


def random_source(shape: ModelShape, seed: int) -> Source:
    return RandomSource(recipe.expected(shape), seed)
