"""Agents on the real scheduler in virtual time: sessions of calls with pauses between them, and the
blocks of a production trace in the real prefix tree. No model computes.

    python -m benchmarks.agents --like miniswe [--rates 2] [--memory 60000,90000] [--costs cheap,dear]
    python -m benchmarks.agents --trace FOLDER            public traces that you have fetched
    python -m benchmarks.agents --like production [--blocks 1000,3000,10000]
    python -m benchmarks.agents bars [--trace FOLDER]     all rates and memories; prints what misses its bar
    python -m benchmarks.agents serve [--model nano]      sessions on a real model, through `lmprog serve`

A folder holds either sessions, one in each `*.jsonl` file, whose lines have `timestamp` (microseconds),
`input` and `output`; or requests of a service, whose lines have `timestamp` (milliseconds) and `hash_ids`.
Without one they are made, with the figures of such traces: how long prompts and answers are, what of a
prompt the calls before it had, and how long a tool takes.

Sides: each session is a *program*, whose branches pin what their next calls begin with; the same with
`unlimited` admission, so that only *pins* are left; each call is a *request* of its own, as a foreign
harness sends it, *with hints* of the session's name, and *alone*: never taken for a turn of a session,
also with `fcfs`. The columns are seconds of a session in the mean / p90 / percent of the prompts' tokens
found / tokens computed over those of *memory for all*, where programs never wait / over those of the
offline optimum for the same calls in the same order, which evicts the leaf whose next use is farthest.
Sessions with a call that a memory can never hold are left out of all its columns, and counted.
"""

from __future__ import annotations

import heapq
import json
import random
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from itertools import product, takewhile
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any, Literal

from benchmarks import runner
from benchmarks.agent_sessions import Session, Texts, common_length, sessions_of
from benchmarks.agents_served import serve
from benchmarks.virtual_time import CONFIG, PAGE, TOKEN, submit
from lmprog.config import SchedulerConfig
from lmprog.radix import PageAllocator, RadixTree
from lmprog.radix.eviction import EvictionPolicy, ExpectedReuse
from lmprog.runtime.scheduling.active_programs import Pin
from lmprog.runtime.scheduling.logits_requests import collect_requests
from lmprog.runtime.scheduling.sampling_requests import SampleResult, StepResults
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup, SessionTurn

CONTEXT = 65_536
COSTS = {"cheap": (0.010, 0.00005), "dear": (0.020, 0.0005)}
"""Seconds of a step, and of each of its tokens."""
FOR_ALL = 2_000_000
"""Tokens of memory in which nothing is ever evicted."""


# -- a replay


@dataclass(frozen=True, slots=True)
class Side:
    """How sessions are sent."""

    config: SchedulerConfig
    are_programs: bool = True
    are_sessions: bool = True
    """Whether requests may be turns of sessions ..."""
    are_named: bool = False
    """... and say of which one."""


