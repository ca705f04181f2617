"""Who waits how long: the real scheduler in virtual time, `python -m benchmarks.queueing`.

    python -m benchmarks.queueing policies [--requests N]    policy x load x number of hot prefixes
    python -m benchmarks.queueing shares [--programs N]      a flood beside a small client

A step takes `FIXED` seconds and each of its tokens `PER_TOKEN` (`benchmarks.memory_pressure`).

policies: half of the requests are cold (1,088 tokens of their own), half are hot (one of so many
prefixes of 1,024 tokens, 64 of their own); all generate 16 tokens. They arrive at random, at so many
times the rate that the machine can compute. Seconds to the first token, p50 / p99.

shares: one client starts 1,000 programs at once, another sends a request each half second. Seconds
to the small one's first token, and what it costs the flood.
"""

from __future__ import annotations

import argparse
import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.memory_pressure import CONTEXT, FIXED, GREEDY, PAGE, PER_TOKEN
from benchmarks.own_loop import percentile
from lmprog.config import PolicyName, SchedulerConfig
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from lmprog.runtime.scheduling.logits_requests import collect_requests
from lmprog.runtime.scheduling.sampling_requests import SampleResult, StepResults
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup

NUM_PAGES = 4096
ANSWER = 16
PREFIX, OWN = 1024, 64
COLD_SECONDS = FIXED + PER_TOKEN * (PREFIX + OWN + ANSWER)
HOT_SECONDS = FIXED + PER_TOKEN * (OWN + ANSWER)
POLICIES: list[tuple[PolicyName, float]] = [
    *[("fcfs", 60.0), ("lpm", 4.0), ("lpm", 20.0), ("lpm", 60.0), ("lpm", 1e9), ("dfs", 60.0)]
]


@dataclass(eq=False)
class Request:
    """`answer` tokens behind a prompt; `kind` is how it is reported."""

    at: float
    kind: str
    prompt: list[int]
    answer: int = ANSWER
    client: str = ""
    first_token: float = 0.0
    ended: float = 0.0

    @property
    def waited(self) -> float:
        return self.first_token - self.at


@dataclass
class QueueRun:
    """Requests in the order of their arrival, under one configuration."""

    config: SchedulerConfig
    weights: dict[str, float] = field(default_factory=dict)
    now: float = 0.0

    def run(self, requests: list[Request]) -> float:
        """Answers all; the seconds that takes."""
        scheduler = Scheduler(self.config, CONTEXT, clock=lambda: self.now)
        todo, open_ones = list(reversed(requests)), dict[SequenceGroup, Request]()
        while todo or open_ones:
            if not open_ones:
                self.now = max(self.now, todo[-1].at)
            while todo and todo[-1].at <= self.now:
                request = todo.pop()
                open_ones[self._submit(scheduler, request)] = request
            self._step(scheduler, open_ones)
        return self.now

    def _submit(self, scheduler: Scheduler, request: Request) -> SequenceGroup:
        group = SequenceGroup(prompt_len=len(request.prompt))
        group.client = request.client
        settings = GenerationSettings(GREEDY, request.answer, (), len(request.prompt))
        group.sequences.append(Sequence(group, array("i", request.prompt), Generation(settings, 0)))
        scheduler.submit(group)
        return group

    def _step(self, scheduler: Scheduler, open_ones: dict[SequenceGroup, Request]) -> None:
        plan = scheduler.plan()
        self.now += FIXED + PER_TOKEN * plan.num_tokens if plan.rows else 0.001
        wanted = collect_requests(plan)
        results = StepResults((SampleResult(7, 0.0),) * len(wanted.samples), ())
        for one in scheduler.commit(plan, wanted, results):
            request = open_ones[one.sequence.group]
            request.first_token = request.first_token or self.now
            if one.ended:
                request.ended = self.now
                del open_ones[one.sequence.group]
                node = scheduler.end(one.sequence)
                if node is not None:
                    scheduler.unpin(node)


def mixed(count: int, load: float, num_hot: int, seed: int) -> list[Request]:
    """Half hot, half cold, at `load` times the rate that can be computed."""
    dice = random.Random(seed)
    prefixes = [_text(dice, PREFIX) for _ in range(num_hot)]
    rate, at, found = 2.0 * load / (COLD_SECONDS + HOT_SECONDS), 0.0, []
    for _ in range(count):
        at += dice.expovariate(rate)
        if dice.random() < 0.5:
            found.append(Request(at, "hot", dice.choice(prefixes) + _text(dice, OWN)))
        else:
            found.append(Request(at, "cold", _text(dice, PREFIX + OWN)))
    return found


def _text(dice: random.Random, count: int) -> list[int]:
    return dice.choices(range(32_000), k=count)


def policy_rows(count: int) -> Iterator[str]:
    """The table's rows: for each load and number of prefixes, all policies."""
    config = SchedulerConfig(
        page_size=PAGE, num_pages=NUM_PAGES, admission="unlimited", speculation="off"
    )
    for load in (0.7, 1.0, 1.5):
        for num_hot in (1, 8, 64):
            for policy, ageing in POLICIES:
                requests = mixed(count, load, num_hot, seed=1)
                shown = SchedulerConfig(
                    **{
                        **{name: getattr(config, name) for name in config.__dataclass_fields__},
                        "policy": policy,
                        "ageing": ageing,
                    }
                )
                seconds = QueueRun(shown).run(requests)
                cells = [
                    "{:.2f} / {:.2f}".format(
                        *(
                            percentile([r.waited for r in requests if r.kind == kind], part)
                            for part in (0.5, 0.99)
                        )
                    )
                    for kind in ("cold", "hot")
                ]
                name = policy if policy != "lpm" else f"lpm, ageing {ageing:g} s"
                yield f"| {load:g} | {num_hot} | {name} | {' | '.join(cells)} | {seconds:.1f} |"


def shares(num_programs: int) -> Iterator[str]:
    """The small client beside the flood, and the flood alone."""
    dice = random.Random(1)
    flood = [Request(0.0, "flood", _text(dice, 256), 32, "flood") for _ in range(num_programs)]
    small = [Request(0.5 * n, "small", _text(dice, 64), 8, "small") for n in range(1, 61)]
    config = SchedulerConfig(page_size=PAGE, num_pages=NUM_PAGES, speculation="off")
    for name, clients in (("shared fairly", True), ("as one client", False)):
        for request in [*flood, *small]:
            request.first_token = 0.0
            request.client = request.kind if clients else ""
        QueueRun(config).run(sorted([*flood, *small], key=lambda one: one.at))
        waits = [request.waited for request in small]
        beside = max(request.ended for request in flood)
        tokens = sum(len(r.prompt) + r.answer for r in flood if r.ended <= beside)
        QueueRun(config).run(flood)
        alone = max(request.ended for request in flood)
        during = [r for r in small if r.ended <= beside]
        others = sum(len(r.prompt) + r.answer for r in during)
        yield (
            f"{name}: the small one waits p50 {percentile(waits, 0.5):.2f} s, p99 "
            f"{percentile(waits, 0.99):.2f} s; the flood takes {beside:.1f} s, alone {alone:.1f} s; "
            f"{(tokens + others) / beside:,.0f} tokens/s in all, alone {tokens / alone:,.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("policies", "shares"))
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--programs", type=int, default=1000)
    asked = parser.parse_args()
    if asked.what == "policies":
        print("| load | hot prefixes | policy | cold | hot | all answered after |")
        print("|-:|-:|-|-:|-:|-:|")
    for line in policy_rows(asked.requests) if asked.what == "policies" else shares(asked.programs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
