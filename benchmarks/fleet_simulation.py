"""Many replicas in virtual time: what the fleet's own placement finds in their caches, and who
waits.

    python -m benchmarks.fleet simulation

Real are the decision (`lmprog.fleet.placement`) and what it remembers
(`lmprog.fleet.placement`). Simple is the rest: a replica computes one prompt after the other,
writes at a constant speed in each of its slots, and keeps the least recently used blocks. Sessions
come at random times; their prompts begin with one of many prefixes, some far more frequent than
others, and end with text of their own.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks import runner
from lmprog.fleet.placement import PrefixMemory, choose, mark_of

BLOCK = 64  # tokens
PREFILL = 20_000.0  # tokens a second
WRITING = 40.0  # tokens a second and slot
PREFIXES, SKEW = 4000, 1.1
TOLD_AFTER, TOLD_LATE = 0.05, 2.0
"""Seconds until gateways know what others have sent: a step of a replica, and far more."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many replicas there are, and how full they are kept: `busy` is a share of all slots."""

    busy: float = 0.8
    replicas: int = 64
    slots: int = 32
    cache: int = 3000  # blocks of each replica


@dataclass(frozen=True, slots=True)
class Sessions:
    """When they come, the keys of their prompts' blocks, and how many tokens they write."""

    arrivals: list[float]
    prompts: list[list[int]]
    written: list[int]