SIDES = {
    "programs": Side(CONFIG),
    "pins": Side(replace(CONFIG, admission="unlimited")),
    "requests": Side(CONFIG, are_programs=False),
    "with hints": Side(CONFIG, are_programs=False, are_named=True),
    "requests alone": Side(CONFIG, are_programs=False, are_sessions=False),
    "alone, fcfs": Side(replace(CONFIG, policy="fcfs"), are_programs=False, are_sessions=False),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    mean: float
    p90: float
    hits: float
    computed: int

    def __str__(self) -> str:
        return f"{self.mean:.1f} / {self.p90:.1f} / {100 * self.hits:.0f}"


def fitting(sessions: list[Session], memory: int) -> list[Session]:
    """Those each of whose calls so much memory can hold alone."""
    scheduler = Scheduler(replace(CONFIG, num_pages=memory // PAGE), CONTEXT)
    most = scheduler.longest_sequence
    return [
        calls for calls in sessions if max(len(one.prompt) + one.answer for one in calls) <= most
    ]


@dataclass(eq=False)
class Replay:
    """Sessions that begin at random, `rate` a second, on one side; what they took. Raises
    ContextOverflow where one has a call that never fits.
    """

    sessions: list[Session]
    side: Side
    memory: int
    rate: float
    costs: tuple[float, float]
    seed: int = 1
    now: float = 0.0
    todo: list[tuple[float, int, int]] = field(default_factory=list)
    """Moment, session, call."""

    def __post_init__(self) -> None:
        config = replace(self.side.config, num_pages=self.memory // PAGE)
        self.scheduler = Scheduler(config, CONTEXT, clock=lambda: self.now)
        dice, at = random.Random(self.seed), 0.0
        for number in range(len(self.sessions)):
            at += dice.expovariate(self.rate)
            heapq.heappush(self.todo, (at, number, 0))
        self.began = {number: at for at, number, _ in self.todo}
        self.seconds: list[float] = []
        self.asked: dict[SequenceGroup, tuple[int, int]] = {}
        self.pins: dict[tuple[int, int], Pin] = {}
        self.served: list[tuple[array[int], int]] = []
        """Of calls, in the order in which they ended: tokens, and how long the prompt was."""
        self.cached = self.prompts = self.num_asked = 0

    def run(self) -> Outcome:
        while len(self.seconds) < len(self.sessions):
            while self.todo and self.todo[0][0] <= self.now:
                self._ask(*heapq.heappop(self.todo)[1:])
            if self.scheduler.idle:
                self.now = self.todo[0][0]
            else:
                self._step()
        times = sorted(self.seconds)
        computed = self.scheduler.stats.computed_tokens
        p90 = runner.percentile(times, 0.9)
        return Outcome(mean(times), p90, self.cached / self.prompts, computed)

    def _ask(self, number: int, turn: int) -> None:
        call = self.sessions[number][turn]
        fields: dict[str, Any] = {}
        if self.side.are_programs:
            fields["program"] = number + 1
        elif self.side.are_sessions:
            self.num_asked += 1
            fields["program"] = self.num_asked
            fields["turn"] = SessionTurn(str(number) if self.side.are_named else "")
        group = submit(self.scheduler, call.prompt[:], call.answer, **fields)
        self.asked[group] = number, turn
        self.prompts += len(call.prompt)

    def _step(self) -> None:
        """Or a millisecond in which the scheduler waits for a program."""
        plan = self.scheduler.plan()
        if not plan.rows:
            self.now += 0.001
            return
        fixed, per_token = self.costs
        self.now += fixed + per_token * plan.num_tokens
        requests = collect_requests(plan)
        results = StepResults((SampleResult(TOKEN, 0.0),) * len(requests.samples), ())
        for one in self.scheduler.commit(plan, requests, results):
            if one.ended:
                self._ended(one.sequence)

    def _ended(self, sequence: Sequence) -> None:
        number, turn = self.asked.pop(sequence.group)
        session = self.sessions[number]
        self.cached += sequence.group.cached
        self.served.append((sequence.tokens, len(session[turn].prompt)))
        node, pins = self.scheduler.end(sequence), self.scheduler.pins
        assert node is not None
        place = number, session[turn].agent
        if sequence.group.turn is not None:
            self.scheduler.pause(sequence.group.turn, node)
        if self.side.are_programs:
            old = self.pins.pop(place, None)
            after = (call for call in session[turn + 1 :] if call.agent == place[1])
            if call := next(after, None):
                self.pins[place] = self._pin(sequence.tokens, call.prompt, number + 1)
            if old is not None:
                pins.unpin(old)
        self.scheduler.unpin(node)
        if turn + 1 == len(session):
            self.seconds.append(self.now - self.began[number])
        else:
            think = session[turn + 1].think
            heapq.heappush(self.todo, (self.now + think, number, turn + 1))

    def _pin(self, tokens: array[int], prompt: array[int], program: int) -> Pin:
        """The branch that is left: an answer that the next prompt leaves out was a fork's."""
        tree = self.scheduler.tree
        match = tree.match(prompt[: common_length(tokens, prompt)])
        node = tree.lock(match.node, match.length)
        pin = self.scheduler.pins.pin(node, program)
        tree.unlock(node)
        return pin


# -- the blocks of a service's requests


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a service: its blocks, each of which says what all before it are."""

    at: float
    blocks: array[int]
    num_made: int = 0
    """Of the last of them: its answer is made anew, whoever has made the same before."""

    @property
    def prompt(self) -> array[int]:
        return self.blocks[: len(self.blocks) - self.num_made]


def served(folder: Path) -> list[Asked]:
    """The requests of a folder's files."""
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.open()]
    read = [json.loads(line) for line in lines]
    return [Asked(one["timestamp"] / 1000, array("i", one["hash_ids"])) for one in read]


def serving(dice: random.Random, seconds: float = 3600.0) -> list[Asked]:
    """Like an hour of a large provider's conversations: two thirds are asked once, the others again
    after a minute or more with what was said; few beginnings are shared by many."""
    found = list[Asked]()
    number = 0

    def fresh(count: float) -> array[int]:
        nonlocal number
        number += max(1, int(count))
        return array("i", range(number - max(1, int(count)), number))

    text = Texts(dice)
    common = fresh(1)
    shared = [fresh(text.spread(4, 30, 100)) for _ in range(40)]
    at = 0.0
    while at < seconds:
        at += dice.expovariate(2.0)
        blocks = common + (
            shared[min(39, int(dice.expovariate(0.2)))] if dice.random() < 0.1 else fresh(1)
        )
        blocks = blocks + fresh(text.spread(12, 60, 240))
        then = at
        while then < seconds:
            found.append(Asked(then, blocks))
            if dice.random() > 0.45:
                break
            blocks = blocks + fresh(text.spread(2, 10, 60))
            then += text.spread(70, 500, 3000)
    return sorted(found, key=lambda one: one.at)


def least_computed(served: Items[tuple[array[int], int]], memory: int) -> float:
    """The tokens that the calls would have computed with pages evicted by what comes next."""
    numbers, asked = dict[tuple[int, bytes], int](), list[Asked]()
    for tokens, num_prompt in served:
        blocks = array("i", [-1])
        for at in range(0, len(tokens) - PAGE + 1, PAGE):
            page = blocks[-1], tokens[at : at + PAGE].tobytes()
            blocks.append(numbers.setdefault(page, len(numbers)))
        num_made = len(blocks) - 1 - (num_prompt - 1) // PAGE  # and a prompt's last token
        asked.append(Asked(0.0, blocks[1:], num_made))
    num_found = optimum(asked, memory // PAGE) * sum(len(one.prompt) for one in asked)
    return sum(len(tokens) for tokens, _ in served) - num_found * PAGE


POLICIES: dict[str, Callable[[int], EvictionPolicy | None]] = {
    "LRU": lambda _: None,
    "expected reuse": ExpectedReuse,
}


def found_in_tree(
    requests: list[Asked], num_blocks: int, policy: EvictionPolicy | None = None
) -> float:
    """The part of the blocks that is in a tree of so many pages, each of one block, when asked for."""
    pages = PageAllocator(num_blocks)
    tree = RadixTree(1, pages, policy)
    num_found = num_asked = 0
    for one in requests:
        tree.tick(one.at)
        blocks = one.blocks[:num_blocks]
        match = tree.match(blocks)
        node = tree.lock(match.node, match.length)
        num_found += match.length
        num_asked += len(one.blocks)
        missing = len(blocks) - match.length
        tree.evict(missing - pages.num_free)
        taken = pages.allocate(missing)
        assert taken is not None, "nothing else is locked"
        inserted = tree.insert(blocks, [*match.pages, *taken])
        tree.unlock(node)
        tree.ended(inserted.node, len(blocks) - 1)
    return num_found / num_asked


def optimum(requests: list[Asked], num_blocks: int) -> float:
    """The part that is found where the leaf goes whose next use is farthest, which nobody can know."""
    uses = defaultdict[int, list[int]](list)
    for number, one in enumerate(requests):
        for block in one.prompt:
            uses[block].append(number)
    held, parent, children = set[int](), dict[int, int](), Counter[int]()
    passed, heap = Counter[int](), list[tuple[int, int]]()
    num_found = 0

    def wait(block: int) -> None:
        """The block, a leaf, may go."""
        left = uses[block][passed[block] :]
        heapq.heappush(heap, (-(left[0] if left else len(requests)), block))

    for one in requests:
        num_found += sum(1 for _ in takewhile(held.__contains__, one.prompt))
        passed.update(one.prompt)
        for before, block in zip([-1, *one.blocks], one.blocks, strict=False):
            if block not in held:
                held.add(block)
                parent[block] = before
                children[before] += 1
        wait(one.blocks[-1])
        while len(held) > num_blocks:
            farthest, block = heapq.heappop(heap)
            left = uses[block][passed[block] :]
            is_now = -farthest == (left[0] if left else len(requests))
            if block in held and not children[block] and is_now:
                held.remove(block)
                children[parent[block]] -= 1
                if not children[parent[block]]:
                    wait(parent[block])
    return num_found / sum(len(one.prompt) for one in requests)


# -- the command


def main(
    *,
    like: Literal["miniswe", "magentic", "chat", "production"] = "miniswe",
    trace: Annotated[Path | None, "a folder of traces instead"] = None,
    sessions: int = 20,
    rates: Annotated[runner.Floats, "sessions that begin in a second"] = (2.0,),
    memory: Annotated[runner.Ints, "tokens"] = (60_000, 90_000, 120_000),
    costs: Annotated[runner.Names, "of steps: cheap, dear"] = ("cheap", "dear"),
    sides: Annotated[str, "those whose name contains this"] = "",
    blocks: Annotated[runner.Ints, "of memory, for requests of a service"] = (1000, 3000, 10_000),
) -> None:
    """See above."""
    if like == "production" or (trace is not None and is_service(trace)):
        return production(serving(random.Random(1)) if trace is None else served(trace), blocks)
    made = sessions_of(like, trace, sessions)
    runner.head("costs", "a second", "memory", *(side for side in SIDES if sides in side), texts=1)
    for cost, rate in product(costs, rates):
        best = Replay(made, SIDES["pins"], FOR_ALL, rate, COSTS[cost]).run()
        runner.say(cost, f"{rate:g}", "for all", best)
        for tokens in memory:
            fit, cells, beside = fitting(made, tokens), list[str](), best
            if len(fit) < len(made):
                left_out = f"{len(made) - len(fit)} of {len(made)} left out"
                if not fit:
                    runner.say(cost, f"{rate:g}", f"{tokens:,}", left_out)
                    continue
                beside = Replay(fit, SIDES["pins"], FOR_ALL, rate, COSTS[cost]).run()
                runner.say(cost, f"{rate:g}", "for all", beside, left_out)
            for name, side in SIDES.items():
                if sides in name:
                    replay = Replay(fit, side, tokens, rate, COSTS[cost])
                    got = replay.run()
                    least = least_computed(replay.served, tokens)
                    ratios = got.computed / beside.computed, got.computed / least
                    cells.append(f"{got} / {ratios[0]:.2f} / {ratios[1]:.2f}")
            runner.say(cost, f"{rate:g}", f"{tokens:,}", *cells)
    return None


BARS = (
    ("programs", ("pins", "requests alone", "alone, fcfs"), 1.03, True),
    ("requests", ("programs",), 1.15, False),
    ("with hints", ("programs",), 1.05, False),
)
"""A side, those whose best it is measured by, how many times that it may take, in the mean, and whether
in the ninth decile too."""
BAR_FOR_ALL = 1.01
"""Of programs, by pins alone, where memory suffices for all."""


@dataclass(eq=False)
class Cell:
    """The same sessions on all sides, each seed with another order of them and other beginnings."""

    made: list[Session]
    memory: int
    rate: float
    costs: tuple[float, float]
    found: dict[tuple[str, int], tuple[Outcome, str]] = field(default_factory=dict)

    def outcome(self, side: str, seed: int) -> tuple[Outcome, str]:
        """With where its time went: tokens computed, and seconds waited by a session, by cause."""
        if (side, seed) not in self.found:
            sessions = self.made[:]
            random.Random(seed).shuffle(sessions)
            replay = Replay(sessions, SIDES[side], self.memory, self.rate, self.costs, seed)
            outcome = replay.run()
            waited = replay.scheduler.shares.totals[""].waited
            each = [f"{one / len(sessions):.1f}" for one in waited]
            self.found[side, seed] = outcome, f"{outcome.computed:,} / {' / '.join(each)}"
        return self.found[side, seed]

    def ratios(self, side: str, others: Items[str], seed: int) -> tuple[float, float]:
        """Of the mean and of the ninth decile, to the best of the others."""
        got = self.outcome(side, seed)[0]
        beside = [self.outcome(other, seed)[0] for other in others]
        best = min(one.mean for one in beside), min(one.p90 for one in beside)
        return got.mean / best[0], got.p90 / best[1]


def bars(
    *,
    like: Literal["miniswe", "magentic", "chat"] = "miniswe",
    trace: Annotated[Path | None, "a folder of sessions instead"] = None,
    sessions: int = 20,
    rates: runner.Floats = (0.1, 0.2, 0.5, 1, 2, 4),
    memory: runner.Ints = (40_000, 60_000, 90_000, 120_000, FOR_ALL),
    costs: runner.Names = ("cheap", "dear"),
    seeds: Annotated[int, "where the first one misses a bar; the mean of all counts"] = 5,
    sides: Annotated[str, "bars of those whose name contains this"] = "",
) -> None:
    """All cells of rates, memories and costs; those in which a side misses its bar. What took the time:
    tokens computed / seconds that the calls of a session waited for memory / a place / a load / a step.
    """
    made = sessions_of(like, trace, sessions)
    titles = ("side", "of", "costs", "a second", "memory", "times", "±", "bar", "seconds")
    runner.head(*titles, "its time", "the other's", texts=3)
    num_bars = num_missed = 0
    for cost, rate, tokens in product(costs, rates, memory):
        cell = Cell(fitting(made, tokens), tokens, rate, COSTS[cost])
        wanted = BARS if tokens < FOR_ALL else (("programs", ("pins",), BAR_FOR_ALL, True),)
        for side, others, most, has_p90 in wanted:
            if sides not in side or not cell.made:
                continue
            for number in range(1 + has_p90):
                num_bars += 1
                if cell.ratios(side, others, 1)[number] <= most:
                    continue
                each = [cell.ratios(side, others, seed)[number] for seed in range(1, seeds + 1)]
                if mean(each) <= most:
                    continue
                num_missed += 1
                error = stdev(each) / len(each) ** 0.5 if len(each) > 1 else float("nan")
                best = min(others, key=lambda other: cell.outcome(other, 1)[0].mean)
                seconds = mean(cell.outcome(side, seed)[0].mean for seed in range(1, seeds + 1))
                about = (f"{rate:g}", f"{tokens:,}", f"{mean(each):.2f}", f"{error:.2f}", most)
                names = side + (", p90" if number else ""), best, cost
                told = cell.outcome(side, 1)[1], cell.outcome(best, 1)[1]
                runner.say(*names, *about, f"{seconds:.1f}", *told)
    print(f"\n{num_missed} of {num_bars} missed")


def is_service(folder: Path) -> bool:
    with next(iter(sorted(folder.glob("*.jsonl")))).open() as file:
        return "hash_ids" in json.loads(file.readline())


def production(requests: list[Asked], blocks: Items[int]) -> None:
    seen = len({block for one in requests for block in one.blocks})
    most = 1.0 - seen / sum(len(one.blocks) for one in requests)
    print(f"{len(requests):,} requests, {seen:,} blocks, at most {100 * most:.1f} % found\n")
    runner.head("blocks", *POLICIES, "optimum", texts=0)
    for count in blocks:
        found = [found_in_tree(requests, count, policy(count)) for policy in POLICIES.values()]
        found.append(optimum(requests, count))
        runner.say(f"{count:,}", *(f"{100 * part:.1f}" for part in found))


COMMANDS = runner.commands(main, bars, serve)
