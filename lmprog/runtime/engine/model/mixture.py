"""Mixtures of experts: which layers have one, how large it is, and what its weights are called.

Knows fields of config.json and names in checkpoints; reads no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lmprog.errors import ModelError


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What follows `model.layers.0.` in the names of a mixture's weights."""

    block: str = "mlp"
    router: str = "gate"
    router_block: str = ""
    """What the router is in; "": the block."""
    gate: str = "gate_proj"
    """"": experts have no gate."""
    up: str = "up_proj"
    down: str = "down_proj"

    def of_router(self, kind: str = "weight") -> str:
        return f"{self.router_block or self.block}.{self.router}.{kind}"

    def of_expert(self, expert: int, product: str, kind: str = "weight") -> str:
        """`product` is gate, up or down."""
        return f"{self.block}.experts.{expert}.{getattr(self, product)}.{kind}"


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """A feed-forward beside the experts, which every token goes through. Names are what follows
    `model.layers.0.`."""

    inner: int
    gate: str
    """"": it has none."""
    up: str
    """The same as `gate`: its weight has the gate's rows, then the partner's."""
    down: str
    share: str | None = None
    """The weight of what its result is multiplied with, after a sigmoid; None: nothing."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Feed-forward layers in which each token goes through `used` of several experts.

    A shared expert is computed as further ones of the same size, which all tokens meet
    (`derived_weights.py`).
    """

    experts: int
    used: int
    inner: int
    layers: frozenset[int]
    """Those that have a mixture; the others have an ordinary feed-forward."""
    normalized: bool = True
    """A token's shares sum to 1; otherwise they are of the softmax over all experts."""
    sigmoid: bool = False
    """Shares are of the sigmoid of each score, not of a softmax."""
    share_floor: float = 0.0
    """Added to the sum that shares are divided by."""
    share_scale: float = 1.0
    choice_bias: str | None = None
    """The weight, by what follows `model.layers.0.`, that is added to what experts are chosen by;
    None: nothing is."""
    biases: bool = False
    """Router and experts have biases."""
    names: ExpertNames = ExpertNames()
    layout: Literal["single", "gpt_oss", "granite", "stacked", "bare"] = "single"
    """How a checkpoint keeps a layer's experts: one by one, or all in one weight. Stacked are those
    that some tools keep one by one."""
    shared: SharedExpert | None = None
    is_beside: bool = False
    """The layer has an ordinary feed-forward, too, and each of both its own norms (Gemma 4)."""

    @property
    def shared_parts(self) -> int:
        """How many experts of `inner` the shared one is."""
        return 0 if self.shared is None else -(-self.shared.inner // self.inner)

    @property
    def is_shared_gated(self) -> bool:
        return self.shared is not None and self.shared.share is not None

    @property
    def computed_experts(self) -> int:
        return self.experts + self.shared_parts

    @property
    def router_outputs(self) -> int:
        """A score for each expert, and one for the shared one where that is gated."""
        return self.experts + self.is_shared_gated


def read_mixture(
    config: Mapping[str, Any], inner: str, layers: frozenset[int], **further: Any
) -> Mixture:
    """The mixture that `config` describes, its experts' size in the field `inner`."""
    name = "num_local_experts" if "num_local_experts" in config else "num_experts"
    experts, used = size_of(config, name), size_of(config, "num_experts_per_tok")
    if used > experts:
        raise ModelError(f"a token cannot go through {used} of {experts} experts")
    return Mixture(experts, used, size_of(config, inner), layers, **further)


def deepseek_mixture(config: Mapping[str, Any], layers: frozenset[int]) -> Mixture:
    """Experts that are chosen by sigmoids and a bias, without groups, beside shared ones."""
    told = {name: one for name, one in config.items() if name != "num_local_experts"}
    inner = told["n_shared_experts"] * size_of(told, "moe_intermediate_size")
    shared = (f"mlp.shared_experts.{name}_proj.weight" for name in ("gate", "up", "down"))
    return read_mixture(
        *(told, "moe_intermediate_size", layers),
        normalized=bool(told.get("norm_topk_prob", True)),
        sigmoid=True,
        share_floor=1e-20,
        share_scale=float(told.get("routed_scaling_factor", 1.0)),
        choice_bias="mlp.gate.e_score_correction_bias",
        shared=SharedExpert(inner, *shared) if inner else None,
    )


def with_shared_expert(config: Mapping[str, Any], layers: frozenset[int]) -> Mixture:
    """Qwen's: beside a shared expert that a gate weighs."""
    shared = SharedExpert(
        size_of(config, "shared_expert_intermediate_size"),
        gate="mlp.shared_expert.gate_proj.weight",
        up="mlp.shared_expert.up_proj.weight",
        down="mlp.shared_expert.down_proj.weight",
        share="mlp.shared_expert_gate.weight",
    )
    return read_mixture(
        *(config, "moe_intermediate_size", layers),
        normalized=bool(config["norm_topk_prob"]),
        layout="stacked",
        shared=shared,
    )


def nemotron_mixture(config: Mapping[str, Any], layers: frozenset[int]) -> Mixture:
    told: dict[str, Any] = {
        "num_experts": config.get("n_routed_experts", 8),
        "num_experts_per_tok": 2,
    }
    told |= {"moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688}
    told |= {name: config[name] for name in told if name in config}
    inner = size_of(told, "moe_shared_expert_intermediate_size")
    names = ("mixer.shared_experts.up_proj.weight", "mixer.shared_experts.down_proj.weight")
    return read_mixture(
        *(told, "moe_intermediate_size", layers),
        normalized=bool(config.get("norm_topk_prob", True)),
        sigmoid=True,
        share_floor=1e-20,
        share_scale=float(config.get("routed_scaling_factor", 1.0)),
        choice_bias="mixer.gate.e_score_correction_bias",
        names=ExpertNames("mixer", gate=""),
        shared=SharedExpert(inner, "", *names),
    )


def size_of(config: Mapping[str, Any], name: str) -> int:
    size = config.get(name)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ModelError(f"config.json: {name} must be a positive whole number, it is {size!r}")
    return size
