"""Probes: small classifiers in training that look inside of the network for the steps that lead to an
answer, and so teach it to take them.

Whether a written sum is right depends on all of its digits at once: from "yes" and "no" alone the
network learned nothing in millions of tokens. Asked in its middle for the digits of the right
result, and for which of them agree, it learns to judge within one. Probes are not exported.

Knows hidden states and classes; knows no text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# What a written result is judged by: the last digit of the right one, what stands before it (from
# 15 on for negative results), and whether each agrees with what is written. Classes of each.
STEPS = (10, 30, 2, 2)
LAYERS = (2, 3, 4)  # behind which of the network's layers probes look


class Probes(nn.Module):
    """A linear classifier for each of the layers and each kind of step."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.heads = nn.ModuleList(
            nn.ModuleList(nn.Linear(hidden, classes) for classes in STEPS) for _ in LAYERS
        )
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def loss(self, states: Sequence[Tensor], before: Tensor, steps: Tensor) -> Tensor:
        """The mean loss over layers and kinds of `steps` [positions, kinds] at the flat positions
        `before` of the hidden states [batch, time, hidden] behind each layer.
        """
        losses = []
        for layer, heads in zip(LAYERS, self.heads, strict=True):
            assert isinstance(heads, nn.ModuleList)
            at = F.rms_norm(states[layer].flatten(0, 1)[before].float(), (self.hidden,))
            losses += [
                F.cross_entropy(head(at).float(), steps[:, kind]) for kind, head in enumerate(heads)
            ]
        return torch.stack(losses).mean()


def steps_of(right: int, written: int) -> tuple[int, ...]:
    """The steps to judge a written result by."""
    return (abs(right) % 10, _rest(right), *(map(int, _agree(right, written))))


def _rest(number: int) -> int:
    """What stands before the last digit, the sign included."""
    return abs(number) // 10 + (15 if number < 0 else 0)


def _agree(right: int, written: int) -> tuple[bool, bool]:
    return abs(right) % 10 == abs(written) % 10, _rest(right) == _rest(written)
