"""Recurrent layers of transformers' models, on slots: short convolutions, gated delta nets, Mamba.

Transformers computes such a layer for a batch of sequences, from the states that a cache gives it.
Ours has the states of one stretch of tokens, read from slots before and written to slots after it:
so a step's rows, which are one sequence to the rest of the model, go on each from its own state, in
their order. Rows that decode are one batch. What a layer keeps is learnt from a pass over one
token.

Knows modules and slots; knows no pages, and no mathematics of any layer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmprog.runtime.scheduling.batch import Batch

NOTHING = -1
"""In place of a slot: the state before the first token."""

_BY_TOKEN = frozenset({"JambaMambaMixer"})
"""Modules whose code for several tokens at once begins from nothing, whatever state it is given:
they go on a token at a time."""

_Key = tuple[str, int]
"""Which state of a layer: "conv" or "recurrent", and its number."""


class LayerStates:
    """What transformers' layers take for their cache: the states of one layer."""

    def __init__(self, states: dict[_Key, Tensor]) -> None:
        """Without states, for the first token of all, it learns their sizes."""
        self.states = states  # by key: [sequences, ...]

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.states.get(("conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.states.get(("recurrent", state_idx))

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        """The columns before those that are given, and these."""
        before = self.states.get(("conv", state_idx))
        if before is None:
            size = (*conv_states.shape[:-1], conv_kernel_size or conv_states.shape[-1])
            before = conv_states.new_zeros(size)
        whole = torch.cat([before, conv_states.to(before.dtype)], -1)
        self.states["conv", state_idx] = whole[..., -before.shape[-1] :]
        return whole

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Tensor:
        self.states["recurrent", state_idx] = recurrent_states
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        return False


class _Stretch(NamedTuple):
    """Tokens of one row that are computed at once."""

    begin: int
    end: int
    source: int | None
    """The slot that its state is read from; None: it goes on from the stretch before it."""
    targets: list[int]


@dataclass(frozen=True, slots=True)
class _Step:
    """A batch as the recurrent layers compute it."""

    decoding: Tensor  # [B]: tokens that are all of their rows
    sources: Tensor  # [B]
    targets: Tensor  # [B]
    stretches: list[_Stretch]
    """The other rows, in their order."""


def step_of(batch: Batch) -> _Step:
    """Rows of one token are computed together, unless another row of the step must come first."""
    states, starts = batch.states, batch.row_starts.tolist()
    num_rows = batch.num_rows
    sources = [NOTHING] * num_rows if states is None else states.sources.tolist()
    targets = [NOTHING] * num_rows if states is None else states.targets.tolist()
    left: dict[int, list[tuple[int, int]]] = {}
    if states is not None:
        for row, count, slot in states.snapshots.tolist():
            left.setdefault(row, []).append((count, slot))
    written = {slot for beside in left.values() for _, slot in beside}
    alone, stretches = list[int](), list[_Stretch]()
    for row in range(num_rows):
        begin, end = starts[row], starts[row + 1]
        if end - begin == 1 and row not in left and sources[row] not in written:
            alone.append(row)
        else:
            stretches += _stretches(begin, end, sources[row], targets[row], left.get(row, []))
    return _Step(
        torch.tensor([starts[row] for row in alone], dtype=torch.int64),
        torch.tensor([sources[row] for row in alone], dtype=torch.int64),
        torch.tensor([targets[row] for row in alone], dtype=torch.int64),
        stretches,
    )


def _stretches(
    begin: int, end: int, source: int, target: int, left: list[tuple[int, int]]
) -> Iterator[_Stretch]:
    """One row's tokens, cut behind those after which snapshots are left."""
    after: dict[int, list[int]] = {}
    for count, slot in left:
        after.setdefault(begin + count, []).append(slot)
    after.setdefault(end, []).extend([] if target == NOTHING else [target])
    at: int | None = source
    for cut in sorted(after):
        yield _Stretch(begin, cut, at, after[cut])
        begin, at = cut, None


@dataclass(slots=True)
class _Layer:
    forward: Callable[..., Tensor]
    """The module's own."""
    cache_name: str
    by_token: bool = False
    sizes: dict[_Key, tuple[tuple[int, ...], torch.dtype]] = field(default_factory=dict)
    """Of its states for one sequence."""
    pool: dict[_Key, Tensor] = field(default_factory=dict)
    """[slots, ...] each."""

    def run(
        self, x: Tensor, states: dict[_Key, Tensor], is_first: bool = False
    ) -> tuple[Tensor, dict[_Key, Tensor]]:
        """Tokens of several sequences, and their states behind them. `is_first`: the states are
        those before the first token. # [B, T, hidden]
        """
        cache = LayerStates(states)
        count = x.shape[1] if self.by_token and not is_first else 1
        parts = x.tensor_split(count, 1) if count > 1 else (x,)
        given = [self.forward(part, **{self.cache_name: cache}) for part in parts]
        return given[0] if len(given) == 1 else torch.cat(given, 1), cache.states

    def read(self, slots: Tensor) -> dict[_Key, Tensor]:
        """Copies, which the layer may change."""
        found = {}
        for key, (size, dtype) in self.sizes.items():
            if key in self.pool:
                found[key] = self.pool[key][slots.clamp(min=0)]
                found[key][slots < 0] = 0
            else:
                found[key] = torch.zeros((len(slots), *size), dtype=dtype)
        return found

    def write(self, slots: Tensor, states: dict[_Key, Tensor]) -> None:
        for key, pool in self.pool.items():
            pool[slots] = states[key].to(pool.dtype)


class RecurrentLayers:
    """Those of one model, whose modules compute on slots while a batch is computed."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._layers: list[_Layer] = []
        self._step: _Step | None = None
        self._is_probing = False
        for module in model.modules():
            name = _cache_name(module)
            if name is not None:
                self._take(module, name)

    def __bool__(self) -> bool:
        return bool(self._layers)

    @property
    def state_bytes(self) -> int:
        """Of all layers, for one sequence."""
        sizes = [one for layer in self._layers for one in layer.sizes.values()]
        return sum(torch.Size(size).numel() * dtype.itemsize for size, dtype in sizes)

    def take_slots(self, count: int) -> None:
        """Memory for so many sequences' states; it is taken when it is first written."""
        for layer in self._layers:
            layer.pool = {
                key: torch.zeros((count, *size), dtype=dtype)
                for key, (size, dtype) in layer.sizes.items()
            }

    @contextmanager
    def computing(self, batch: Batch | None) -> Iterator[None]:
        """Inside, the layers compute this batch; None: the very first token, from which they learn
        what they keep.
        """
        self._step = None if batch is None else step_of(batch)
        self._is_probing = batch is None
        try:
            yield
        finally:
            self._step, self._is_probing = None, False

    def _take(self, module: torch.nn.Module, cache_name: str) -> None:
        layer = _Layer(module.forward, cache_name, type(module).__name__ in _BY_TOKEN)
        self._layers.append(layer)

        def forward(hidden_states: Tensor, *rest: Any, **options: Any) -> Tensor:
            if self._is_probing:
                return _probed(layer, hidden_states)
            if self._step is None:
                return layer.forward(hidden_states, *rest, **options)
            return _computed(layer, hidden_states, self._step)

        module.forward = forward


def _cache_name(module: torch.nn.Module) -> str | None:
    """What a recurrent layer calls its cache; None for a module that is none."""
    if not isinstance(getattr(module, "layer_idx", None), int):
        return None
    if not any(isinstance(child, torch.nn.Conv1d) for child in module.children()):
        return None
    names = inspect.signature(module.forward).parameters
    return next((name for name in ("cache_params", "past_key_values") if name in names), None)


def _probed(layer: _Layer, x: Tensor) -> Tensor:
    out, states = layer.run(x, {})
    layer.sizes = {key: (tuple(one.shape[1:]), one.dtype) for key, one in states.items()}
    return out


def _computed(layer: _Layer, x: Tensor, step: _Step) -> Tensor:
    """All tokens of the step. # [1, T, hidden]"""
    out = torch.empty_like(x)
    if len(step.decoding):
        given, states = layer.run(x[0, step.decoding, None], layer.read(step.sources))
        out[0, step.decoding] = given[:, 0].to(out.dtype)
        if (step.targets >= 0).all():
            layer.write(step.targets, states)
    states = {}
    for begin, end, source, targets in step.stretches:
        if source is not None:
            states = layer.read(torch.tensor([source]))
        given, states = layer.run(x[:, begin:end], states, is_first=source == NOTHING)
        out[:, begin:end] = given
        for target in targets:
            layer.write(torch.tensor([target]), states)
    return out
