"""What a fleet costs and what its affinity brings.

    python -m benchmarks.fleet decisions    processor time of one routing decision, 64 replicas
    python -m benchmarks.fleet overhead     processor time of a call through a fleet, and directly
    python -m benchmarks.fleet hits 12      two replicas beside one with twice the pages, 12 orders
    python -m benchmarks.fleet gateways     the same fleet behind 1, 2 and 4 gateways
    python -m benchmarks.fleet deaths       how soon programs go on after SIGKILL of a replica
    python -m benchmarks.fleet simulation   64 and 1,000 replicas in virtual time, 100,000 sessions

`hits` runs 16 families of 20 prompts, shuffled, each family with a prefix of its own, on the
runtimes themselves: one with all pages, two with half of them each behind a fleet, and two that
take turns. Figures are the share of prompt tokens that were found in a tree.
"""

from __future__ import annotations

import heapq
import os
import random
import signal
import time
import tracemalloc
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import lmprog
from benchmarks import runner
from lmprog.backends import Backend
from lmprog.fleet.local_members import LocalMembers
from lmprog.fleet.placement import BLOCK, PrefixMemory, choose, keys_of, mark_of, relieved

# -- on runtimes

FAMILIES, PROMPTS = 16, 20
PREFIX, OWN = 330, 30
"""Characters of a prompt that its family shares, and that are its own; a byte is a token here."""
MODEL = "dummy:tiny"
SCARCE_MB = 4
"""Pages in all: half of them hold fewer than all families."""


@lmprog.function
def ask(s: lmprog.Branch, text: str) -> str:
    s += text
    s += lmprog.gen("answer", max_tokens=8, temperature=0, ignore_eos=True)
    return str(s["answer"])


def prompts(draw: random.Random) -> list[str]:
    """All prompts, shuffled."""
    letters = "abcdefghijklmnopqrstuvwxyz "
    found = []
    for _ in range(FAMILIES):
        shared = "".join(draw.choices(letters, k=PREFIX))
        found += [shared + "".join(draw.choices(letters, k=OWN)) for _ in range(PROMPTS)]
    draw.shuffle(found)
    return found


def asked(backend: Backend, texts: Sequence[str], at_once: int) -> list[lmprog.Usage]:
    calls = [{"text": text} for text in texts]
    runs = ask.run_batch(calls, backend=backend, num_threads=max(1, at_once))
    return [one.usage for one in runs]


def share(usages: Sequence[lmprog.Usage]) -> float:
    """Of prompt tokens that were found."""
    return float(sum(one.cached for one in usages) / sum(one.prompt for one in usages))


def share_found(backends: Sequence[Backend], texts: Sequence[str], at_once: int) -> float:
    """Backends take turns; a fleet is one backend."""
    usages: list[lmprog.Usage] = []
    for turn, start in enumerate(range(0, len(texts), at_once)):
        backend = backends[turn % len(backends)]
        usages += asked(backend, texts[start : start + at_once], at_once)
    return share(usages)


