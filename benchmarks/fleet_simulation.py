"""Many replicas in virtual time: what placement is worth, and what it costs.

    python -m benchmarks.fleet_simulation placement    seven workloads, ours beside two plain ways
    python -m benchmarks.fleet_simulation directory    what a directory of what is where would gain
    python -m benchmarks.fleet_simulation simulation   64 and 1,000 replicas, 100,000 sessions

Real are the decision (`lmprog.fleet.placement`), what it remembers, and what a replica measures of
its own steps (`StepCosts`). Simple is the rest: a step takes a fixed time, one for each row that
writes and one for each token of a prompt; a replica begins programs in order as long as it has
slots, computes their prompts in turn, a chunk in each step, and keeps the least recently used
blocks. `CPU` is about what the native engine was measured to take (`dummy:512x8`, one thread, by
its processor time); `GPU` is made up, for programs that hardly lengthen the steps of others.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from benchmarks import runner
from lmprog.fleet.placement import BLOCK_TOKENS, PrefixMemory, SpeedMeter, best, mark_of
from lmprog.runtime.scheduling.step_costs import StepCosts

CHUNK = 512
"""Tokens of prompts in a step."""
TOLD_AFTER, TOLD_LATE = 0.05, 2.0
"""Seconds until gateways know what others have sent: a step of a replica, and far more."""
PREFIXES, SKEW = 4000, 1.1
COMPUTED = 0.25
PAUSE = (5.0, 15.0)
"""Seconds between two turns."""
ANSWER, OWN = 10**9, 10**15
"""The keys of blocks that programs write begin here, and those of what is added in a later turn."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """In seconds."""

    fixed: float
    row: float
    token: float

    def times(self, factor: float) -> StepTimes:
        return StepTimes(factor * self.fixed, factor * self.row, factor * self.token)


CPU = StepTimes(0.0065, 0.0006, 0.0003)
GPU = StepTimes(0.0234, 0.00005, 0.00005)


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """How many replicas there are, and how full they are kept: `busy` is a share of all slots."""

    busy: float = 0.8
    replicas: int = 64
    slots: int = 32
    cache: int = 12_000  # blocks of each replica
    times: StepTimes = GPU
    slow: float = 1.0
    """The first replica takes so many times as long for its steps."""
    cold: float = 0.0
    """The first replica joins after that part of the programs has come."""


@dataclass(eq=False, slots=True)
class Request:
    """One program, or a turn of one."""

    at: float
    prompt: list[int]
    """The keys of its blocks."""
    written: int  # tokens
    turns: int = 0
    """So many follow."""
    number: int = 0
    left: int = 0
    """Tokens of the prompt that are to be computed."""

    @property
    def answer(self) -> list[int]:
        first = ANSWER + 100_000 * self.number
        return list(range(first, first + self.written // BLOCK_TOKENS))


@dataclass(eq=False, slots=True)
class SimulatedReplica:
    number: int
    mark: int
    slots: int
    times: StepTimes
    load: int = 0
    written: float = 240.0
    """As replicas would tell it."""
    alike: dict[int, int] = field(default_factory=dict)
    meter: SpeedMeter = field(default_factory=SpeedMeter)
    costs: StepCosts = field(default_factory=StepCosts)
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    waiting: deque[Request] = field(default_factory=deque)
    computing: deque[Request] = field(default_factory=deque)
    rows: list[tuple[int, int, Request]] = field(default_factory=list)
    """Those that write, by the step in which they end."""
    steps: int = 0
    now: float = 0.0
    """When the steps under way began."""
    under_way: tuple[int, float, int] = (0, 0.0, 0)
    """So many steps, the seconds of each, and tokens of prompts in it."""
    changes: int = 0


Policy = Callable[[Request, Sequence[SimulatedReplica]], int]
"""The index of the replica for a program, among those that are up."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one simulation. Times in seconds, of virtual time but for `decision_us`."""

    hit: float
    queue_p99: float
    first_p99: float
    mean: float
    p99: float
    decision_us: float


