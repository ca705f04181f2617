"""What single operations cost, against the bars that the design sets: `python -m benchmarks.micro`.

One function per section; each gives `Figure`s, and a bar where there is one. It knows how to time
and to print, and nothing of workloads or peers. Times are medians of many repetitions; the
collector of cyclic garbage stays on.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated

from benchmarks import runner
from benchmarks.virtual_time import commit, submit
from lmprog.config import PolicyName, SchedulerConfig
from lmprog.radix import Node, PageAllocator, RadixTree
from lmprog.runtime.scheduling.batch import build_batch
from lmprog.runtime.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `bar` is the most it may be; None where no bar is set."""

    section: str
    name: str
    value: float
    unit: str
    bar: float | None = None

    @property
    def passes(self) -> bool | None:
        return None if self.bar is None else self.value <= self.bar

    def cells(self) -> tuple[str, ...]:
        verdict = {None: "", True: "pass", False: "FAIL"}[self.passes]
        bar = "" if self.bar is None else f"{self.bar:g}"
        return self.section, self.name, self.unit, f"{self.value:.2f}", bar, verdict


def median_us(action: Callable[[], object], repetitions: int) -> float:
    """The median time of one `action()`, in microseconds."""
    times = (runner.seconds(action, 1, time.perf_counter_ns) for _ in range(repetitions))
    return median(times) / 1000


# -- matching

PROMPT_LEN = 8192
MOST_MATCHING = 40.0  # microseconds


def matching(repetitions: int) -> Iterator[Figure]:
    """A prompt of 8,192 cached tokens is found, in one node and along a path of 64."""
    for page_size in (16, 1):
        for num_nodes in (1, 64):
            prompt = array("i", (random.Random(7).randrange(1, 32000) for _ in range(PROMPT_LEN)))
            tree = _path(prompt, num_nodes, page_size)
            found = tree.match(prompt)
            assert (found.length, tree.num_nodes) == (PROMPT_LEN, num_nodes)
            bar = MOST_MATCHING if page_size == 16 else None
            match = partial(tree.match, prompt)
            name = f"match {PROMPT_LEN:,} tokens, {num_nodes} nodes, page size {page_size}"
            yield Figure("matching", name, median_us(match, repetitions), "us", bar)
            prompt[PROMPT_LEN - 5] = 0
            assert tree.match(prompt).length == PROMPT_LEN - 5
            name = f"... and the fifth from the end differs, {num_nodes} nodes"
            yield Figure("matching", name, median_us(match, repetitions), "us", bar)


