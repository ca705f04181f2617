"""Recurrent layers of hybrid models: which layers are, of which kind, and how large their states.

Knows sizes and fields of config.json; reads no weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.mixture import size_of
from lmprog.runtime.engine.model.rope import FeatureNotComputed

MOST_TAPS = 4
"""Of a convolution in the native engine."""
_LANES = 16
"""Channels and values of a head are computed so many at a time."""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Those of one model, which are all of one kind (`lmprog_engine.h` says what each computes)."""

    kind: Literal["short_conv", "delta_net", "mamba2", "linear"]
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
    layout: Literal["halves", "joined", "single"] = "halves"
    """How a checkpoint keeps what comes into a delta net: as a weight of q, k, v and one of z; as
    one weight, group by group (Qwen 3 Next); or each by itself (OLMo hybrid)."""
    norm_eps: float | None = None
    """Of the norm of what comes out; None: the model's."""
    rate_scale: float = 1.0
    """What rates of a delta net are multiplied by."""
    least_step: float = 0.0
    """Steps of a Mamba 2 are at least so long."""
    block: str = ""
    """What holds the weights of such a layer in a checkpoint; "": what is usual for its kind."""

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


def mamba2(config: dict[str, Any], layers: frozenset[int]) -> Recurrent:
    if config.get("mamba_proj_bias") or _is_limited(config.get("time_step_limit")):
        raise FeatureNotComputed(
            "a Mamba 2 with biases of its products or bounds of its steps is not supported by the "
            "native decoder"
        )
    told = {"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256} | config
    heads, groups, keys = (
        size_of(told, f"mamba_{name}") for name in ("n_heads", "n_groups", "d_state")
    )
    values = (config.get("mamba_expand") or 2) * size_of(config, "hidden_size")
    if not isinstance(each := told.get("mamba_d_head", "auto"), str):
        values = heads * size_of({"mamba_d_head": each}, "mamba_d_head")
    return checked(
        Recurrent(
            *("mamba2", layers, size_of({"mamba_d_conv": 4} | config, "mamba_d_conv")),
            channels=values + 2 * groups * keys,
            heads=heads,
            groups=groups,
            key_dim=keys,
            value_dim=values // heads,
            conv_bias=bool(config.get("mamba_conv_bias", True)),
        )
    )


def _is_limited(bounds: Any) -> bool:
    """`time_step_limit`; transformers writes infinity as an object."""
    if bounds is None:
        return False
    least, most = bounds
    most = most.get("__float__") if isinstance(most, dict) else most
    return bool(least) or most not in ("Infinity", math.inf)


def delta_net(config: dict[str, Any], layers: frozenset[int]) -> Recurrent:
    defaults = {"num_key_heads": 16, "num_value_heads": 32, "key_head_dim": 128}
    defaults |= {"value_head_dim": 128, "conv_kernel_dim": 4}
    told = {f"linear_{name}": size for name, size in defaults.items()} | config
    sizes = {name: size_of(told, f"linear_{name}") for name in defaults}
    keys = sizes["num_key_heads"] * sizes["key_head_dim"]
    values = sizes["num_value_heads"] * sizes["value_head_dim"]
    return checked(
        Recurrent(
            *("delta_net", layers, sizes["conv_kernel_dim"], 2 * keys + values),
            heads=sizes["num_value_heads"],
            groups=sizes["num_key_heads"],
            key_dim=sizes["key_head_dim"],
            value_dim=sizes["value_head_dim"],
            layout="joined" if config["model_type"] == "qwen3_next" else "halves",
        )
    )
