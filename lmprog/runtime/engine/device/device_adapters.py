"""Adapters (LoRA) on a device: what each adds to the products of the tokens that are its own.

By torch, two thin products for each adapter of a step, in float32 as on the processor. Which tokens
are whose changes from step to step, so such steps are no graphs. Knows adapters and places of
tokens; knows neither layers' order nor pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from lmprog.runtime.engine.device.driver import Driver
from lmprog.runtime.engine.torch_engine.adapted_decoder import (
    FusedLayers,
    FusedLowRank,
    token_adapters,
)
from lmprog.runtime.scheduling.batch import Batch, Ints

_Group = tuple[FusedLayers, Tensor]
"""An adapter, and the places of its tokens."""


class DeviceAdapters:
    """Those of a model, by their numbers from 1 on. `begin` comes before the products of a step."""

    def __init__(
        self, driver: Driver, adapters: Sequence[FusedLayers], digests: Mapping[str, str]
    ) -> None:
        """`digests` by name, in the order of `adapters`."""
        self.digests = dict(digests)
        self._driver = driver
        self._adapters = [_moved(layers, driver.device) for layers in adapters]
        self._of_tokens: list[_Group] = []
        self._of_wanted: list[_Group] = []

    def begin(self, batch: Batch) -> None:
        """Whose the step's tokens are, and those among them whose logits are wanted."""
        if batch.adapters is None:
            self._of_tokens = self._of_wanted = []
            return
        of_tokens = token_adapters(batch)
        self._of_tokens = self._grouped(of_tokens)
        self._of_wanted = self._grouped(of_tokens[batch.logit_tokens])

    def add(self, layer: int, product: str, given: tuple[Tensor, Tensor], is_late: bool) -> None:
        """`given`: what went into the product, and what came out, which is added to. `is_late`:
        only wanted tokens are there.
        """
        for layers, places in self._of_wanted if is_late else self._of_tokens:
            part = layers[layer].get(product)
            if part is not None:
                self._add(part, places, *given)

    def _add(self, part: FusedLowRank, places: Tensor, x: Tensor, out: Tensor) -> None:
        def added() -> None:
            more = x[places].float() @ part.down @ part.up
            out.index_add_(0, places, more.to(out.dtype))

        self._driver.compute(added)

    def _grouped(self, of_tokens: Ints) -> list[_Group]:
        device = self._driver.device
        return [
            (
                self._adapters[number - 1],
                torch.from_numpy(np.flatnonzero(of_tokens == number)).to(device),
            )
            for number in np.unique(of_tokens)
            if number
        ]


def _moved(layers: FusedLayers, device: torch.device) -> FusedLayers:
    return tuple(
        {
            name: FusedLowRank(part.down.to(device), part.up.to(device))
            for name, part in layer.items()
        }
        for layer in layers
    )
