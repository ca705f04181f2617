"""The weights of a checkpoint, or random ones, in the fused form that the torch decoder computes
with.

Files are memory-mapped and read one layer at a time, so that the peak is the model plus one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmprog.runtime.engine.model.derived_weights import DerivedWeights, Float8Weight
from lmprog.runtime.engine.model.joined_weights import WeightSource, split_weights
from lmprog.runtime.engine.model.random_weights import RandomSource
from lmprog.runtime.engine.model.recipe import expected
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.model.stored_weights import stored_weights
from lmprog.runtime.engine.torch_engine.decoder import Weights
from lmprog.runtime.engine.torch_engine.fusing import Read, fused


def load_weights(
    folder: Path, shape: ModelShape, dtype: torch.dtype, progress: bool | None = None
) -> Weights:
    """The weights of `folder` as `dtype`. `progress` shows a bar; None: on a terminal, if it takes
    long.
    """
    return fused(shape, dtype, weight_reader(folder, shape), progress)


def random_weights(shape: ModelShape, dtype: torch.dtype, seed: int) -> Weights:
    """Weights drawn from `seed`: a model that computes like any other and says nothing sensible."""
    return fused(shape, dtype, weight_reader(None, shape, seed), progress=False)


def weight_reader(folder: Path | None, shape: ModelShape, seed: int = 0) -> Read:
    """Gives the weights of `folder`, which fit `shape`, or random ones."""
    source = weight_source(folder, shape, seed)
    return lambda name: as_tensor(source.array(name))


def weight_source(folder: Path | None, shape: ModelShape, seed: int = 0) -> WeightSource:
    """The same as arrays, whose memory can be released."""
    if folder is None:
        return RandomSource(expected(shape), seed)
    checkpoint = stored_weights(folder, shape)
    checkpoint.check(expected(shape), shape.tied_head)
    return split_weights(checkpoint, shape)


ReadFloat8 = Callable[[str], Float8Weight | None]
"""Gives the matrix of that name as it is stored; None where it is of no 8-bit floats."""


def float8_reader(folder: Path, shape: ModelShape) -> ReadFloat8:
    """Of the weights of `folder`, each by itself."""
    stored = stored_weights(folder, shape)
    return stored.float8 if isinstance(stored, DerivedWeights) else lambda _: None


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor in the array's memory; 16 bits without a type are bfloat16."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
