"""A mixture of experts in plain torch, for the decoder of several ranks.

Each expert's tokens are one product. A rank that has a part of each expert's columns gives a part
of the sum over experts; routers are whole, so that all ranks send a token the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lmprog.runtime.engine.model.mixture import Mixture


@dataclass(frozen=True, slots=True)
class MixtureWeights:
    """One layer's. Products are kept transposed, with what comes before them folded in."""

    router: Tensor  # [hidden, scores], in float32 at least: a rounding may send a token elsewhere
    gate_up: tuple[Tensor, ...]  # of each expert: [hidden, 2 * inner]
    down: tuple[Tensor, ...]  # of each expert: [inner, hidden]

    @property
    def num_met(self) -> int:
        """Weights of one expert."""
        return self.gate_up[0].numel() + self.down[0].numel()

    def kept(self, keep: Callable[[Tensor], Tensor]) -> MixtureWeights:
        """The same weights, each where `keep` puts it."""
        gates, downs = tuple(map(keep, self.gate_up)), tuple(map(keep, self.down))
        return MixtureWeights(keep(self.router), gates, downs)


def mixed(
    x: Tensor, weights: MixtureWeights, mixture: Mixture, opened: Callable[[Tensor], Tensor]
) -> Tensor:
    """The sum over each token's experts; `opened` is what gates go through. # [T, hidden]"""
    scores = torch.mm(x.to(weights.router.dtype), weights.router)
    chosen, shares = _routes(scores[:, : mixture.experts], mixture)
    total = torch.zeros_like(x)
    for expert in range(mixture.experts):
        tokens, places = torch.nonzero(chosen == expert, as_tuple=True)
        if len(tokens):
            given = _expert(x[tokens], weights, expert, opened)
            total.index_add_(0, tokens, given * shares[tokens, places, None].to(x.dtype))
    if mixture.shared_parts:
        parts = range(mixture.experts, mixture.computed_experts)
        shared = torch.stack([_expert(x, weights, part, opened) for part in parts]).sum(0)
        if mixture.is_shared_gated:
            shared.mul_(torch.sigmoid(scores[:, mixture.experts :]).to(x.dtype))
        total.add_(shared)
    return total


def _routes(scores: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor]:
    """The experts of each token, the first of equal ones, and their shares. # [T, used] each"""
    shares = F.softmax(scores, -1)
    chosen = torch.argsort(shares, dim=-1, descending=True, stable=True)[:, : mixture.used]
    taken = torch.gather(shares, 1, chosen)
    if mixture.normalized:
        taken = taken / taken.sum(1, keepdim=True)
    return chosen, taken


def _expert(
    x: Tensor, weights: MixtureWeights, expert: int, opened: Callable[[Tensor], Tensor]
) -> Tensor:
    gate, up = torch.mm(x, weights.gate_up[expert]).chunk(2, -1)
    return torch.mm(opened(gate).mul_(up), weights.down[expert])
