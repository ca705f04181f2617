"""Weights that a checkpoint keeps in another form, under the names and in the form that decoders
ask for.

Knows names, sizes and rows. How a form is read is the affair of who derives a weight from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.engine.model.checkpoint import Checkpoint
from lmprog.runtime.engine.model.weight_names import check_weights, says_more


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


class DerivedWeights:
    """`base` with the weights `derived` in place of those that they are made of."""

    def __init__(
        self,
        base: Checkpoint,
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
