"""A scheduler driven by hand, with the fake model behind it or a real one: what the scheduler's
tests stand on.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lmprog.config import SchedulerConfig
from lmprog.radix.frames import WindowPool
from lmprog.runtime.scheduling.batch import build_batch
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings, Scoring
from lmprog.runtime.scheduling.logits_requests import Progress, collect_requests
from lmprog.runtime.scheduling.namespaces import Namespace
from lmprog.runtime.scheduling.plan import Plan
from lmprog.runtime.scheduling.recurrent import StatePool
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from lmprog.runtime.tier.page_store import PageCosts
from lmprog.simulation.fake_engine import FakeEngine, FakeStore, reference_logits
from lmprog.simulation.plain_sampler import PlainSampler
from lmprog.wire import SamplingParams

VOCAB = 97
GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Rig:
    """Steps a scheduler until it is idle, ending sequences as the delivery would."""

    config: SchedulerConfig
    context_len: int = 4096
    preempt_every: int = 0
    engine: Any = None
    sampler: Any = None
    states: StatePool | None = None
    num_handles: int = 0
    """Pages of a second tier on the fake model."""
    windows: WindowPool | None = None
    """Those of the engine, where it has frames."""
    contents: Any = None
    """What the second tier stores the pages of; None: the engine."""

    def __post_init__(self) -> None:
        num_states = 0 if self.states is None else self.states.num_slots
        self.engine = self.engine or FakeEngine(
            self.config.num_pages, self.config.page_size, VOCAB, num_states, self.windows
        )
        contents = self.contents or self.engine
        self.store = FakeStore(contents, self.num_handles, random.Random(1), 0.0)
        self.store.costs = PageCosts(0.0, 0.0)
        store = self.store if self.num_handles else None
        self.scheduler = Scheduler(
            self.config, self.context_len, store=store, states=self.states, windows=self.windows
        )
        self.sampler = self.sampler or PlainSampler()
        self.plans: list[Plan] = []

    def gen(
        self,
        prompt: Iterable[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        priority: int = 0,
        client: str = "",
        **sequence: Namespace,
    ) -> Sequence:
        self.scheduler.check_fits(len(prompt), max_tokens)
        call = SequenceGroup(priority, prompt_len=len(prompt), client=client)
        settings = GenerationSettings(sampling, max_tokens, (), len(prompt))
        made = Sequence(
            call, array("i", prompt), Generation(settings, sampling.seed or 0), **sequence
        )
        call.sequences.append(made)
        self.scheduler.submit(call)
        return made

    def score(self, tokens: Sequence[int], first: int, finals: tuple[int, ...]) -> Sequence:
        call = SequenceGroup(prompt_len=len(tokens))
        made = Sequence(call, array("i", tokens), Scoring(first, finals))
        call.sequences.append(made)
        self.scheduler.submit(call)
        return made

    def step(self) -> list[Progress]:
        scheduler = self.scheduler
        if self.preempt_every and scheduler.step % self.preempt_every == 0 and scheduler.running:
            scheduler.preempt(scheduler.running[-1])
        plan = scheduler.plan()
        self.plans.append(plan)
        if not plan.rows:
            return []
        requests = collect_requests(plan)
        logits = self.engine.forward(build_batch(plan, self.config.page_size, True))
        progress = scheduler.commit(
            plan, requests, self.sampler.sample(logits, requests.samples, requests.scores)
        )
        for one in progress:
            if one.ended:
                node = scheduler.end(one.sequence)
                if node is not None:
                    scheduler.unpin(node)
        scheduler.check()
        return progress

    def run(self, most: int = 10_000) -> None:
        for _ in range(most):
            if self.scheduler.idle:
                return
            self.step()
        raise AssertionError(f"not idle after {most} steps")


def expected(prompt: Iterable[int], count: int, adapter: int = 0) -> list[int]:
    """Greedy tokens of the fake model, computed without pages."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(reference_logits(tokens, VOCAB, adapter).argmax()))
    return tokens[len(prompt) :]