@dataclass(eq=False, slots=True)
class SimulatedReplica:
    load: int = 0
    running: int = 0
    free_at: float = 0.0
    """When the prompts before are computed."""
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    queue: deque[int] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one simulation. Times in seconds, of virtual time but for `decision_us`."""

    hit: float
    queue_p99: float
    first_p99: float
    decision_us: float


def sessions(fleet: Fleet, count: int, seed: int = 1) -> Sessions:
    """So many that `fleet.busy` of all slots are taken on average."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, PREFIXES + 1) ** SKEW
    shared = np.clip(rng.lognormal(np.log(2000), 0.8, PREFIXES), 256, 16_000).astype(int) // BLOCK
    chosen = rng.choice(PREFIXES, count, p=weights / weights.sum())
    own = -(-np.clip(rng.lognormal(np.log(250), 0.7, count), 32, 4000).astype(int) // BLOCK)
    turns = rng.geometric(0.4, count)
    written = np.clip(rng.lognormal(np.log(120), 0.6, count), 8, 1000).astype(int) * turns
    rate = fleet.busy * fleet.replicas * fleet.slots * WRITING / float(written.mean())
    prefixes = [
        list(range(first, first + int(length)))
        for first, length in zip(np.cumsum(shared) - shared, shared, strict=True)
    ]
    ends = np.cumsum(own) + int(shared.sum())
    prompts = [
        prefixes[family] + list(range(int(end - length), int(end)))
        for family, length, end in zip(chosen, own, ends, strict=True)
    ]
    arrivals = np.cumsum(rng.exponential(1.0 / rate, count))
    return Sessions(arrivals.tolist(), prompts, written.tolist())


class Placement:
    """The fleet's own: the longest prefix it remembers to have sent, below the bound of loads."""

    def __init__(self, fleet: Fleet) -> None:
        self._slots = fleet.slots
        self._numbers = list(range(fleet.replicas))
        self._marks = [mark_of(f"replica-{number}") for number in self._numbers]
        self._memory = PrefixMemory()
        for number in self._numbers:
            self._memory.add(number, fleet.cache)

    def __call__(self, prompt: Sequence[int], replicas: Sequence[SimulatedReplica]) -> int:
        matched = self._memory.matched(prompt, self._numbers)
        loads = [one.load for one in replicas]
        mark = mark_of(str(prompt[0]))
        index = choose(matched, loads, self._memory.held, self._slots, mark, self._marks)
        self.remember(index, prompt)
        return index

    def remember(self, index: int, prompt: Sequence[int]) -> None:
        """The replica was sent that prompt."""
        self._memory.remember(index, prompt)


class Gateways:
    """Several gateways that know the loads, and of prefixes what each has sent itself; what others
    have sent is known `delay` seconds later, or never (None).
    """

    def __init__(self, fleet: Fleet, count: int, told: Sessions, delay: float | None) -> None:
        self._placements = [Placement(fleet) for _ in range(count)]
        self._arrivals = iter(told.arrivals)
        self._delay = delay
        self._news: deque[tuple[float, Placement, int, Sequence[int]]] = deque()
        self._draw = random.Random(5)

    def __call__(self, prompt: Sequence[int], replicas: Sequence[SimulatedReplica]) -> int:
        now = next(self._arrivals)
        while self._news and self._news[0][0] <= now:
            _, who, index, keys = self._news.popleft()
            for one in self._placements:
                if one is not who:
                    one.remember(index, keys)
        chosen = self._draw.choice(self._placements)
        index = chosen(prompt, replicas)
        if self._delay is not None:
            self._news.append((now + self._delay, chosen, index, prompt))
        return index


class InTurns:
    """One replica after the other."""

    def __init__(self) -> None:
        self._number = -1

    def __call__(self, prompt: Sequence[int], replicas: Sequence[SimulatedReplica]) -> int:
        self._number += 1
        return self._number % len(replicas)


def least_loaded(prompt: Sequence[int], replicas: Sequence[SimulatedReplica]) -> int:
    """Whatever is cached where."""
    return min(range(len(replicas)), key=lambda index: replicas[index].load)


Policy = Callable[[Sequence[int], Sequence[SimulatedReplica]], int]


class _World:
    """Replicas in virtual time."""

    def __init__(self, fleet: Fleet, told: Sessions) -> None:
        self._fleet = fleet
        self._told = told
        self.replicas = [SimulatedReplica() for _ in range(fleet.replicas)]
        self._ends: list[tuple[float, int]] = []
        self.found = self.needed = 0  # blocks
        self.queued: list[float] = []
        self.first: list[float] = []

    def arrive(self, session: int, index: int) -> None:
        replica = self.replicas[index]
        replica.load += 1
        if replica.running < self._fleet.slots:
            self._begin(session, index, self._told.arrivals[session])
        else:
            replica.queue.append(session)

    def pass_until(self, now: float) -> None:
        """Ends what ends until then, and begins what waited for it."""
        while self._ends and self._ends[0][0] <= now:
            at, index = heapq.heappop(self._ends)
            replica = self.replicas[index]
            replica.running -= 1
            replica.load -= 1
            if replica.queue:
                self._begin(replica.queue.popleft(), index, at)

    def _begin(self, session: int, index: int, now: float) -> None:
        replica, prompt = self.replicas[index], self._told.prompts[session]
        blocks = replica.blocks
        hit = next((n for n, key in enumerate(prompt) if key not in blocks), len(prompt))
        for key in prompt:
            blocks[key] = None
            blocks.move_to_end(key)
        while len(blocks) > self._fleet.cache:
            blocks.popitem(last=False)
        replica.running += 1
        replica.free_at = max(now, replica.free_at) + (len(prompt) - hit) * BLOCK / PREFILL
        self.found += hit
        self.needed += len(prompt)
        arrival = self._told.arrivals[session]
        self.queued.append(now - arrival)
        self.first.append(replica.free_at - arrival)
        end = replica.free_at + self._told.written[session] / WRITING
        heapq.heappush(self._ends, (end, index))


def simulate(fleet: Fleet, told: Sessions, policy: Policy) -> Outcome:
    """All sessions, one after the other, each to the replica that `policy` names."""
    world = _World(fleet, told)
    spent = 0.0
    for session, arrival in enumerate(told.arrivals):
        world.pass_until(arrival)
        began = time.process_time()
        index = policy(told.prompts[session], world.replicas)
        spent += time.process_time() - began
        world.arrive(session, index)
    world.pass_until(float("inf"))
    return Outcome(
        world.found / world.needed,
        float(np.quantile(world.queued, 0.99)),
        float(np.quantile(world.first, 0.99)),
        1e6 * spent / len(told.arrivals),
    )


def main(count: int = 100_000) -> None:
    """Prints a table: the placement at three loads; with a fifth of the sessions beside two others,
    beside many gateways, and among 1,000 replicas.
    """
    columns = ("found", "queue p99 s", "first p99 s", "us")
    runner.head("replicas", "sessions", "busy", "placement", *columns, texts=4)
    for fleet in (Fleet(0.05), Fleet(0.8), Fleet(0.9)):
        _row(fleet, sessions(fleet, count), "the fleet's", Placement(fleet))
    few, fleet = count // 5, Fleet(0.8)
    told = sessions(fleet, few)
    policies: dict[str, Policy] = {
        "the fleet's": Placement(fleet),
        "by 8 gateways": Gateways(fleet, 8, told, TOLD_AFTER),
        "by 32 gateways": Gateways(fleet, 32, told, TOLD_AFTER),
        "by 32 gateways, told late": Gateways(fleet, 32, told, TOLD_LATE),
        "by 8 that tell nothing": Gateways(fleet, 8, told, None),
        "by 32 that tell nothing": Gateways(fleet, 32, told, None),
        "in turns": InTurns(),
        "least loaded": least_loaded,
    }
    for name, policy in policies.items():
        _row(fleet, told, name, policy)
    fleet = Fleet(0.8, replicas=1000)
    told = sessions(fleet, few)
    _row(fleet, told, "the fleet's", Placement(fleet))
    seconds = told.arrivals[-1]
    print(  # what gateways would carry, by what the simulation assumes
        f"{fleet.replicas} replicas: {few / seconds:,.0f} sessions a second, "
        f"{sum(told.written) / seconds:,.0f} tokens a second"
    )


def _row(fleet: Fleet, told: Sessions, name: str, policy: Policy) -> None:
    one = simulate(fleet, told, policy)
    times = (f"{one.queue_p99:.2f}", f"{one.first_p99:.2f}", f"{one.decision_us:.0f}")
    about = (fleet.replicas, f"{len(told.arrivals):,}", f"{fleet.busy:.0%}", name)
    runner.say(*about, f"{one.hit:.3f}", *times)
