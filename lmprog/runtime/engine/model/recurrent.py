"""Recurrent layers of hybrid models: which layers are, of which kind, and how large their states.

Knows sizes and fields of config.json; reads no weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.rope import FeatureNotComputed

MOST_TAPS = 4
"""Of a convolution in the native engine."""
_LANES = 16
"""Channels and values of a head are computed so many at a time."""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Those of one model, which are all of one kind (`lmprog_engine.h` says what each computes)."""

    kind: Literal["short_conv", "delta_net", "mamba2"]
    layers: frozenset[int]
    taps: int
    channels: int
    """That go through a convolution."""
    heads: int = 0
    groups: int = 0
    """Of heads with common keys."""
    key_dim: int = 0
    value_dim: int = 0
    conv_bias: bool = False
    is_joined: bool = False
    """The checkpoint keeps what comes in as one weight, group by group (Qwen 3 Next)."""

    @property
    def keys(self) -> int:
        return self.groups * self.key_dim

    @property
    def values(self) -> int:
        return self.heads * self.value_dim


def checked(recurrent: Recurrent) -> Recurrent:
    """Raises FeatureNotComputed where the native engine does not compute these sizes."""
    if recurrent.taps > MOST_TAPS:
        raise FeatureNotComputed(
            f"convolutions over {recurrent.taps} tokens are not supported by the native decoder"
        )
    sizes = (recurrent.channels, recurrent.value_dim)
    if any(size % _LANES for size in sizes):
        raise FeatureNotComputed(
            f"channels and values by heads must be multiples of {_LANES} in the native decoder, "
            f"they are {sizes[0]} and {sizes[1]}"
        )
    if recurrent.groups and recurrent.heads % recurrent.groups:
        raise ModelError(f"{recurrent.heads} heads cannot share {recurrent.groups} keys evenly")
    return recurrent


def layers_of(config: Mapping[str, Any], kinds: Sequence[str], kind: str) -> frozenset[int]:
    """The layers of the type `kind`; all others are full attention. Some say mamba or attention."""
    count = config.get("num_hidden_layers")
    words = {"mamba": "linear_attention", "attention": "full_attention"}
    kinds = [words.get(one, one) for one in kinds]
    if len(kinds) != count or not set(kinds) <= {kind, "full_attention"}:
        raise ModelError(
            f"layer_types must name {kind} or full_attention for each of {count} layers: {kinds}"
        )
    return frozenset(layer for layer, one in enumerate(kinds) if one == kind)
