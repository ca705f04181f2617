"""Weights that a checkpoint keeps in another form, under the names and in the form that decoders
ask for: experts that are stacked in one weight, and a shared expert, cut into experts of the size
of all others.

Knows names, sizes and rows. How numbers are read is the affair of `stored_weights`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.checkpoint import Checkpoint, check_weights, says_more
from lmprog.runtime.engine.model.mixture import ExpertNames, Mixture, SharedExpert
from lmprog.runtime.engine.model.shape import ModelShape


@dataclass(frozen=True, slots=True)
class Float8Weight:
    """A matrix of e4m3 floats as it is stored."""

    bits: NDArray[np.uint8]  # [outputs, inputs]
    scales: NDArray[np.float32]  # [outputs, groups]
    group: int
    """Inputs that share a scale; at least all: those of a row do."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A weight made of others. `rows(first, end)` gives rows of a matrix, one after the other, or
    numbers of a vector; several threads ask at once.
    """

    shape: tuple[int, ...]
    number_type: np.dtype[Any]
    rows: Callable[[int, int], NDArray[Any]]
    sources: tuple[str, ...]
    float8: Callable[[], Float8Weight] | None = None
    """Gives the floats of 8 bits that it is made of; None: it is made of something else."""


class StoredCheckpoint(Protocol):
    """The weights of a checkpoint as they are stored."""

    @property
    def folder(self) -> Path:
        """Where they are, for errors."""
        ...

    @property
    def names(self) -> set[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def number_type(self, name: str) -> np.dtype[Any]: ...
    def array(self, name: str) -> NDArray[Any]: ...
    def rows(self, name: str, first: int, end: int) -> NDArray[Any]: ...
    def release(self, name: str, first: int, end: int) -> None: ...
    def unread_types(self, names: Set[str]) -> list[str]: ...


class DerivedWeights:
    """`base` with the weights `derived` in place of those that they are made of."""

    def __init__(
        self,
        base: StoredCheckpoint,
        derived: Mapping[str, Derived],
        unused: frozenset[str] = frozenset(),
    ) -> None:
        """`unused` are weights of `base` that say nothing further."""
        self._base = base
        self._derived = derived
        used = {source for one in derived.values() for source in one.sources}
        self._own = base.names - used - unused

    @property
    def names(self) -> set[str]:
        return self._own | self._derived.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        made = self._derived.get(name)
        return self._base.shape(name) if made is None else made.shape

    def float8(self, name: str) -> Float8Weight | None:
        """The matrix as it is stored; None where its numbers are no floats of 8 bits."""
        made = self._derived.get(name)
        return None if made is None or made.float8 is None else made.float8()

    def number_type(self, name: str) -> np.dtype[Any]:
        """Of `array` and `rows`."""
        made = self._derived.get(name)
        return self._base.number_type(name) if made is None else made.number_type

    def array(self, name: str) -> NDArray[Any]:
        """The whole weight."""
        made = self._derived.get(name)
        return self._base.array(name) if made is None else made.rows(0, made.shape[0])

    def rows(self, name: str, first: int, end: int) -> NDArray[Any]:
        """Rows `first .. end` of a matrix."""
        made = self._derived.get(name)
        return self._base.rows(name, first, end) if made is None else made.rows(first, end)

    def release(self, name: str, first: int, end: int) -> None:
        """Lets the system take back memory: of what a weight is made of, once its last rows are
        not needed any more.
        """
        made = self._derived.get(name)
        if made is None:
            self._base.release(name, first, end)
        elif end == made.shape[0]:
            for source in made.sources:
                if shape := self._base.shape(source):
                    self._base.release(source, 0, shape[0])

    def check(self, wanted: Mapping[str, tuple[int, ...]], tied_head: bool) -> None:
        """Raises ModelError unless exactly `wanted` is there."""
        there = {
            name: self.shape(name)
            for name in self.names
            if says_more(name, tied_head) and (name in wanted or not self._is_empty_bias(name))
        }
        unread = self._base.unread_types(self._own & wanted.keys())
        check_weights(self._base.folder, there, wanted, unread)

    def _is_empty_bias(self, name: str) -> bool:
        """Some tools write a bias of zeros beside every weight that they quantize."""
        is_bias = name.endswith(".bias") and not self._base.unread_types({name})
        return is_bias and not self._base.array(name).any()


# --- a shared expert ------------------------------------------------------------------------------


def shared_experts(
    weights: DerivedWeights, shape: ModelShape, made: Mapping[str, Derived]
) -> dict[str, Derived]:
    """The weights that take the place of the shared expert's and the router's; those of `weights`
    in `made` are made of others. Raises ModelError where one is not there.
    """
    mixture = shape.mixture
    if mixture is None or (shared := mixture.shared) is None:
        return {}
    found: dict[str, Derived] = {}
    for layer in sorted(mixture.layers):
        prefix = shape.prefix_of(layer)
        cut = _Cut(weights, made, prefix)
        found |= cut.parts(mixture, shared)
        if shared.share is not None:
            router = mixture.names.of_router()
            found[prefix + router] = cut.joined(router, shared.share)
    return found


class _Cut:
    """Rows and columns of one layer's weights as weights of their own."""

    def __init__(self, weights: DerivedWeights, made: Mapping[str, Derived], prefix: str) -> None:
        self._weights, self._made, self._prefix = weights, made, prefix
        self._names = weights.names

    def parts(self, mixture: Mixture, shared: SharedExpert) -> dict[str, Derived]:
        found = {}
        is_joined = shared.up == shared.gate
        ups = shared.inner if is_joined else 0
        if shared.gate:
            self._check(shared.gate, 0, shared.inner * (1 + is_joined))
        self._check(shared.up, 0, shared.inner * (1 + is_joined))
        self._check(shared.down, 1, shared.inner)
        for part in range(mixture.shared_parts):
            expert, begin = mixture.experts + part, part * mixture.inner
            end = min(begin + mixture.inner, shared.inner)
            made = {
                "up": self._some_rows(shared.up, ups + begin, ups + end, mixture.inner),
                "down": self._some_columns(shared.down, begin, end, mixture.inner),
            }
            if shared.gate:
                made["gate"] = self._some_rows(shared.gate, begin, end, mixture.inner)
            for product, weight in made.items():
                found[self._prefix + mixture.names.of_expert(expert, product)] = weight
        return found

    def joined(self, first_name: str, second_name: str) -> Derived:
        """The rows of one weight, then those of the other."""
        (count, columns), (more, _) = self._size(first_name), self._size(second_name)
        first, second = self._prefix + first_name, self._prefix + second_name

        def rows(begin: int, end: int) -> NDArray[np.generic]:
            parts = []
            if begin < count:
                parts.append(self._weights.rows(first, begin, min(end, count)))
            if end > count:
                parts.append(self._weights.rows(second, max(begin - count, 0), end - count))
            return np.concatenate(parts)

        sources = self._sources(first_name) + self._sources(second_name)
        return Derived((count + more, columns), self._weights.number_type(first), rows, sources)

    def _some_rows(self, name: str, begin: int, end: int, size: int) -> Derived:
        _, columns = self._size(name)
        whole = self._prefix + name
        number_type = self._weights.number_type(whole)

        def rows(first: int, last: int) -> NDArray[np.generic]:
            stop = min(begin + last, end)
            if begin + first >= stop:
                return np.zeros((last - first, columns), number_type)
            there = self._weights.rows(whole, begin + first, stop)
            return _filled(there, (last - first, columns))

        return Derived((size, columns), number_type, rows, self._sources(name))

    def _some_columns(self, name: str, begin: int, end: int, size: int) -> Derived:
        count, _ = self._size(name)
        whole = self._prefix + name

        def rows(first: int, last: int) -> NDArray[np.generic]:
            there = self._weights.rows(whole, first, last)[:, begin:end]
            return _filled(there, (last - first, size))

        return Derived((count, size), self._weights.number_type(whole), rows, self._sources(name))

    def _size(self, name: str) -> tuple[int, int]:
        whole = self._prefix + name
        if whole not in self._names:
            raise ModelError(f"the weights do not fit config.json; missing weights: {whole}")
        size = self._weights.shape(whole)
        if len(size) != 2:
            raise ModelError(f"{whole} is {list(size)}, which is no matrix")
        return size[0], size[1]

    def _check(self, name: str, axis: int, size: int) -> None:
        found = self._size(name)
        if found[axis] != size:
            raise ModelError(
                f"the weights do not fit config.json; {self._prefix}{name} is {list(found)} and "
                f"should have {size} {('rows', 'columns')[axis]}"
            )

    def _sources(self, name: str) -> tuple[str, ...]:
        """Weights of the checkpoint itself."""
        whole = self._prefix + name
        made = self._made.get(whole)
        return (whole,) if made is None else made.sources


