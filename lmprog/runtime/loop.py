"""The loop: messages in, one forward pass, replies out.

Everything it needs is given to it, so the same loop runs the real engine behind ZeroMQ and the
simulation's fake model in virtual time. It knows the order of things and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from lmprog.errors import ModelError
from lmprog.runtime.engine.batch import Batch, build_batch
from lmprog.runtime.programs.interpreter import Interpreter
from lmprog.runtime.scheduling.logits_requests import collect_requests
from lmprog.runtime.scheduling.plan import Plan
from lmprog.runtime.scheduling.progress import Progress
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest, StepResults
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.transport import ClientId, Received, RuntimeChannel

log = logging.getLogger("lmprog")

IDLE_WAIT = 0.2
"""Seconds to wait for messages when nothing runs."""
COMPILE_WAIT = 0.001
"""The same while a branch waits for its constraint, of which no message tells."""

MOST_NODES_LOOKED_AT = 5_000
"""Trees larger than this are not walked in a pause: the next request would have to wait for it."""

Logits = TypeVar("Logits")
Made = TypeVar("Made", covariant=True)
Read = TypeVar("Read", contravariant=True)


class StepEngine(Protocol[Made]):
    """Runs one batch and gives the wanted logits, in the batch's order, in whatever form its
    sampler reads.
    """

    def forward(self, batch: Batch) -> Made: ...


class StepSampler(Protocol[Read]):
    """Picks tokens and scores given ones."""

    def sample(
        self, logits: Read, picks: tuple[SampleRequest, ...], scores: tuple[ScoreRequest, ...]
    ) -> StepResults: ...


class Loop:
    """One runtime's loop. `step` never raises for what a request or the engine does."""

    def __init__(
        self,
        channel: RuntimeChannel,
        interpreter: Interpreter,
        scheduler: Scheduler,
        engine: StepEngine[Logits],
        sampler: StepSampler[Logits],
        clock: Callable[[], float],
    ) -> None:
        self.channel = channel
        self.interpreter = interpreter
        self.scheduler = scheduler
        self._forward: Callable[[Plan], list[Progress]] = lambda plan: self._compute(
            plan, engine, sampler
        )
        self._clock = clock
        self._looked_at = 0

    def step(self) -> None:
        """One turn."""
        for client, message in self._receive():
            self.interpreter.handle(client, message)
        began = self._clock()
        plan = self.scheduler.plan()  # who runs how many tokens; their slots are held
        progress = self._forward(plan) if plan.rows else []
        self.channel.send(self.interpreter.deliver(progress, began))
        if self.scheduler.idle:
            self._look_after()

    def _receive(self) -> Sequence[tuple[ClientId, Received]]:
        """What has come; with nothing to do, waits for it."""
        idle, began = self.scheduler.idle, self._clock()
        messages = self.channel.receive(self._wait())
        if idle:
            self.scheduler.stats.idle_seconds += self._clock() - began
        return messages

    def _look_after(self) -> None:
        """Once after each stretch of work: do the books of tree, pages and sequences balance? A server
        goes on if not.
        """
        stats = self.scheduler.stats
        if stats.steps == self._looked_at or self.scheduler.tree.num_nodes > MOST_NODES_LOOKED_AT:
            return
        self._looked_at = stats.steps
        try:
            self.scheduler.check()
        except AssertionError:
            stats.invariant_failures += 1
            log.exception(
                "an invariant of the scheduler does not hold; please report this with the log"
            )

    def _compute(
        self, plan: Plan, engine: StepEngine[Logits], sampler: StepSampler[Logits]
    ) -> list[Progress]:
        try:
            logits = engine.forward(build_batch(plan, self.scheduler.config.page_size))
            requests = collect_requests(plan)  # processor work that hides behind a launch on a GPU
            sampled = sampler.sample(logits, requests.samples, requests.scores)
        except Exception as error:  # the engine's border: one step may fail, the runtime goes on
            log.exception("a step failed; its calls are ended")
            self.scheduler.stats.failed_steps += 1
            return self.scheduler.fail(
                plan, ModelError(f"the step failed: {type(error).__name__}: {error}")
            )
        return self.scheduler.commit(plan, requests, sampled)

    def _wait(self) -> float:
        """Seconds that `receive` may wait: none while anything runs."""
        if not self.scheduler.idle:
            return 0.0
        deadline = self.interpreter.next_deadline
        wait = COMPILE_WAIT if self.interpreter.is_compiling else IDLE_WAIT
        return wait if deadline is None else min(wait, max(0.0, deadline - self._clock()))
