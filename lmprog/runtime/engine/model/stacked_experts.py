"""The experts of checkpoints that keep all of a layer in one weight, one by one.

GPT-OSS: `gate_up_proj` [experts, hidden, 2 * inner], whose even columns are gates and whose odd
ones their partners, and `down_proj` [experts, inner, hidden]: inputs first. Granite: `input_linear`
[experts, 2 * inner, hidden], gates before their partners, and `output_linear` [experts, hidden,
inner]. Knows names and places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.engine.model.checkpoint import Checkpoint
from lmprog.runtime.engine.model.derived_weights import Derived
from lmprog.runtime.engine.model.mixture import ExpertNames, Mixture

_PARTS = {"gate": ("gate_up_proj", 0), "up": ("gate_up_proj", 1), "down": ("down_proj", None)}
"""The weight that a product is a part of, and which of its columns; None: all."""
_HALVES = {
    "gate": ("input_linear", 0, 2),
    "up": ("input_linear", 1, 2),
    "down": ("output_linear", 0, 1),
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


def _granite(checkpoint: Checkpoint, names: ExpertNames) -> dict[str, Derived]:
    found: dict[str, Derived] = {}
    for stored in checkpoint.names:
        prefix, dot, kind = stored.rpartition(f".{names.block}.")
        if not dot or len(checkpoint.shape(stored)) != 3:
            continue
        for product, (stack, half, halves) in _HALVES.items():
            if kind != f"{stack}.weight":
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
    "granite": _granite,
}
