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

import random
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from benchmarks import runner
from benchmarks.memory_pressure import CONFIG, CONTEXT, FIXED, PER_TOKEN
from benchmarks.virtual_steps import commit, submit
from lmprog.config import PolicyName, SchedulerConfig
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import SequenceGroup

FAIR = replace(CONFIG, num_pages=4096)
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

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + self.answer


@dataclass
class QueueRun:
    """Requests in the order of their arrival, under one configuration."""

    config: SchedulerConfig
    now: float = 0.0

    def run(self, requests: list[Request]) -> float:
        """Answers all; the seconds that takes."""
        scheduler = Scheduler(self.config, CONTEXT, clock=lambda: self.now)
        todo, open_ones = list(reversed(requests)), dict[SequenceGroup, Request]()
        while todo or open_ones:
            if not open_ones:
                self.now = max(self.now, todo[-1].at)
            while todo and todo[-1].at <= self.now:
                one = todo.pop()
                open_ones[submit(scheduler, one.prompt, one.answer, client=one.client)] = one
            self._step(scheduler, open_ones)
        return self.now

    def _step(self, scheduler: Scheduler, open_ones: dict[SequenceGroup, Request]) -> None:
        plan = scheduler.plan()
        self.now += FIXED + PER_TOKEN * plan.num_tokens if plan.rows else 0.001
        for one in commit(scheduler, plan):
            request = open_ones[one.sequence.group]
            request.first_token = request.first_token or self.now
            if one.ended:
                request.ended = self.now
                del open_ones[one.sequence.group]
                node = scheduler.end(one.sequence)
                if node is not None:
                    scheduler.unpin(node)


def _text(dice: random.Random, count: int) -> list[int]:
    return dice.choices(range(32_000), k=count)


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


def policies(count: int) -> None:
    """For each load and number of prefixes, all policies."""
    print("| load | hot prefixes | policy | cold | hot | all answered after |\n|-:|-:|-|-:|-:|-:|")
    for load, num_hot, (policy, ageing) in product((0.7, 1.0, 1.5), (1, 8, 64), POLICIES):
        requests = mixed(count, load, num_hot, seed=1)
        config = replace(FAIR, admission="unlimited", policy=policy, ageing=ageing)
        seconds, cells = QueueRun(config).run(requests), []
        for kind in ("cold", "hot"):
            waits = [one.waited for one in requests if one.kind == kind]
            p50, p99 = (runner.percentile(waits, part) for part in (0.5, 0.99))
            cells.append(f"{p50:.2f} / {p99:.2f}")
        name = policy if policy != "lpm" else f"lpm, ageing {ageing:g} s"
        runner.say(f"{load:g}", num_hot, name, *cells, f"{seconds:.1f}")


def shares(num_programs: int) -> None:
    """The small client beside the flood, and the flood alone."""
    dice = random.Random(1)
    flood = [Request(0.0, "flood", _text(dice, 256), 32) for _ in range(num_programs)]
    small = [Request(0.5 * n, "small", _text(dice, 64), 8) for n in range(1, 61)]
    for name, is_fair in (("shared fairly", True), ("as one client", False)):
        for request in [*flood, *small]:
            request.first_token = 0.0
            request.client = request.kind if is_fair else ""
        QueueRun(FAIR).run(sorted([*flood, *small], key=lambda one: one.at))
        p50, p99 = (runner.percentile([one.waited for one in small], part) for part in (0.5, 0.99))
        beside = max(one.ended for one in flood)
        tokens = sum(one.num_tokens for one in flood)
        others = sum(one.num_tokens for one in small if one.ended <= beside)
        QueueRun(FAIR).run(flood)
        alone = max(one.ended for one in flood)
        print(
            f"{name}: the small one waits p50 {p50:.2f} s, p99 {p99:.2f} s; the flood takes "
            f"{beside:.1f} s, alone {alone:.1f} s; {(tokens + others) / beside:,.0f} tokens/s in "
            f"all, alone {tokens / alone:,.0f}",
            flush=True,
        )


@runner.command
def main(what: Literal["policies", "shares"], *, requests: int = 600, programs: int = 1000) -> None:
    policies(requests) if what == "policies" else shares(programs)