def _filled(there: NDArray[np.generic], size: tuple[int, int]) -> NDArray[np.generic]:
    """`there` with zeros behind its rows and columns."""
    if there.shape == size:
        return np.ascontiguousarray(there)
    whole = np.zeros(size, there.dtype)
    whole[: there.shape[0], : there.shape[1]] = there
    return whole


# --- experts in one weight ------------------------------------------------------------------------

_GPT_OSS_PARTS = {
    "gate": ("gate_up_proj", 0),
    "up": ("gate_up_proj", 1),
    "down": ("down_proj", None),
}
"""The weight that a product is a part of, and which of its columns; None: all."""
_GRANITE_PARTS = {
    "gate": ("input_linear.weight", 0, 2),
    "up": ("input_linear.weight", 1, 2),
    "down": ("output_linear.weight", 0, 1),
}
_STACKED_PARTS = {
    "gate": ("experts.gate_up_proj", 0, 2),
    "up": ("experts.gate_up_proj", 1, 2),
    "down": ("experts.down_proj", 0, 1),
}
_BARE_PARTS = {
    "gate": ("gate_up_proj", 0, 2),
    "up": ("gate_up_proj", 1, 2),
    "down": ("down_proj", 0, 1),
}
"""The weight that a product is a part of, which part of its rows, and of how many."""


