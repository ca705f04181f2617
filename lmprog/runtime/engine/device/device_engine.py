"""The engine on a device: a batch in, logits out, which stay there until the sampler has read them.

Steps in which every row has one token are captured as graphs, one for each layout of their arrays,
and replayed. Knows batches; knows no request, no tree and no text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from lmprog.runtime.engine.batch import Batch
from lmprog.runtime.engine.device.attention_choice import DeviceAttentionName
from lmprog.runtime.engine.device.device_decoder import DeviceDecoder, StepInputs
from lmprog.runtime.engine.device.driver import DeviceGraph, Driver
from lmprog.runtime.engine.device.sampling import DeviceLogits, DeviceSampler
from lmprog.runtime.engine.device.staging import Staging, StagingLayout
from lmprog.runtime.engine.device.step_arrays import Arrays, StepPlans, step_arrays
from lmprog.runtime.engine.device.tree_attention import TreeAttention

_STAGING_BYTES = 1 << 20
_MOST_GRAPHS = 64
"""Graphs kept; beyond, the oldest goes. Each holds some hundred launches."""
_WORD = 4


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A loaded model with its pages, and what a runtime must know of it."""

    decoder: DeviceDecoder
    attention: TreeAttention
    attention_name: DeviceAttentionName
    location: Path | None
    """The checkpoint's folder; None for a dummy."""
    context_len: int
    dtype: torch.dtype
    num_pages: int
    is_captured: bool = True
    """Whether steps of one token a row are kept as graphs."""


class DeviceEngine:
    """One thread calls `forward`; logits are valid until the next call."""

    def __init__(self, driver: Driver, model: DeviceModel, sampler: DeviceSampler) -> None:
        self.location = model.location
        self.context_len = model.context_len
        self.vocab_size = model.decoder.shape.vocab_size
        self.dtype = str(model.dtype).removeprefix("torch.")
        place = "emulated" if driver.device.type == "cpu" else str(driver.device)
        self.label = f"{place} ({model.attention_name})"
        self.num_pages = model.num_pages
        self.attention = model.attention
        self.sampler = sampler
        self.driver = driver
        self.num_replays = 0
        self._decoder = model.decoder
        self._can_capture = model.is_captured and model.attention.can_be_captured
        self._plans = StepPlans(model.attention.rules)
        self._staging = Staging(driver, _STAGING_BYTES)
        self._graphs: dict[StagingLayout, DeviceGraph] = {}
        self._moves = self._staging.moves

    def forward(self, batch: Batch) -> DeviceLogits:
        """Starts the computation of the batch. Its keys and values are kept in its slots."""
        with torch.inference_mode():
            if len(batch.copies):
                self.attention.copy(torch.from_numpy(batch.copies))
            arrays = step_arrays(batch, self._plans.of(batch))
            self.attention.begin(batch)
            if batch.num_tokens == batch.num_rows and self._can_capture:
                self._replay(arrays)
            else:
                self._issue(arrays, StagingLayout.exact(arrays))
        return DeviceLogits(self._decoder.logits(len(batch.logit_tokens)), len(batch.logit_tokens))

    def finish(self) -> None:
        """Returns when all steps are computed."""
        self.driver.event().wait()

    def _issue(self, arrays: Arrays, layout: StagingLayout) -> None:
        self._make_room(layout)
        self._decoder.issue(
            self._inputs(self._staging.send(arrays, layout), layout), self.attention
        )

    def _replay(self, arrays: Arrays) -> None:
        layout = StagingLayout.rounded(arrays)
        self._make_room(layout)
        at = self._staging.send(arrays, layout)
        if self._staging.moves != self._moves:
            self._graphs.clear()
            self._moves = self._staging.moves
        graph = self._graphs.pop(layout, None)
        if graph is None:
            inputs = self._inputs(at, layout)
            graph = self.driver.capture(lambda: self._decoder.issue(inputs, self.attention))
            if len(self._graphs) >= _MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
        self._graphs[layout] = graph  # the last one used is the last to go
        self.num_replays += 1
        graph.replay()

    def _make_room(self, layout: StagingLayout) -> None:
        if self._decoder.make_room(dict(layout.rooms)["logit_tokens"] // _WORD):
            self._graphs.clear()

    def _inputs(self, at: dict[str, int], layout: StagingLayout) -> StepInputs:
        rooms = dict(layout.rooms)

        def ints(name: str) -> torch.Tensor:
            return self._staging.read(at[name], rooms[name] // _WORD, torch.int32)

        return StepInputs(at, ints("tokens"), ints("logit_tokens"))