class World:
    """Replicas in virtual time."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        self.replicas = [
            SimulatedReplica(number, mark_of(f"replica-{number}"), fleet.slots, fleet.times)
            for number in range(fleet.replicas)
        ]
        self.replicas[0].times = fleet.times.times(fleet.slow)
        self._cache = fleet.cache
        self._ends: list[tuple[float, int, int]] = []
        """When steps under way end, the replica, and which of its changes had begun them."""
        self._told = 0.0
        self.found = self.needed = 0  # blocks
        self.queued: list[float] = []
        self.first: list[float] = []
        self.whole: list[float] = []

    def arrive(self, request: Request, replica: SimulatedReplica) -> None:
        replica.load += 1
        replica.alike[request.prompt[0]] = replica.alike.get(request.prompt[0], 0) + 1
        replica.waiting.append(request)
        steps, each, chunk = replica.under_way
        if not steps:
            replica.now = request.at
            self._begin(replica)
        elif steps > 1:  # it is let in after the step under way
            begun = int((request.at - replica.now) / each) + 1
            self._run(replica, min(steps, begun), each, chunk)

    def tell(self, now: float) -> None:
        """Replicas tell their figures every half second."""
        if now >= self._told + 0.5:
            self._told = now
            for one in self.replicas:
                fixed, token = one.costs.fixed, one.costs.per_token
                one.meter.take({"step_seconds": fixed, "token_seconds": token})

    @property
    def next_end(self) -> float:
        """When something happens next; infinite where nothing is under way."""
        while self._ends and self.replicas[self._ends[0][1]].changes != self._ends[0][2]:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else float("inf")

    def pass_on(self) -> tuple[float, list[Request]]:
        """Lets the next steps end. When that was, and what has ended with them."""
        replica = self.replicas[heapq.heappop(self._ends)[1]]
        steps, each, chunk = replica.under_way
        for _ in range(min(steps, 20)):  # more say no more
            replica.costs.observe(len(replica.rows) + chunk, each, len(replica.rows))
        replica.now += steps * each
        replica.steps += steps
        ended = []
        while replica.rows and replica.rows[0][0] <= replica.steps:
            request = heapq.heappop(replica.rows)[2]
            self._leave(request, replica)
            ended.append(request)
        while chunk:
            request = replica.computing[0]
            part = min(chunk, request.left)
            request.left -= part
            chunk -= part
            if not request.left:
                replica.computing.popleft()
                self.first.append(replica.now - request.at)
                row = (replica.steps + request.written, request.number, request)
                heapq.heappush(replica.rows, row)
        ended_at = replica.now
        self._begin(replica)
        return ended_at, ended

    def _leave(self, request: Request, replica: SimulatedReplica) -> None:
        replica.load -= 1
        replica.alike[request.prompt[0]] -= 1
        self._use(replica, request.prompt + request.answer)
        self.whole.append(replica.now - request.at)

    def _begin(self, replica: SimulatedReplica) -> None:
        while replica.waiting and len(replica.rows) + len(replica.computing) < replica.slots:
            request = replica.waiting.popleft()
            prompt, blocks = request.prompt, replica.blocks
            hit = next((n for n, key in enumerate(prompt) if key not in blocks), len(prompt))
            self._use(replica, prompt)
            self.found += hit
            self.needed += len(prompt)
            self.queued.append(replica.now - request.at)
            request.left = max(1, (len(prompt) - hit) * BLOCK_TOKENS)
            replica.computing.append(request)
        chunk = min(CHUNK, sum(one.left for one in replica.computing))
        each = replica.times.fixed + replica.times.row * len(replica.rows)
        if chunk:
            self._run(replica, 1, each + replica.times.token * chunk, chunk)
        else:
            self._run(replica, replica.rows[0][0] - replica.steps if replica.rows else 0, each, 0)

    def _run(self, replica: SimulatedReplica, steps: int, each: float, chunk: int) -> None:
        replica.under_way = steps, each, chunk
        replica.changes += 1
        if steps:
            heapq.heappush(
                self._ends, (replica.now + steps * each, replica.number, replica.changes)
            )

    def _use(self, replica: SimulatedReplica, keys: Sequence[int]) -> None:
        blocks = replica.blocks
        for key in keys:
            blocks[key] = None
            blocks.move_to_end(key)
        while len(blocks) > self._cache:
            blocks.popitem(last=False)


def simulate(fleet: SimulatedFleet, told: Sequence[Request], policy: Policy) -> Outcome:
    """All programs, each to the replica that `policy` names. Further turns follow after a pause."""
    world, spent, rng, numbers = World(fleet), 0.0, random.Random(3), count()
    joins = told[int(fleet.cold * len(told))].at if fleet.cold else 0.0
    coming = [
        (one.at, number, Request(one.at, one.prompt, one.written, one.turns, number))
        for one, number in zip(told, numbers, strict=False)
    ]
    num_asked = 0
    while coming or world.next_end < float("inf"):
        if not coming or world.next_end <= coming[0][0]:
            now, ended = world.pass_on()
            for one in ended:
                if one.turns:
                    following = _next_turn(one, now + rng.uniform(*PAUSE), next(numbers))
                    heapq.heappush(coming, (following.at, following.number, following))
            continue
        request = heapq.heappop(coming)[2]
        world.tell(request.at)
        up = world.replicas if request.at >= joins else world.replicas[1:]
        began = time.process_time()
        index = policy(request, up)
        spent += time.process_time() - began
        num_asked += 1
        world.arrive(request, up[index])
    return Outcome(
        world.found / world.needed,
        float(np.quantile(world.queued, 0.99)),
        float(np.quantile(world.first, 0.99)),
        float(np.mean(world.whole)),
        float(np.quantile(world.whole, 0.99)),
        1e6 * spent / num_asked,
    )


def _next_turn(ended: Request, at: float, number: int) -> Request:
    own = OWN + 10 * number
    prompt = [*ended.prompt, *ended.answer, *range(own, own + 4)]
    return Request(at, prompt, ended.written, ended.turns - 1, number)


# -- what decides


class Placement:
    """The fleet's own."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        self.memory = PrefixMemory()
        for number in range(fleet.replicas):
            self.memory.add(number, fleet.cache)

    def __call__(self, request: Request, replicas: Sequence[SimulatedReplica]) -> int:
        prompt = request.prompt
        index = self.chosen(prompt, replicas)
        self.memory.remember(replicas[index].number, prompt)
        return index

    def chosen(self, prompt: Sequence[int], replicas: Sequence[SimulatedReplica]) -> int:
        return best(replicas, prompt, mark_of(str(prompt[0])), self.memory)


