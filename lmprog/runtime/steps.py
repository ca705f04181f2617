"""How steps are computed: one after the other, and what failed ones mean.

Knows the order of things. `steps_ahead` has those that are begun while another one is computed.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from lmprog.errors import ModelError, Overloaded
from lmprog.runtime.scheduling.batch import Batch, PagesFull, build_batch
from lmprog.runtime.scheduling.logits_requests import Progress, collect_requests
from lmprog.runtime.scheduling.plan import Plan, Row
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest, StepResults
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.wire import SamplingParams

log = logging.getLogger("lmprog")

FAILED = "a step failed; its calls are ended"
MAX_FAILED_STEPS = 5
"""After so many in a row, without a good one between them, one is tried that no request has asked
for. If that fails too, it is no request's fault.
"""
TRIED = (SampleRequest(0, SamplingParams(temperature=0.0), seed=0, step=0),)

Logits = TypeVar("Logits")
LogitsOut = TypeVar("LogitsOut", covariant=True)
LogitsIn = TypeVar("LogitsIn", contravariant=True)


class StepEngine(Protocol[LogitsOut]):
    """Runs one batch. Its logits are in the batch's order, in the form that its sampler reads."""

    def forward(self, batch: Batch) -> LogitsOut: ...


class StepSampler(Protocol[LogitsIn]):
    """Samples tokens and scores given ones."""

    def sample(
        self, logits: LogitsIn, picks: tuple[SampleRequest, ...], scores: tuple[ScoreRequest, ...]
    ) -> StepResults: ...


class AwaitedResults(Protocol):
    """What is being sampled."""

    def wait(self) -> StepResults:
        """Raises what went wrong in the step."""
        ...


@runtime_checkable
class AheadEngine(Protocol):
    """Begins batches, in order."""

    def forward(self, batch: Batch) -> Any: ...

    def forward_after(self, batch: Batch, before: Any, picks: Sequence[int]) -> Any:
        """As `forward`. The first token of row r is what `before`, which the sampler gave last,
        chooses for its pick number `picks[r]`; that of the batch where it is negative.
        """
        ...


@runtime_checkable
class AheadSampler(Protocol):
    """Begins to sample from logits that are still being computed."""

    def begin(
        self, logits: Any, picks: tuple[SampleRequest, ...], scores: tuple[ScoreRequest, ...]
    ) -> AwaitedResults: ...


@runtime_checkable
class LosableEngine(Protocol):
    """Computes on what can break for good, as the context of a GPU does."""

    def is_lost(self, error: Exception) -> bool:
        """Whether no step will be right any more, after one that ended with `error`."""
        ...


class EngineLost(Exception):
    """The engine computes nothing right any more: only another process can go on. Calls get no
    final reply of it; their clients find that the runtime is gone, and a fleet moves its programs.
    """


class Steps(Protocol):
    """The steps of one runtime. `turn` raises EngineLost, and nothing else for what an engine
    does.
    """

    @property
    def is_busy(self) -> bool:
        """The next turn goes on at once with what the last one did."""
        ...

    def turn(self) -> list[Progress]:
        """What a step brought, if one has been computed."""
        ...


BatchMaker = Callable[[Plan], Batch]
"""`build_batch` with what a runtime's batches have in common."""


class PlainSteps:
    """A turn is a step."""

    def __init__(
        self,
        scheduler: Scheduler,
        engine: StepEngine[Any],
        sampler: StepSampler[Any],
        batches: BatchMaker,
    ) -> None:
        self._scheduler = scheduler
        self.batches = batches
        self._engine = engine
        self._sampler = sampler
        self._failures = StepFailures(scheduler, engine, self._try)
        self.is_busy = False

    def turn(self) -> list[Progress]:
        plan = self._scheduler.plan()  # who runs how many tokens; their slots are held
        self.is_busy = bool(plan.rows)
        if not plan.rows:
            return []
        try:
            logits = forward_known(self._scheduler, self._engine, self.batches(plan))
            requests = collect_requests(plan)
            results = self._sampler.sample(logits, requests.samples, requests.scores)
        except PagesFull as error:
            return step_without_memory(self._scheduler, plan, error)
        except Exception as error:  # one step may fail; the runtime goes on
            log.exception(FAILED)
            return self._failures.take(plan, error)
        if self._failures.in_a_row:
            self._failures.in_a_row = 0
        return self._scheduler.commit(plan, requests, results)

    def _try(self, batch: Batch) -> None:
        """A step outside of the schedule."""
        self._sampler.sample(self._engine.forward(batch), TRIED, ())


def forward_known(scheduler: Scheduler, engine: StepEngine[Any], batch: Batch) -> Any:
    """A batch whose tokens are known. Where its pages have no memory, others that nobody uses give
    theirs up, more and more of them. Raises PagesFull where there are none.
    """
    num_evicted = 0
    while True:
        try:
            return engine.forward(batch)
        except PagesFull as error:
            free = scheduler.reclaim(num_evicted)
            if free is None:
                raise
            error.give_back(free)
        num_evicted = max(1, 2 * num_evicted)


def step_without_memory(scheduler: Scheduler, plan: Plan, error: PagesFull) -> list[Progress]:
    """One call fails; the others of the step are computed again."""
    log.warning("a step finds no memory for its pages, and one call is ended: %s", error)
    said = "the memory for keys and values is taken by others; try again later."
    return scheduler.fail_newest(plan, Overloaded(said, retry_after=1.0))


class StepFailures:
    """What failed steps of a runtime mean: the end of their calls, or of the runtime."""

    def __init__(
        self, scheduler: Scheduler, engine: StepEngine[Any], try_step: Callable[[Batch], None]
    ) -> None:
        """`try_step` computes a batch of one row, and samples as `TRIED` says."""
        self._scheduler = scheduler
        self._engine = engine
        self._try_step = try_step
        self.in_a_row = 0
        """Until a step is good."""

    def take(self, plan: Plan, error: Exception) -> list[Progress]:
        """All calls of the plan's rows fail. Raises EngineLost where the next steps would fail,
        too.
        """
        self._scheduler.stats.failed_steps += 1
        self.in_a_row += 1
        said = f"{type(error).__name__}: {error}"
        if self._is_lost(error):
            raise EngineLost(f"the device has failed ({said})") from error
        if self.in_a_row >= MAX_FAILED_STEPS:
            self._try_without_requests(plan.rows[0], said)
            self.in_a_row = 0
        return self._scheduler.fail(plan, ModelError(f"the step failed: {said}"))

    def _is_lost(self, error: Exception) -> bool:
        return isinstance(self._engine, LosableEngine) and self._engine.is_lost(error)

    def _try_without_requests(self, row: Row, said: str) -> None:
        """Raises EngineLost unless a step succeeds that has nothing of any request, so that none
        can end the runtime, however often it is sent again. It writes where `row`, which failed,
        was to write, and reads no other page.
        """
        size = self._scheduler.config.page_size
        page, place = row.pages[row.start // size], row.start % size
        one = Row(row.sequence, array("i", [0]), place, place + 1, array("i", [page]), place)
        try:
            self._try_step(build_batch(Plan((one,)), size))
        except PagesFull:
            return  # others have the memory
        except Exception as error:
            times = f"{self.in_a_row} steps have failed one after the other"
            lost = f"{times}, the last with {said}, and one without any request, too: {error}"
            raise EngineLost(lost) from error
        log.warning("%d steps have failed, but one without any request succeeds", self.in_a_row)