def _path(tokens: array[int], num_nodes: int, page_size: int) -> RadixTree:
    pages = PageAllocator(len(tokens) // page_size)
    tree = RadixTree(page_size, pages)
    table = pages.allocate(pages.num_pages)
    assert table is not None
    step = len(tokens) // num_nodes
    for end in range(step, len(tokens) + 1, step):
        tree.insert(tokens[:end], table[: end // page_size])
    return tree


# -- trees that grow

PAGE_SIZE = 16
DEPTH = 32
SIZES = (1_000, 10_000, 100_000)
MOST_GROWTH = 1.5  # from the smallest tree to the largest


class Grown:
    """A tree of `num_nodes` nodes of one page in paths of `depth` that part at the root; it is kept
    at that size. Operations give nanoseconds.
    """

    def __init__(self, num_nodes: int, depth: int) -> None:
        self.depth = depth
        self.pages = PageAllocator(num_nodes + depth)
        self.tree = RadixTree(PAGE_SIZE, self.pages)
        self.prompts: list[array[int]] = []
        self.ends: list[Node] = []
        self._dice = random.Random(num_nodes)
        self._growing = self._add_leaf()
        for _ in range(num_nodes):
            next(self._growing)

    def _add_leaf(self) -> Iterator[None]:
        """One more node at each turn: a path is finished before the next begins."""
        while True:
            prompt = self.random_tokens(self.depth * PAGE_SIZE)
            table: list[int] = []
            for end in range(PAGE_SIZE, len(prompt) + 1, PAGE_SIZE):
                table += self.pages.allocate(1) or ()
                node = self.tree.insert(prompt[:end], table).node
                if end == len(prompt):
                    self.prompts.append(prompt)
                    self.ends.append(node)
                yield

    def random_tokens(self, count: int) -> array[int]:
        return array("i", (self._dice.getrandbits(30) for _ in range(count)))

    def pick(self) -> int:
        return self._dice.randrange(len(self.ends))

    def lock_unlock(self) -> float:
        node = self.ends[self.pick()]
        begin = time.perf_counter_ns()
        self.tree.lock(node)
        self.tree.unlock(node)
        return time.perf_counter_ns() - begin

    def match(self) -> float:
        prompt = self.prompts[self.pick()]
        return runner.seconds(partial(self.tree.match, prompt), 1, time.perf_counter_ns)

    def insert(self) -> float:
        """A new leaf at the end of a random path, or at the root if paths have one node; it is
        taken out again.

        As in earnest, it comes right after the match of the same path, which is not in the time.
        """
        prompt = array("i") if self.depth == 1 else self.prompts[self.pick()]
        table = self.tree.match(prompt).pages + (self.pages.allocate(1) or [])
        prompt = prompt + self.random_tokens(PAGE_SIZE)
        begin = time.perf_counter_ns()
        inserted = self.tree.insert(prompt, table)
        taken = time.perf_counter_ns() - begin
        self.tree.discard(inserted.node)
        return taken

    def evict(self) -> float:
        """The oldest leaf goes; a new one comes for it. To be measured last: later picks might be
        gone.
        """
        begin = time.perf_counter_ns()
        freed = self.tree.evict(1)
        taken = time.perf_counter_ns() - begin
        assert freed == 1
        next(self._growing)
        return taken


def growing(repetitions: int) -> Iterator[Figure]:
    """Match, insert, lock with unlock, and evict, each by the number of nodes in the tree.

    Small and large trees take turns, so that the machine's moods fall on all alike.
    """
    for shape, depth in (("flat", 1), ("deep", DEPTH)):
        trees = {size: Grown(size, depth) for size in SIZES}
        for name in ("match", "insert", "lock_unlock", "evict"):
            times: dict[int, list[float]] = {size: [] for size in SIZES}
            for _ in range(10):
                for size, grown in trees.items():
                    action = getattr(grown, name)
                    times[size] += [action() for _ in range(repetitions // 10)]
            costs = {size: median(each) / 1000 for size, each in times.items()}
            for size, value in costs.items():
                yield Figure("growing", f"{name}, {shape}, {size:,} nodes", value, "us")
            growth = costs[SIZES[-1]] / costs[SIZES[0]]
            bar = None if name == "match" else MOST_GROWTH  # a match has a bar in microseconds
            title = f"{name}, {shape}, {SIZES[-1]:,} : {SIZES[0]:,} nodes"
            yield Figure("growing", title, growth, "x", bar)


# -- scheduling

WAITING = 1000
POLICIES: tuple[PolicyName, ...] = ("fcfs", "lpm", "dfs")
MOST_POLICY = 1.0  # milliseconds a step, with 1,000 waiting
ANSWER = 4000


def scheduling(repetitions: int) -> Iterator[Figure]:
    """What a step costs outside the model: by how much a plan grows when 1,000 sequences wait and
    none can be admitted, and plan, batch, masks and commit of steps that decode."""
    few = max(20, repetitions // 20)
    for policy in POLICIES:
        none, many = (_planning_ms(policy, waiting, few) for waiting in (0, WAITING))
        name = f"{policy}, {WAITING:,} waiting: added to a step"
        yield Figure("scheduling", name, many - none, "ms", MOST_POLICY)
    for rows in (1, 16, 64, 256):
        name = f"a step that decodes {rows} rows of 1,000 tokens"
        yield Figure("scheduling", name, _decoding_ms(rows, few), "ms")


def _planning_ms(policy: PolicyName, waiting: int, repetitions: int) -> float:
    dice = random.Random(1)
    prefixes = [[dice.randrange(32_000) for _ in range(600)] for _ in range(10)]
    scheduler = Scheduler(SchedulerConfig(num_pages=20_000, max_rows=8, policy=policy), 8192)

    def fill(count: int) -> None:
        for _ in range(count):
            prompt = [*dice.choice(prefixes), *dice.choices(range(32_000), k=50)]
            submit(scheduler, prompt, ANSWER)

    fill(8)
    commit(scheduler, scheduler.plan())
    fill(waiting)
    return median_us(lambda: commit(scheduler, scheduler.plan()), repetitions) / 1000


def _decoding_ms(rows: int, repetitions: int) -> float:
    scheduler = Scheduler(SchedulerConfig(num_pages=40_000), 8192)
    dice = random.Random(2)
    for _ in range(rows):
        submit(scheduler, dice.choices(range(32_000), k=1000), ANSWER)
    while any(sequence.remaining > 1 for sequence in [*scheduler.running, *scheduler.waiting]):
        commit(scheduler, scheduler.plan())

    def step() -> None:
        plan = scheduler.plan()
        build_batch(plan, 16)
        commit(scheduler, plan)

    return median_us(step, repetitions) / 1000


SECTIONS: dict[str, Callable[[int], Iterator[Figure]]] = {
    "matching": matching,
    "growing": growing,
    "scheduling": scheduling,
}


@runner.command
def main(
    sections: Annotated[Sequence[str], f"of {', '.join(SECTIONS)}; all if none is named"] = (),
    *,
    repetitions: Annotated[int, "of each operation"] = 2000,
) -> int:
    if unknown := sorted(set(sections) - set(SECTIONS)):
        raise runner.WrongOptions(f"no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    runner.head("section", "what", "unit", "value", "at most", "verdict", texts=3)
    figures = []
    for name in sections or SECTIONS:
        for figure in SECTIONS[name](repetitions):
            figures.append(figure)
            runner.say(*figure.cells())
    return 1 if any(figure.passes is False for figure in figures) else 0
