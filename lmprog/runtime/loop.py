"""The loop: messages in, one forward pass, replies out.

It is given everything it needs, so the same loop runs the real engine behind ZeroMQ and the
simulation's fake model in virtual time. Knows the order of things and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from lmprog.runtime.programs.clients import Inbox
from lmprog.runtime.programs.interpreter import Interpreter
from lmprog.runtime.scheduling.batch import build_batch
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.steps import (
    AheadEngine,
    AheadSampler,
    BatchMaker,
    Logits,
    PlainSteps,
    StepEngine,
    Steps,
    StepSampler,
)
from lmprog.transport import RuntimeChannel

log = logging.getLogger("lmprog")

IDLE_WAIT = 0.05
"""Seconds to wait for messages when nothing runs; a signal to stop is noticed after it."""
RETURN_WAIT = 0.001
"""The same while a place in memory is kept for programs that pause, and others wait."""
THREAD_WAIT = 0.001
"""Seconds to wait while a thread compiles or tokenises, whose end sends no message."""
MAX_HANDLE_SECONDS = 0.005
"""Seconds of a step that handle messages; what is left over waits for the next step."""
MAX_INBOX_OPS = 8_192
"""With more ops waiting nothing is received: further frames wait in the channel."""
MAX_CHECKED_NODES = 32
MAX_CHECKED_PAGES = 2_048
"""With more nodes or pages only so many nodes are checked in an idle turn, each by itself: a check
takes some 7 us a node and 0.1 us a page, and the next request would wait for it.
"""
STOP_SECONDS = 3.0
"""Seconds that storing pages in the second tier may take at the end."""


class Loop:
    """One runtime's loop. `step` never raises for what a request does, and for what the engine does
    only `EngineLost`: then the process has to end.
    """

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
        self.inbox = Inbox()
        batches = partial(
            build_batch,
            page_size=scheduler.config.page_size,
            has_adapters=bool(interpreter.welcome.adapters),
        )
        self._steps = steps_of(scheduler, engine, sampler, batches)
        self._clock = clock
        self._checked_at = 0
        self._has_more = False
        """Whether there is something to do while there is nothing else."""

    def step(self) -> None:
        """One turn."""
        self._receive()
        began = self._handle_messages()
        progress = self._steps.turn()  # plan, forward pass, samples, commit
        self.channel.send(self.interpreter.deliver(progress, began))
        if self.scheduler.idle:
            self._check_invariants()
            self._has_more = False
            for rest in self.scheduler.hooks.idle:
                self._has_more |= bool(rest(self._clock()))

    def stop(self) -> None:
        """After the last step: what was computed goes to the second tier, if there is one."""
        tier = self.scheduler.tier
        if tier is not None:
            ends = self._clock() + STOP_SECONDS
            tier.close(lambda: self._clock() < ends)

    def _receive(self) -> None:
        """Takes in what has come; with nothing to do, waits for it."""
        if self.inbox.num_ops > MAX_INBOX_OPS:
            return
        idle, began = self.scheduler.idle, self._clock()
        self.inbox.add(self.channel.receive(self._wait(idle)))
        if idle:
            self.scheduler.stats.idle_seconds += self._clock() - began

    def _handle_messages(self) -> float:
        """Handles ops, fairly between clients, for a bounded time, and has branches carry them out
        for another. Returns the time at its end.
        """
        began = now = self._clock()
        while self.inbox.num_ops and now - began < MAX_HANDLE_SECONDS:
            waiting = self.inbox.next()
            assert waiting is not None, "as many as it counts"
            client, message = waiting
            self.interpreter.handle(client, message)
            before, now = now, self._clock()
            self.inbox.done(client, now - before)
        self.interpreter.go_on()
        return self._clock()

    def _check_invariants(self) -> None:
        """After each stretch of work: all at once, or a few nodes of a large tree in each turn.
        A runtime whose invariants are broken goes on.
        """
        stats, scheduler = self.scheduler.stats, self.scheduler
        if stats.steps == self._checked_at:
            return
        num_stored = 0 if scheduler.tier is None else scheduler.tier.capacity
        is_large = (
            scheduler.tree.num_nodes > MAX_CHECKED_NODES
            or scheduler.pages.num_pages + num_stored > MAX_CHECKED_PAGES
        )
        try:
            if not is_large:
                self._checked_at = stats.steps
                scheduler.check()
            elif scheduler.tree.check_more(MAX_CHECKED_NODES):
                self._checked_at = stats.steps
        except AssertionError:
            stats.invariant_failures += 1
            log.exception("a scheduler invariant is broken; please report this with the log")

    def _wait(self, idle: bool) -> float:
        """Seconds that `receive` may wait: none while there is anything to do."""
        if self.inbox.num_ops or self.interpreter.is_working:
            return 0.0
        if not idle:
            return 0.0 if self._steps.is_busy else RETURN_WAIT
        if self._has_more:
            return 0.0
        deadline = self.interpreter.next_deadline
        wait = THREAD_WAIT if self.interpreter.awaits_thread else IDLE_WAIT
        return wait if deadline is None else min(wait, max(0.0, deadline - self._clock()))


def steps_of(
    scheduler: Scheduler,
    engine: StepEngine[Logits],
    sampler: StepSampler[Logits],
    batches: BatchMaker,
) -> Steps:
    """One ahead where engine and sampler can."""
    if isinstance(engine, AheadEngine) and isinstance(sampler, AheadSampler):
        from lmprog.runtime.steps_ahead import StepsAhead

        return StepsAhead(scheduler, engine, sampler, batches)
    return PlainSteps(scheduler, engine, sampler, batches)