def share_found_at_once(backends: Sequence[Backend], texts: Sequence[str], at_once: int) -> float:
    """All backends at the same time, each with its share of the texts and of `at_once`."""
    count = len(backends)
    each = [texts[index::count] for index in range(count)]
    with ThreadPoolExecutor(count) as threads:
        parts = threads.map(asked, backends, each, [at_once // count] * count)
        return share([one for part in parts for one in part])


def share_found_later(backends: Sequence[Backend], texts: Sequence[str], at_once: int) -> float:
    """As `share_found_at_once`, after one prompt of each family, which is not counted."""
    first = {text[:PREFIX]: text for text in reversed(texts)}
    for text in first.values():
        ask.using(backend=backends[0]).run(text)
    rest = [text for text in texts if first[text[:PREFIX]] != text]
    return share_found_at_once(backends, rest, at_once)


HALF: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_memory_mb": SCARCE_MB // 2}


def hits(orders: int = 3) -> None:
    """Prints the table for few and many programs at once, each for so many orders of the prompts,
    and the least ratio of a fleet to one runtime.
    """
    columns = ("one runtime", "fleet of two", "ratio", "two in turns")
    runner.head("programs at once", "order", *columns, texts=2)
    ratios: list[float] = []
    for at_once, order in product((4, 64), range(7, 7 + orders)):
        texts = prompts(random.Random(order))
        with lmprog.Runtime(MODEL, **{**HALF, "kv_memory_mb": SCARCE_MB}) as one:
            alone = share_found([one], texts, at_once)
        with lmprog.Fleet.local(MODEL, replicas=2, **HALF) as fleet:
            affine = share_found([fleet], texts, at_once)
        with lmprog.Runtime(MODEL, **HALF) as first, lmprog.Runtime(MODEL, **HALF) as second:
            turns = share_found([first, second], texts, max(1, at_once // 2))
        ratios.append(affine / alone)
        figures = (alone, affine, affine / alone, turns)
        runner.say(at_once, order, *(f"{figure:.3f}" for figure in figures))
    print(f"ratios: {min(ratios):.3f} to {max(ratios):.3f}")


def gateways(orders: int = 3) -> None:
    """The share that is found where the prompts come through several gateways: in turns of 16
    programs; through all of them at once, 16 programs together; and so once each family has been
    seen, which is not counted.
    """
    columns = ("in turns", "at once", "at once, families known")
    runner.head("gateways", "order", *columns, texts=2)
    for count, order in product((1, 2, 4), range(7, 7 + orders)):
        texts, cells = prompts(random.Random(order)), []
        for way in (share_found, share_found_at_once, share_found_later):
            with lmprog.Runtime(MODEL, **HALF) as first, lmprog.Runtime(MODEL, **HALF) as second:
                addresses = [first.address, second.address]
                with ExitStack() as stack:
                    fleets = [stack.enter_context(lmprog.Fleet(addresses)) for _ in range(count)]
                    for fleet in fleets:
                        fleet.channel.wait_for(2)
                    cells.append(f"{way(fleets, texts, 16):.3f}")
        runner.say(count, order, *cells)


@lmprog.function
def write(s: lmprog.Branch, text: str) -> str:
    s += text
    s += lmprog.gen("answer", max_tokens=400, temperature=1.0, seed=1, ignore_eos=True)
    return str(s["answer"])


def deaths(times: int = 5) -> None:
    """Kills the busier of two replicas of nano under eight programs: seconds until its programs are
    on the other one, and whether each program ended as it does without a death.
    """
    calls = [{"text": f"Story {number} begins."} for number in range(8)]

    def written(fleet: lmprog.Fleet) -> list[str]:
        return [run.value for run in write.run_batch(calls, backend=fleet, num_threads=8)]

    with (
        lmprog.Fleet.local("nano", replicas=2, threads=1, kv_memory_mb=64) as fleet,
        ThreadPoolExecutor(1) as threads,
    ):
        calm = written(fleet)
        waits, same = [], 0
        for _ in range(times):
            fleet.channel.wait_for(2, timeout=120.0)
            results = threads.submit(written, fleet)
            while sum(fleet.channel.loads.values()) < len(calls):
                time.sleep(0.001)
            time.sleep(0.3)
            loads, moved = fleet.channel.loads, fleet.channel.num_moved
            busiest = max(loads, key=loads.__getitem__)
            assert isinstance(fleet.members, LocalMembers)
            began = time.perf_counter()
            os.kill(fleet.members.processes[busiest].pid, signal.SIGKILL)
            while fleet.channel.num_moved == moved and not results.done():
                time.sleep(0.001)
            waits.append(time.perf_counter() - began)
            same += sum(map(str.__eq__, results.result(), calm))
        moved = fleet.channel.num_moved
    print(
        f"{times} deaths: moved after {min(waits):.3f} to {max(waits):.3f} s; {moved} programs moved; "
        f"{same} of {times * len(calls)} programs ended as without a death"
    )


def decisions() -> None:
    """Microseconds of processor time for finding a program's replica among 64, and what a block
    that is remembered costs.
    """
    draw = random.Random(7)
    families = ["".join(draw.choices("abcdef ", k=40 * BLOCK)) for _ in range(2000)]
    replicas = list(range(64))
    tracemalloc.start()
    memory = PrefixMemory()
    for replica in replicas:
        memory.add(replica, 4096)
    for family in families:
        memory.remember(draw.choice(replicas), keys_of(family))
    bytes_held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    marks = [mark_of(str(replica)) for replica in replicas]
    loads = [draw.randrange(32) for _ in replicas]
    texts = [draw.choice(families) for _ in range(2000)]
    began = time.process_time()
    for text in texts:
        keys = keys_of(text)
        matched = memory.matched(keys, replicas)
        index = choose(matched, loads, memory.held, 32, mark_of(text[:BLOCK]), marks)
        memory.remember(index, keys)
    took = (time.process_time() - began) / len(texts)
    print(
        f"{1e6 * took:.0f} us a decision, 64 replicas, prefixes of 40 blocks of {BLOCK} "
        f"characters; {bytes_held / (40 * len(families)):.0f} bytes of memory a block"
    )


@lmprog.function
def one_token(s: lmprog.Branch, text: str) -> str:
    s += text
    s += lmprog.gen("answer", max_tokens=1, temperature=0)
    return str(s["answer"])


def overhead(calls: int = 400) -> None:
    """Milliseconds of this process's time for a program of one call, on a runtime and on a fleet of
    it alone: the medians of turns of forty, after one that is not counted.
    """
    texts = [f"Program {number} says that {'and so on ' * 40}" for number in range(40)]
    with (
        lmprog.Runtime(MODEL, dtype="float32", threads=1, kv_memory_mb=16) as runtime,
        lmprog.Fleet([runtime.address]) as fleet,
    ):

        def spent(backend: Backend) -> float:
            return runner.seconds(
                lambda: [one_token.using(backend=backend).run(text) for text in texts]
            )

        sides = {"directly": partial(spent, runtime), "through a fleet": partial(spent, fleet)}
        runner.in_turn(sides, 1)  # what is done once is no cost of a call
        found = runner.medians(sides, max(1, calls // len(texts)))
    each = {name: 1e3 * took / len(texts) for name, took in found.items()}
    more = each["through a fleet"] - each["directly"]
    print(" ".join(f"{name} {ms:.3f} ms;" for name, ms in each.items()), f"{more:.3f} ms more")


# -- many replicas in virtual time
#
# Real are the decision (`lmprog.fleet.placement`) and what it remembers. Simple is the rest: a
# replica computes one prompt after the other, writes at a constant speed in each of its slots, and
# keeps the least recently used blocks. Sessions come at random times; their prompts begin with one
# of many prefixes, some far more frequent than others, and end with text of their own.

BLOCK_TOKENS = 64  # tokens
PREFILL = 20_000.0  # tokens a second
WRITING = 40.0  # tokens a second and slot
PREFIXES, SKEW = 4000, 1.1
TOLD_AFTER, TOLD_LATE = 0.05, 2.0
"""Seconds until gateways know what others have sent: a step of a replica, and far more."""


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
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
    alike: Counter[int] = field(default_factory=Counter)
    """Its programs by the first block of their prompts."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one simulation. Times in seconds, of virtual time but for `decision_us`."""

    hit: float
    queue_p99: float
    first_p99: float
    decision_us: float


def sessions(fleet: SimulatedFleet, count: int, seed: int = 1) -> Sessions:
    """So many that `fleet.busy` of all slots are taken on average."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, PREFIXES + 1) ** SKEW
    shared = (
        np.clip(rng.lognormal(np.log(2000), 0.8, PREFIXES), 256, 16_000).astype(int) // BLOCK_TOKENS
    )
    chosen = rng.choice(PREFIXES, count, p=weights / weights.sum())
    own = -(-np.clip(rng.lognormal(np.log(250), 0.7, count), 32, 4000).astype(int) // BLOCK_TOKENS)
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

    def __init__(self, fleet: SimulatedFleet, written: float = 240.0) -> None:
        """`written`: tokens of a program, as replicas would tell it."""
        self._slots = fleet.slots
        self._written = written / BLOCK_TOKENS
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
        if matched[index]:
            alike = replicas[index].alike[prompt[0]]
            index = relieved(index, matched, loads, alike, self._written)
        self.remember(index, prompt)
        return index

    def remember(self, index: int, prompt: Sequence[int]) -> None:
        """The replica was sent that prompt."""
        self._memory.remember(index, prompt)


class Gateways:
    """Several gateways that know the loads, and of prefixes what each has sent itself; what others
    have sent is known `delay` seconds later, or never (None).
    """

    def __init__(
        self, fleet: SimulatedFleet, count: int, told: Sessions, delay: float | None
    ) -> None:
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

    def __init__(self, fleet: SimulatedFleet, told: Sessions) -> None:
        self._fleet = fleet
        self._told = told
        self.replicas = [SimulatedReplica() for _ in range(fleet.replicas)]
        self._ends: list[tuple[float, int, int]] = []
        self.found = self.needed = 0  # blocks
        self.queued: list[float] = []
        self.first: list[float] = []

    def arrive(self, session: int, index: int) -> None:
        replica = self.replicas[index]
        replica.load += 1
        replica.alike[self._told.prompts[session][0]] += 1
        if replica.running < self._fleet.slots:
            self._begin(session, index, self._told.arrivals[session])
        else:
            replica.queue.append(session)

    def pass_until(self, now: float) -> None:
        """Ends what ends until then, and begins what waited for it."""
        while self._ends and self._ends[0][0] <= now:
            at, index, session = heapq.heappop(self._ends)
            replica = self.replicas[index]
            replica.alike[self._told.prompts[session][0]] -= 1
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
        replica.free_at = max(now, replica.free_at) + (len(prompt) - hit) * BLOCK_TOKENS / PREFILL
        self.found += hit
        self.needed += len(prompt)
        arrival = self._told.arrivals[session]
        self.queued.append(now - arrival)
        self.first.append(replica.free_at - arrival)
        end = replica.free_at + self._told.written[session] / WRITING
        heapq.heappush(self._ends, (end, index, session))


def simulate(fleet: SimulatedFleet, told: Sessions, policy: Policy) -> Outcome:
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


def simulation(count: int = 100_000) -> None:
    """Prints a table: the placement at three loads; with a fifth of the sessions beside two others,
    beside many gateways, and among 1,000 replicas.
    """
    columns = ("found", "queue p99 s", "first p99 s", "us")
    runner.head("replicas", "sessions", "busy", "placement", *columns, texts=4)
    for fleet in (SimulatedFleet(0.05), SimulatedFleet(0.8), SimulatedFleet(0.9)):
        _row(fleet, sessions(fleet, count), "the fleet's", Placement(fleet))
    few, fleet = count // 5, SimulatedFleet(0.8)
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
    fleet = SimulatedFleet(0.8, replicas=1000)
    told = sessions(fleet, few)
    _row(fleet, told, "the fleet's", Placement(fleet))
    seconds = told.arrivals[-1]
    print(  # what gateways would carry, by what the simulation assumes
        f"{fleet.replicas} replicas: {few / seconds:,.0f} sessions a second, "
        f"{sum(told.written) / seconds:,.0f} tokens a second"
    )


def _row(fleet: SimulatedFleet, told: Sessions, name: str, policy: Policy) -> None:
    one = simulate(fleet, told, policy)
    times = (f"{one.queue_p99:.2f}", f"{one.first_p99:.2f}", f"{one.decision_us:.0f}")
    about = (fleet.replicas, f"{len(told.arrivals):,}", f"{fleet.busy:.0%}", name)
    runner.say(*about, f"{one.hit:.3f}", *times)


COMMANDS = runner.commands(decisions, overhead, hits, gateways, deaths, simulation)
