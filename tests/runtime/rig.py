"""A scheduler driven by hand, with the fake model behind it or a real one: what the scheduler's tests stand on."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmprog.config import SchedulerConfig
from lmprog.runtime.batch import build_batch
from lmprog.runtime.generation import Generation, Scoring, Settings
from lmprog.runtime.masks import fill_masks
from lmprog.runtime.plan import Plan
from lmprog.runtime.realms import Realm
from lmprog.runtime.request import Call, Lane
from lmprog.runtime.scheduler import Progress, Scheduler
from lmprog.runtime.simulation.model import FakeEngine, reference_logits
from lmprog.runtime.simulation.sampler import PlainSampler
from lmprog.wire import Sampling

VOCAB = 97
GREEDY = Sampling(temperature=0.0)


@dataclass
class Rig:
    """Steps a scheduler until it is idle, ending lanes as the delivery would."""

    config: SchedulerConfig
    context_len: int = 4096
    preempt_every: int = 0
    engine: Any = None
    sampler: Any = None

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.config, self.context_len)
        self.engine = self.engine or FakeEngine(self.config.num_pages, self.config.page_size, VOCAB)
        self.sampler = self.sampler or PlainSampler()
        self.plans: list[Plan] = []

    def gen(self, prompt: Sequence[int], max_tokens: int, sampling: Sampling = GREEDY, **lane: Realm) -> Lane:
        self.scheduler.check_fits(len(prompt), max_tokens)
        call = Call(key=None, prompt_len=len(prompt))
        settings = Settings(sampling, max_tokens, (), len(prompt))
        made = Lane(call, array("i", prompt), Generation(settings, sampling.seed or 0), **lane)
        call.lanes.append(made)
        self.scheduler.submit(call)
        return made

    def score(self, tokens: Sequence[int], first: int, finals: tuple[int, ...]) -> Lane:
        call = Call(key=None, prompt_len=len(tokens))
        made = Lane(call, array("i", tokens), Scoring(first, finals))
        call.lanes.append(made)
        self.scheduler.submit(call)
        return made

    def step(self) -> list[Progress]:
        scheduler = self.scheduler
        if self.preempt_every and scheduler.step % self.preempt_every == 0 and scheduler.seated:
            scheduler.preempt(scheduler.seated[-1])
        plan = scheduler.plan()
        self.plans.append(plan)
        if not plan.rows:
            return []
        wanted = fill_masks(plan)
        logits = self.engine.forward(build_batch(plan, self.config.page_size))
        progress = scheduler.commit(plan, wanted, self.sampler.sample(logits, wanted.picks, wanted.scores))
        for one in progress:
            if one.ended:
                node = scheduler.end(one.lane)
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


def expected(prompt: Sequence[int], count: int) -> list[int]:
    """Greedy tokens of the fake model, computed without pages."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(reference_logits(tokens, VOCAB).argmax()))
    return tokens[len(prompt) :]
