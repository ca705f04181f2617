"""The engine on a device: a batch in, logits out, which stay there until the sampler has read them.

Steps that want the logits of all their tokens (decoding rows, with drafts or without), and short
ones with chunks of prompts, are captured as graphs, one for each layout of their arrays, and
replayed. Knows batches; knows no request, no tree and no text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lmprog.runtime.engine.device.attention_choice import DeviceAttentionName
from lmprog.runtime.engine.device.device_decoder import DeviceDecoder, StepInputs
from lmprog.runtime.engine.device.device_memory import DeviceMemoryFull
from lmprog.runtime.engine.device.driver import DeviceGraph, Driver
from lmprog.runtime.engine.device.sampling import DeviceLogits, DeviceResults, DeviceSampler
from lmprog.runtime.engine.device.staging import Staging, StagingLayout
from lmprog.runtime.engine.device.step_arrays import Arrays, StepPlans, step_arrays
from lmprog.runtime.engine.device.tree_attention import TreeAttention
from lmprog.runtime.scheduling.batch import Batch, PagesFull

_STAGING_BYTES = 1 << 20
_MOST_GRAPHS = 64
"""Graphs kept; beyond, the oldest goes. Each holds some hundred launches."""
_MOST_MIXED = 1024
"""Tokens of a step with a chunk of a prompt that may be a graph. A longer one takes a device longer
than the host takes to issue it, and would be computed with more rows than it has.
"""
_MOST_SEEN = 1024
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
    dtype: str
    """Of the weights in products."""
    num_pages: int
    is_captured: bool = True
    """Whether short steps are kept as graphs."""


@dataclass(frozen=True, slots=True)
class FedTokens:
    """Tokens that go from the sampler to the next step on the device."""

    chosen: torch.Tensor  # [picks] int32
    places: NDArray[np.int64]
    """Which of them ..."""
    tokens: NDArray[np.int32]
    """... is which token of the step."""


class DeviceEngine:
    """One thread calls `forward`; logits are valid until the next call."""

    name = "device"

    def __init__(self, driver: Driver, model: DeviceModel, sampler: DeviceSampler) -> None:
        self.location = model.location
        self.context_len = model.context_len
        self.vocab_size = model.decoder.shape.vocab_size
        self.dtype = model.dtype
        self.kv_dtype = str(model.attention.shape.kept).removeprefix("torch.")
        place = "emulated" if driver.device.type == "cpu" else str(driver.device)
        adapters = model.decoder.adapters
        self.adapters = {} if adapters is None else adapters.digests
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
        self._seen: set[StagingLayout] = set()
        """Layouts that came once."""
        self._moves = self._staging.moves
        self._feeding = Staging(driver, 1 << 12)

    def forward(self, batch: Batch) -> DeviceLogits:
        """Starts the computation of the batch. Its keys and values are kept in its slots. Raises
        PagesFull.
        """
        return self._begin(batch, None)

    def forward_after(
        self, batch: Batch, before: DeviceResults, picks: Sequence[int]
    ) -> DeviceLogits:
        """As `forward`, while the tokens that the rows begin with may still be computed: `picks[r]`
        is the pick of `before`, the results begun last, that gives row r's; negative: it is known.
        """
        place_of, places = before.place_of, np.array(picks, np.int64)
        fed = np.flatnonzero(places >= 0)
        places = np.array(place_of, np.int64)[places[fed]]
        return self._begin(batch, FedTokens(before.chosen, places, batch.row_starts[fed]))

    def _begin(self, batch: Batch, fed: FedTokens | None) -> DeviceLogits:
        with torch.inference_mode():
            self._back(batch)
            if len(batch.copies):
                self.attention.copy(torch.from_numpy(batch.copies))
            arrays = step_arrays(batch, self._plans.of(batch))
            self.attention.begin(batch)
            if self._decoder.adapters is not None:
                self._decoder.adapters.begin(batch)
            if self._can_capture and batch.adapters is None and self._is_short(batch):
                at = self._replay(arrays, fed, is_first_worth=batch.num_tokens == batch.num_rows)
            else:
                at = self._issue(arrays, StagingLayout.exact(arrays), fed)
        return self._decoder.logits(len(batch.logit_tokens), at)

    def _is_short(self, batch: Batch) -> bool:
        """Whether such a step may be a graph."""
        most = self._decoder.most_captured
        if most is not None and batch.num_tokens > most:
            return False
        return batch.num_tokens <= max(_MOST_MIXED, len(batch.logit_tokens))

    def _back(self, batch: Batch) -> None:
        """Memory for the pages of a batch. Raises PagesFull."""
        try:
            self.attention.back(batch)
        except DeviceMemoryFull as error:
            raise PagesFull(str(error), self._give_back) from error

    def is_lost(self, error: Exception) -> bool:
        """See `LosableEngine`."""
        return self.driver.is_lost(error)

    def finish(self) -> None:
        """Returns when all steps are computed."""
        self.driver.event().wait()

    @property
    def page_release(self) -> Callable[[Sequence[int]], None] | None:
        """Gives up the memory of pages that nobody uses; None where all of it is kept."""
        return self._give_back if self.attention.is_virtual else None

    def _give_back(self, pages: Sequence[int]) -> None:
        self.attention.join_pages()
        self.finish()  # a step that nobody waits for may still touch them
        self.attention.pages.give_back(pages)

    def _issue(
        self, arrays: Arrays, layout: StagingLayout, fed: FedTokens | None
    ) -> dict[str, int]:
        """Where the arrays are."""
        self._make_room(layout)
        inputs = self._inputs(self._staging.send(arrays, layout), layout)
        self._feed(inputs.tokens, fed)
        self._decoder.issue(inputs, self.attention)
        return dict(inputs.at)

    def _replay(
        self, arrays: Arrays, fed: FedTokens | None, is_first_worth: bool
    ) -> dict[str, int]:
        """By a graph, which is captured first where there is none. Unless `is_first_worth` that
        waits until such a step comes again: drafts and chunks have many layouts, some of which
        never do.
        """
        layout = StagingLayout.rounded(arrays)
        if not (is_first_worth or layout in self._graphs or layout in self._seen):
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen.add(layout)
            return self._issue(arrays, layout, fed)
        self._make_room(layout)
        at = self._staging.send(arrays, layout)
        self._feed(self._ints(at, layout, "tokens"), fed)
        if self._staging.moves != self._moves:
            self._graphs.clear()
            self._moves = self._staging.moves
        graph = self._graphs.pop(layout, None)
        if graph is None:
            inputs = self._inputs(at, layout)
            self.attention.join_pages()
            graph = self.driver.capture(lambda: self._decoder.issue(inputs, self.attention))
            if len(self._graphs) >= _MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
        self._graphs[layout] = graph  # the last one used is the last to go
        self.num_replays += 1
        self.attention.join_pages()  # a graph waits for nothing
        graph.replay()
        return at

    def _make_room(self, layout: StagingLayout) -> None:
        if self._decoder.make_room(layout.room_of["logit_tokens"] // _WORD):
            self._graphs.clear()

    def _inputs(self, at: dict[str, int], layout: StagingLayout) -> StepInputs:
        names = ("tokens", "positions", "logit_tokens")
        tokens, positions, wanted = (self._ints(at, layout, name) for name in names)
        return StepInputs(at, tokens, positions[: len(tokens)], wanted)

    def _ints(self, at: dict[str, int], layout: StagingLayout, name: str) -> torch.Tensor:
        return self._staging.read(at[name], layout.room_of[name] // _WORD, torch.int32)

    def _feed(self, tokens: torch.Tensor, fed: FedTokens | None) -> None:
        """Puts sampled tokens among those of the step. Of a row without one anything will do: it is
        nobody's.
        """
        if fed is None or not len(fed.places):
            return
        count, chosen = len(fed.places), fed.chosen
        at = self._feeding.send({"places": fed.places, "tokens": fed.tokens.astype(np.int64)})
        places, targets = (
            self._feeding.read(at[name], count, torch.int64) for name in ("places", "tokens")
        )
        self.driver.compute(
            lambda: tokens.index_copy_(0, targets, chosen.index_select(0, places).clamp_min_(0))
        )
