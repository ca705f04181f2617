"""The experts of GPT-OSS, which its checkpoints keep as one weight a layer, one by one.

A layer has `gate_up_proj` [experts, hidden, 2 * inner], whose even columns are gates and whose odd
ones their partners, and `down_proj` [experts, inner, hidden]: inputs first. Knows names and places.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.engine.model.checkpoint import Checkpoint
from lmprog.runtime.engine.model.derived_weights import Derived
from lmprog.runtime.engine.model.mixture import ExpertNames

_PARTS = {"gate": ("gate_up_proj", 0), "up": ("gate_up_proj", 1), "down": ("down_proj", None)}
"""The weight that a product is a part of, and which of its columns; None: all."""


def single_experts(checkpoint: Checkpoint, names: ExpertNames) -> dict[str, Derived]:
    """Every expert's weights by themselves."""
    found: dict[str, Derived] = {}
    for stored in checkpoint.names:
        prefix, dot, kind = stored.rpartition(f".{names.block}.experts.")
        if not dot:
            continue
        for product, (stack, offset) in _PARTS.items():
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
