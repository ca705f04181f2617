"""What a step costs outside the model: planning while many lanes wait, and planning a full batch of decodes.

Sections of `benchmarks.micro`.
"""

from __future__ import annotations

import random
import statistics
import time
from array import array
from collections.abc import Callable, Iterator

from lmprog.config import PolicyName, SchedulerConfig
from lmprog.runtime.batch import build_batch
from lmprog.runtime.generation import Generation, Settings
from lmprog.runtime.masks import fill_masks
from lmprog.runtime.picks import Picked, Sampled
from lmprog.runtime.plan import Plan
from lmprog.runtime.request import Call, Lane
from lmprog.runtime.scheduler import Scheduler
from lmprog.wire import Sampling

WAITING = 1000
POLICIES: tuple[PolicyName, ...] = ("fcfs", "lpm", "dfs")


def _submit(scheduler: Scheduler, prompt: list[int]) -> None:
    call = Call(key=None, prompt_len=len(prompt))
    settings = Settings(Sampling(temperature=0.0), 4000, (), len(prompt))
    call.lanes.append(Lane(call, array("i", prompt), Generation(settings, 0)))
    scheduler.submit(call)


def _commit(scheduler: Scheduler, plan: Plan) -> None:
    wanted = fill_masks(plan)
    scheduler.commit(plan, wanted, Sampled((Picked(1, 0.0),) * len(wanted.picks), ()))


def _median_ms(action: Callable[[], None], repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter_ns()
        action()
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times) / 1e6


def policy_costs(repetitions: int) -> Iterator[tuple[str, float]]:
    """Milliseconds by which a plan grows when 1,000 lanes wait and none can be seated: (policy, ms)."""
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
    """Milliseconds for plan, batch, masks and commit of a step that decodes so many lanes: (rows, ms)."""
    for rows in (1, 16, 64, 256):
        scheduler = Scheduler(SchedulerConfig(num_pages=40_000), 8192)
        dice = random.Random(2)
        for _ in range(rows):
            _submit(scheduler, dice.choices(range(32_000), k=1000))
        while any(lane.remaining > 1 for lane in [*scheduler.seated, *scheduler.line]):
            _commit(scheduler, scheduler.plan())

        def step() -> None:
            plan = scheduler.plan()  # noqa: B023
            build_batch(plan, 16)
            _commit(scheduler, plan)  # noqa: B023

        yield f"{rows} rows", _median_ms(step, repetitions)
