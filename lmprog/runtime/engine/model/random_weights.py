"""Random numbers in place of a checkpoint's, for models that have no files. Knows numpy only."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


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
