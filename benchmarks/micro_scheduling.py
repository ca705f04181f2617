"""What a step costs outside the model: planning while many sequences wait, and planning a full
batch of decodes.

Sections of `benchmarks.micro`.
"""

from __future__ import annotations

import random
import statistics
import time
from array import array
from collections.abc import Callable, Iterator

from lmprog.config import PolicyName, SchedulerConfig
from lmprog.runtime.scheduling.batch import build_batch
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from lmprog.runtime.scheduling.logits_requests import collect_requests
from lmprog.runtime.scheduling.plan import Plan
from lmprog.runtime.scheduling.sampling_requests import SampleResult, StepResults
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from lmprog.wire import SamplingParams

WAITING = 1000
POLICIES: tuple[PolicyName, ...] = ("fcfs", "lpm", "dfs")


def _submit(scheduler: Scheduler, prompt: list[int]) -> None:
    call = SequenceGroup(prompt_len=len(prompt))
    settings = GenerationSettings(SamplingParams(temperature=0.0), 4000, (), len(prompt))
    call.sequences.append(Sequence(call, array("i", prompt), Generation(settings, 0)))
    scheduler.submit(call)


def _commit(scheduler: Scheduler, plan: Plan) -> None:
    requests = collect_requests(plan)
    scheduler.commit(
        plan, requests, StepResults((SampleResult(1, 0.0),) * len(requests.samples), ())
    )


def _median_ms(action: Callable[[], None], repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter_ns()
        action()
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times) / 1e6


def policy_costs(repetitions: int) -> Iterator[tuple[str, float]]:
    """Milliseconds by which a plan grows when 1,000 sequences wait and none can be admitted:
    (policy, ms).
    """
    dice = random.Random(1)
    prefixes = [[dice.randrange(32_000) for _ in range(600)] for _ in range(10)]
    for policy in POLICIES:
        costs = []
        for waiting in (0, WAITING):
            config = SchedulerConfig(num_pages=20_000, max_rows=8, policy=policy)
            scheduler = Scheduler(config, 8192)
            for _ in range(8):
                _submit(scheduler, [*dice.choice(prefixes), *dice.choices(range(32_000), k=50)])
            _commit(scheduler, scheduler.plan())
            for _ in range(waiting):
                _submit(scheduler, [*dice.choice(prefixes), *dice.choices(range(32_000), k=50)])
            costs.append(_median_ms(lambda: _commit(scheduler, scheduler.plan()), repetitions))  # noqa: B023
        yield policy, costs[1] - costs[0]


def decode_costs(repetitions: int) -> Iterator[tuple[str, float]]:
    """Milliseconds for plan, batch, masks and commit of a step that decodes so many sequences:
    (rows, ms).
    """
    for rows in (1, 16, 64, 256):
        scheduler = Scheduler(SchedulerConfig(num_pages=40_000), 8192)
        dice = random.Random(2)
        for _ in range(rows):
            _submit(scheduler, dice.choices(range(32_000), k=1000))
        while any(sequence.remaining > 1 for sequence in [*scheduler.running, *scheduler.waiting]):
            _commit(scheduler, scheduler.plan())

        def step() -> None:
            plan = scheduler.plan()  # noqa: B023
            build_batch(plan, 16)
            _commit(scheduler, plan)  # noqa: B023

        yield f"{rows} rows", _median_ms(step, repetitions)