def single_experts(checkpoint: Checkpoint, mixture: Mixture) -> dict[str, Derived]:
    """Every expert's weights by themselves; none where the checkpoint keeps them so."""
    read = _LAYOUTS.get(mixture.layout)
    return {} if read is None else read(checkpoint, mixture.names)


def _gpt_oss(checkpoint: Checkpoint, names: ExpertNames) -> dict[str, Derived]:
    found: dict[str, Derived] = {}
    for stored in checkpoint.names:
        prefix, dot, kind = stored.rpartition(f".{names.block}.experts.")
        if not dot:
            continue
        for product, (stack, offset) in _GPT_OSS_PARTS.items():
            if kind == stack and len(checkpoint.shape(stored)) == 3:
                single = "weight"
            elif kind == f"{stack}_bias" and len(checkpoint.shape(stored)) == 2:
                single = "bias"
            else:
                continue
            step = 1 if offset is None else 2
            for expert, weight in enumerate(_slices(checkpoint, stored, offset or 0, step)):
                found[f"{prefix}.{names.of_expert(expert, product, single)}"] = weight
    return found


def _slices(checkpoint: Checkpoint, name: str, offset: int, step: int) -> Iterator[Derived]:
    """Columns `offset, offset + step, ..` of each expert as rows."""
    experts, *inputs, columns = checkpoint.shape(name)
    count = len(range(offset, columns, step))
    for expert in range(experts):

        def rows(first: int, end: int, expert: int = expert) -> NDArray[np.generic]:
            columns = slice(offset + first * step, offset + end * step, step)
            stacked = checkpoint.array(name)[expert, ..., columns]
            return np.ascontiguousarray(stacked.T)

        yield Derived((count, *inputs), checkpoint.number_type(name), rows, (name,))


def _parts_of_rows(
    parts: Mapping[str, tuple[str, int, int]], checkpoint: Checkpoint, names: ExpertNames
) -> dict[str, Derived]:
    found: dict[str, Derived] = {}
    for stored in checkpoint.names:
        prefix, dot, kind = stored.rpartition(f".{names.block}.")
        if not dot or len(checkpoint.shape(stored)) != 3:
            continue
        for product, (stack, half, halves) in parts.items():
            if kind != stack:
                continue
            experts, outputs, _ = checkpoint.shape(stored)
            for expert in range(experts):
                single = f"{prefix}.{names.of_expert(expert, product)}"
                found[single] = _rows_of(checkpoint, stored, expert, half, outputs // halves)
    return found


def _rows_of(checkpoint: Checkpoint, name: str, expert: int, half: int, count: int) -> Derived:
    """Rows `half * count .. (half + 1) * count` of one expert."""

    def rows(first: int, end: int) -> NDArray[np.generic]:
        return checkpoint.array(name)[expert, half * count + first : half * count + end]

    shape = (count, checkpoint.shape(name)[2])
    return Derived(shape, checkpoint.number_type(name), rows, (name,))


_LAYOUTS: Mapping[str, Callable[[Checkpoint, ExpertNames], dict[str, Derived]]] = {
    "gpt_oss": _gpt_oss,
    "granite": functools.partial(_parts_of_rows, _GRANITE_PARTS),
    "stacked": functools.partial(_parts_of_rows, _STACKED_PARTS),
    "bare": functools.partial(_parts_of_rows, _BARE_PARTS),
}