class Directory(PrefixMemory):
    """Knows at once what each replica has, and has evicted."""

    def __init__(self, fleet: SimulatedFleet, replicas: Sequence[SimulatedReplica]) -> None:
        super().__init__()
        self._cache = fleet.cache
        self._known = {one.number: one.blocks for one in replicas}

    def matched(self, keys: Sequence[int], replicas: Sequence[int]) -> list[int]:
        known = [self._known[number] for number in replicas]
        return [
            next((n for n, key in enumerate(keys) if key not in one), len(keys)) for one in known
        ]

    def held(self, replica: int) -> float:
        return len(self._known[replica]) / self._cache


class ByDirectory(Placement):
    """The fleet's own, by what is where in place of what was sent there."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        super().__init__(fleet)
        self._fleet = fleet

    def chosen(self, prompt: Sequence[int], replicas: Sequence[SimulatedReplica]) -> int:
        known = Directory(self._fleet, replicas)
        return best(replicas, prompt, mark_of(str(prompt[0])), known)


class Affinity(Placement):
    """The longest prefix, whoever is there; of equally long ones the least loaded."""

    def chosen(self, prompt: Sequence[int], replicas: Sequence[SimulatedReplica]) -> int:
        matched = self.memory.matched(prompt, [one.number for one in replicas])
        return max(range(len(replicas)), key=lambda at: (matched[at], -replicas[at].load))


class Gateways:
    """Several gateways that know the loads, and of prefixes what each has sent itself; what others
    have sent is known `delay` seconds later, or never (None).
    """

    def __init__(self, fleet: SimulatedFleet, num: int, delay: float | None) -> None:
        self._placements = [Placement(fleet) for _ in range(num)]
        self._delay = delay
        self._news: deque[tuple[float, Placement, int, Sequence[int]]] = deque()
        self._draw = random.Random(5)

    def __call__(self, request: Request, replicas: Sequence[SimulatedReplica]) -> int:
        while self._news and self._news[0][0] <= request.at:
            _, who, number, keys = self._news.popleft()
            for one in self._placements:
                if one is not who:
                    one.memory.remember(number, keys)
        chosen = self._draw.choice(self._placements)
        index = chosen(request, replicas)
        if self._delay is not None:
            number = replicas[index].number
            self._news.append((request.at + self._delay, chosen, number, request.prompt))
        return index


class InTurns:
    """One replica after the other."""

    def __init__(self) -> None:
        self._number = -1

    def __call__(self, request: Request, replicas: Sequence[SimulatedReplica]) -> int:
        self._number += 1
        return self._number % len(replicas)


class LeastLoaded:
    """Whatever is cached where; of equally loaded ones any."""

    def __init__(self) -> None:
        self._draw = random.Random(5)

    def __call__(self, request: Request, replicas: Sequence[SimulatedReplica]) -> int:
        least = min(one.load for one in replicas)
        return self._draw.choice([at for at, one in enumerate(replicas) if one.load == least])


# -- what comes


def sessions(fleet: SimulatedFleet, num: int, seed: int = 1) -> list[Request]:
    """Sessions whose prompts begin with one of many prefixes, some far more frequent than others,
    and end with text of their own. So many that `fleet.busy` of all slots are taken on average
    where `COMPUTED` of all prompts has to be computed.
    """
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, PREFIXES + 1) ** SKEW
    shared = (
        np.clip(rng.lognormal(np.log(2000), 0.8, PREFIXES), 256, 16_000).astype(int) // BLOCK_TOKENS
    )
    chosen = rng.choice(PREFIXES, num, p=weights / weights.sum())
    own = -(-np.clip(rng.lognormal(np.log(250), 0.7, num), 32, 4000).astype(int) // BLOCK_TOKENS)
    turns = rng.geometric(0.4, num)
    written = np.clip(rng.lognormal(np.log(120), 0.6, num), 8, 1000).astype(int) * turns
    rows = fleet.busy * fleet.slots
    prompt = BLOCK_TOKENS * float((shared[chosen] + own).mean())
    beside = fleet.times.row + fleet.times.token * COMPUTED * prompt / float(written.mean())
    step = fleet.times.fixed + beside * rows
    rate = fleet.replicas * rows / step / float(written.mean())
    prefixes = [
        list(range(first, first + int(length)))
        for first, length in zip(np.cumsum(shared) - shared, shared, strict=True)
    ]
    ends = np.cumsum(own) + int(shared.sum())
    return [
        Request(float(at), prefixes[family] + list(range(int(end - length), int(end))), int(tokens))
        for at, family, end, length, tokens in zip(
            np.cumsum(rng.exponential(1.0 / rate, num)), chosen, ends, own, written, strict=True
        )
    ]


@dataclass(frozen=True, slots=True)
class Workload:
    """Programs whose prompts begin with one of some prefixes. Lengths are logarithmic normal."""

    weights: Sequence[float]
    """Of the prefixes."""
    shared: int = 960  # tokens of a prefix, in the median
    own: int = 100  # tokens of a prompt besides
    burst: int = 1
    """So many come at a time."""
    turns: int = 1
    rate: float = 1.0
    """Tokens that are asked for, beside other workloads."""
    slow: float = 1.0
    cold: float = 0.0


EVEN = [1.0] * 64
WORKLOADS: dict[str, Workload] = {
    "uniform": Workload(EVEN),
    "bursts": Workload(EVEN, burst=48),
    "hot prefix": Workload([156.0] + [1.0] * 39),
    "skewed": Workload([1.0 / (rank + 1) ** SKEW for rank in range(200)]),
    "slow member": Workload(EVEN, rate=0.9, slow=3.0),
    "cold member": Workload(EVEN, rate=0.9, cold=1 / 3),
    "agents": Workload([1.0] * 16, shared=640, own=320, turns=6, rate=0.9),
}
"""Four of five programs of "hot prefix" have the same one."""


def programs(work: Workload, num: int, a_second: float, seed: int = 1) -> list[Request]:
    """So many programs, of several turns each where they have such."""
    rng, keys = random.Random(seed), count()

    def length(median: float, spread: float) -> int:
        return max(1, round(median * rng.lognormvariate(0.0, spread)))

    def fresh(blocks: int) -> list[int]:
        return [next(keys) for _ in range(blocks)]

    prefixes = [fresh(length(work.shared / BLOCK_TOKENS, 0.5)) for _ in work.weights]
    at, found = 0.0, []
    for number in range(num // work.turns):
        if not number % work.burst:
            at += rng.expovariate(a_second * work.rate / work.burst / work.turns)
        (prefix,) = rng.choices(prefixes, work.weights)
        prompt = prefix + fresh(length(work.own / BLOCK_TOKENS, 0.5))
        found.append(Request(at, prompt, min(400, 8 + length(92, 0.6)), work.turns - 1))
    return found


SMALL = SimulatedFleet(replicas=8, slots=64, cache=2400, times=CPU)
LOADS = (10.0, 20.0, 36.0)
"""Programs a second: eight such replicas write some 45 where nothing needs to be computed."""


WAYS: dict[str, Callable[[SimulatedFleet], Policy]] = {
    "ours": Placement,
    "affinity only": Affinity,
    "least load only": lambda fleet: LeastLoaded(),
}


def placement(num: int = 2000) -> int:
    """Prints the seconds of a program by each way, for seven workloads at three loads: mean, 99 of
    100. Ends with exit code 1 where ours is above 1.1 times the better of the other two.
    """
    columns = tuple(f"{name}: mean, p99, found" for name in WAYS)
    runner.head("programs a second", "workload", *columns, "beside the better", texts=2)
    worst = 0.0
    for a_second, (name, work) in ((load, one) for load in LOADS for one in WORKLOADS.items()):
        found = compared(work, num, a_second, WAYS)
        ratios = beside_the_better(found)
        worst = max(worst, *ratios)
        cells = [f"{one.mean:.2f}, {one.p99:.2f}, {one.hit:.2f}" for one in found.values()]
        runner.say(f"{a_second:g}", name, *cells, "{:.2f}, {:.2f}".format(*ratios))
    print(f"the largest: {worst:.2f} {runner.verdict(worst <= 1.1)}")
    return 0 if worst <= 1.1 else 1


def directory(num: int = 2000) -> None:
    """Prints what placement would gain by a directory of what is where, with much memory and with
    little: seconds of a program, mean and 99 of 100, over those by the memory of what was sent.
    """
    runner.head("blocks of memory", "workload", "found: sent, directory", "mean", "p99", texts=3)
    for cache in (SMALL.cache, SMALL.cache // 3):
        for name, work in WORKLOADS.items():
            ways = {"directory": ByDirectory, "sent": Placement}
            found = compared(work, num, LOADS[1], ways, cache)
            hits = f"{found['sent'].hit:.3f}, {found['directory'].hit:.3f}"
            ratios = beside_the_better(found)
            runner.say(cache, name, hits, *(f"{one:.2f}" for one in ratios))


def compared(
    work: Workload,
    num: int,
    a_second: float,
    ways: Mapping[str, Callable[[SimulatedFleet], Policy]],
    cache: int = SMALL.cache,
) -> dict[str, Outcome]:
    """The same programs by each way."""
    fleet = replace(SMALL, slow=work.slow, cold=work.cold, cache=cache)
    told = programs(work, num, a_second)
    return {name: simulate(fleet, told, way(fleet)) for name, way in ways.items()}


def beside_the_better(found: Mapping[str, Outcome]) -> tuple[float, float]:
    """Mean and 99 of 100 of the first, over the least of the others."""
    ours, *others = found.values()
    return (
        ours.mean / min(one.mean for one in others),
        ours.p99 / min(one.p99 for one in others),
    )


def simulation(num: int = 100_000) -> None:
    """Prints a table: the placement at three loads; with a fifth of the sessions beside two others,
    beside many gateways, and among 1,000 replicas.
    """
    columns = ("found", "queue p99 s", "first p99 s", "us")
    runner.head("replicas", "sessions", "busy", "placement", *columns, texts=4)
    for fleet in (SimulatedFleet(0.05), SimulatedFleet(0.8), SimulatedFleet(0.9)):
        _row(fleet, sessions(fleet, num), "the fleet's", Placement(fleet))
    few, fleet = num // 5, SimulatedFleet(0.8)
    told = sessions(fleet, few)
    policies: dict[str, Policy] = {
        "the fleet's": Placement(fleet),
        "by 8 gateways": Gateways(fleet, 8, TOLD_AFTER),
        "by 32 gateways": Gateways(fleet, 32, TOLD_AFTER),
        "by 32 gateways, told late": Gateways(fleet, 32, TOLD_LATE),
        "by 8 that tell nothing": Gateways(fleet, 8, None),
        "by 32 that tell nothing": Gateways(fleet, 32, None),
        "in turns": InTurns(),
        "least loaded": LeastLoaded(),
    }
    for name, policy in policies.items():
        _row(fleet, told, name, policy)
    fleet = SimulatedFleet(0.8, replicas=1000)
    told = sessions(fleet, few)
    _row(fleet, told, "the fleet's", Placement(fleet))
    seconds = told[-1].at
    print(  # what gateways would carry, by what the simulation assumes
        f"{fleet.replicas} replicas: {few / seconds:,.0f} sessions a second, "
        f"{sum(one.written for one in told) / seconds:,.0f} tokens a second"
    )


def _row(fleet: SimulatedFleet, told: Sequence[Request], name: str, policy: Policy) -> None:
    one = simulate(fleet, told, policy)
    times = (f"{one.queue_p99:.2f}", f"{one.first_p99:.2f}", f"{one.decision_us:.0f}")
    about = (fleet.replicas, f"{len(told):,}", f"{fleet.busy:.0%}", name)
    runner.say(*about, f"{one.hit:.3f}", *times)


COMMANDS = runner.commands(placement, directory, simulation)
