"""A mixture's shared expert, cut into experts of the size of all others.

They are numbered behind those that a router chooses among; what the last one has too little is
zeros. The router gets the gate of the shared expert as one more row. Knows names and places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.derived_weights import Derived
from lmprog.runtime.engine.model.mixture import Mixture, SharedExpert


class StoredRows(Protocol):
    """A checkpoint's, in whatever form it keeps them."""

    def shape(self, name: str) -> tuple[int, ...]: ...

    def number_type(self, name: str) -> np.dtype[np.generic]: ...

    def rows(self, name: str, first: int, end: int) -> NDArray[np.generic]: ...


def shared_experts(
    weights: StoredRows, names: set[str], mixture: Mixture, made: Mapping[str, Derived]
) -> dict[str, Derived]:
    """The weights that take the place of the shared expert's and the router's; `names` are there,
    those in `made` out of others. Raises ModelError where one is not.
    """
    shared = mixture.shared
    if shared is None:
        return {}
    found: dict[str, Derived] = {}
    for layer in sorted(mixture.layers):
        prefix = f"model.layers.{layer}."
        cut = _Cut(weights, names, made, prefix)
        found |= cut.parts(mixture, shared)
        if shared.share is not None:
            router = mixture.names.of_router()
            found[prefix + router] = cut.joined(router, shared.share)
    return found


class _Cut:
    """Rows and columns of one layer's weights as weights of their own."""

    def __init__(
        self, weights: StoredRows, names: set[str], made: Mapping[str, Derived], prefix: str
    ) -> None:
        self._weights, self._names, self._made, self._prefix = weights, names, made, prefix

    def parts(self, mixture: Mixture, shared: SharedExpert) -> dict[str, Derived]:
        found = {}
        is_joined = shared.up == shared.gate
        ups = shared.inner if is_joined else 0
        self._check(shared.gate, 0, shared.inner * (1 + is_joined))
        self._check(shared.up, 0, shared.inner * (1 + is_joined))
        self._check(shared.down, 1, shared.inner)
        for part in range(mixture.shared_parts):
            expert, begin = mixture.experts + part, part * mixture.inner
            end = min(begin + mixture.inner, shared.inner)
            made = {
                "gate": self._some_rows(shared.gate, begin, end, mixture.inner),
                "up": self._some_rows(shared.up, ups + begin, ups + end, mixture.inner),
                "down": self._some_columns(shared.down, begin, end, mixture.inner),
            }
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
