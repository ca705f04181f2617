"""The fake engine as a device computes: what is begun is done later, in order, when its results are
awaited, or any time before.

There is one place for logits and one for sampled tokens, as on a device, so whatever is begun in
the wrong order reads what it should not. A fault ends all that was begun. Knows batches and
requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest, StepResults
from lmprog.simulation.fake_engine import Floats
from lmprog.simulation.plain_sampler import PlainSampler


class FakeResults:
    """See `AwaitedResults`."""

    def __init__(self, device: FakeDevice, number: int) -> None:
        self._device = device
        self._number = number
        self.found: StepResults | None = None

    def wait(self) -> StepResults:
        self._device.run_upto(self._number)
        assert self.found is not None, "what was begun before it ended in a fault"
        return self.found


class FakeDevice:
    """See `AheadEngine` and `AheadSampler`. `dice` decide how far it is ahead of who waits."""

    def __init__(
        self, forward: Callable[[Batch], Floats], sampler: PlainSampler, dice: random.Random
    ) -> None:
        self._forward = forward
        self._dice = dice
        self._sampler = sampler
        self._logits = np.zeros((0, 0), np.float32)
        self._chosen: list[int] = []
        self._todo: list[Callable[[], None]] = []
        self._num_done = 0
        self._fault: Exception | None = None
        self.num_fed = 0
        """Tokens that went from one step to the next."""

    def forward(self, batch: Batch) -> None:
        self._todo.append(lambda: self._run(batch))

    def forward_after(self, batch: Batch, before: FakeResults, picks: Sequence[int]) -> None:
        def run() -> None:
            tokens = batch.tokens.copy()
            for start, pick in zip(batch.row_starts.tolist(), picks, strict=False):
                if pick >= 0:
                    tokens[start] = self._chosen[pick]
                    self.num_fed += 1
            self._run(replace(batch, tokens=tokens))

        self._todo.append(run)

    def sample(
        self, logits: None, picks: tuple[SampleRequest, ...], scores: tuple[ScoreRequest, ...]
    ) -> StepResults:
        return self.begin(logits, picks, scores).wait()

    def begin(
        self, logits: None, picks: tuple[SampleRequest, ...], scores: tuple[ScoreRequest, ...]
    ) -> FakeResults:
        results = FakeResults(self, self._num_done + len(self._todo) + 1)

        def run() -> None:
            found = self._sampler.sample(self._logits, picks, scores)
            self._chosen = [0 if one is None else one.token for one in found.samples]
            results.found = found

        self._todo.append(run)
        return results

    def run_upto(self, number: int) -> None:
        """Does so many pieces of work since the beginning, or all."""
        if self._dice.random() < 0.5:
            number = self._num_done + len(self._todo)
        while self._num_done < number and self._todo and self._fault is None:
            self._num_done += 1
            try:
                self._todo.pop(0)()
            except Exception as error:  # noqa: BLE001 - raised where somebody waits
                self._fault = error
        if self._fault is not None:
            fault, self._fault = self._fault, None
            self._num_done += len(self._todo)
            self._todo.clear()
            raise fault

    @property
    def has_untold_fault(self) -> bool:
        """Whether there was a fault that nobody has been told of yet."""
        return self._fault is not None

    def drain(self) -> None:
        """Does all; a fault is told to whoever waits next."""
        try:
            self.run_upto(self._num_done + len(self._todo))
        except Exception as error:  # noqa: BLE001 - raised where somebody waits
            self._fault = error

    def _run(self, batch: Batch) -> None:
        self._logits = self._forward(batch)
