"""Programs that take turns in a memory that does not hold all of them, in virtual time: `python -m
benchmarks.memory_pressure`.

    python -m benchmarks.memory_pressure [--answers 8,384] [--thinks 0,10,100] [--memory 0.5,0.25] [--scale S]

The scheduler is the real one, without a model: a step takes `FIXED` seconds and each of its tokens
`PER_TOKEN`, so that a policy is tried in seconds. 20 programs of 4 turns, questions of 256 to 512
tokens that share nothing; between two turns a program thinks, in fixed-cost steps. The columns are
percent of possible hits / tokens computed over the lower bound / steps / seconds to the last answer
/ seconds computing.
"""

from __future__ import annotations

import heapq
import random
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import astuple, dataclass, field, replace
from itertools import product
from statistics import mean
from typing import Annotated

from benchmarks import runner
from benchmarks.virtual_steps import commit, submit
from lmprog.config import SchedulerConfig
from lmprog.runtime.scheduling.active_programs import Pin
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from lmprog.runtime.tier.page_store import KnownPage, LoadEnd, PageCosts, PageKey

FIXED = 0.004
PER_TOKEN = 0.00015
PAGE_COSTS = PageCosts(0.0001, 0.0001)
"""Of the second tier, to store and to load a page: what the page cache of a small machine takes."""
MOST_STAGED = 48
"""Pages under way to the second tier at a time: as many of 88 million weights in float32 are in what the
runtime has in memory for that."""
CONTEXT = 4096
PAGE = 16
TURNS = 4


@dataclass(eq=False)
class Chat:
    """One program: its questions, its tokens so far, its pin."""

    number: int
    questions: list[list[int]]
    answer: int
    pauses: list[float]
    tokens: array[int] = field(default_factory=lambda: array("i"))
    pin: Pin | None = None
    turn: int = 0

    @property
    def length(self) -> int:
        """Tokens at its end."""
        return sum(map(len, self.questions)) + len(self.questions) * self.answer

    @property
    def num_possible(self) -> int:
        """Tokens that its later turns can find; the last one of an answer is computed with the next
        question."""
        turns = range(1, len(self.questions))
        return sum(sum(map(len, self.questions[:t])) + self.answer * t - 1 for t in turns)


def chats(seed: int, answer: int, think: float, scale: float) -> list[Chat]:
    """20 chats; a pause is exponential with a mean of `think` fixed-cost steps."""
    dice = random.Random(seed)

    def text() -> list[int]:
        return dice.choices(range(32_000), k=int(scale * dice.randrange(256, 513)))

    def pause() -> float:
        return dice.expovariate(1 / (think * FIXED)) if think else 0.0

    size = max(1, int(scale * answer))
    return [
        Chat(number, [text() for _ in range(TURNS)], size, [pause() for _ in range(TURNS)])
        for number in range(1, 21)
    ]


def pages_for(some: list[Chat], memory: float) -> int:
    """Pages for that part of what they need, and for two of them at least."""
    lengths = [one.length for one in some]
    return -(-max(int(memory * sum(lengths)), 2 * max(lengths)) // PAGE)


class VirtualStore:
    """A second tier of `num_handles` pages without contents. Stores come one after the other, loads
    too; each page takes virtual time. It takes no more pages than `MOST_STAGED` at a time.
    """

    def __init__(
        self, num_handles: int, clock: Callable[[], float], wait: Callable[[float], None]
    ) -> None:
        """`wait` lets so many seconds pass."""
        self.num_handles = num_handles
        self.costs = PAGE_COSTS
        self._clock = clock
        self._wait = wait
        self._ready_at = self._written_at = 0.0
        self._num_loads = 0
        self._loads: list[tuple[float, LoadEnd]] = []

    def known(self) -> list[KnownPage]:
        return []

    def store(self, handle: int, page: int, key: PageKey, wait: float = 0.0) -> bool:
        missing = self._written_at - self._clock() - PAGE_COSTS.store * (MOST_STAGED - 1)
        if missing > max(wait, 1e-9):
            return False
        self._wait(max(0.0, missing))
        self._written_at = max(self._written_at, self._clock()) + PAGE_COSTS.store
        return True

    def load(self, handles: Items[int], pages: Items[int], keys: Items[PageKey]) -> int:
        self._ready_at = max(self._ready_at, self._clock()) + PAGE_COSTS.load * len(pages)
        self._num_loads += 1
        self._loads.append((self._ready_at, LoadEnd(self._num_loads, len(pages))))
        return self._num_loads

    def finished(self) -> list[LoadEnd]:
        now = self._clock()
        ended = [end for at, end in self._loads if at <= now]
        self._loads = [(at, end) for at, end in self._loads if at > now]
        return ended

    def abandon(self, ticket: int) -> None: ...

    def forget(self, handles: Items[int]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """What a run took."""

    hits: float
    computed: float
    steps: float
    wall: float
    busy: float

    def __str__(self) -> str:
        return (
            f"{100 * self.hits:.0f} / {self.computed:.2f} / {self.steps:.0f} / {self.wall:.1f} / "
            f"{self.busy:.1f}"
        )


class PressureRun:
    """One workload under one configuration. `at_most`: programs at a time, by the client."""

    def __init__(
        self, chats: list[Chat], config: SchedulerConfig, at_most: int = 10**9, tier: int = 0
    ) -> None:
        """`tier`: pages of the second tier."""
        self.chats = chats
        self.now = 0.0
        store = VirtualStore(tier, lambda: self.now, self._pass) if tier else None
        self.scheduler = Scheduler(config, CONTEXT, clock=lambda: self.now, store=store)
        self.busy = 0.0
        self.cached = 0
        self.running: dict[SequenceGroup, Chat] = {}
        self.paused: list[tuple[float, int, Chat]] = []
        self.todo = list(reversed(chats))
        self.num_open = 0
        self.at_most = at_most

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self.busy += seconds

    def run(self) -> Outcome:
        steps = 0
        while self.todo or self.num_open:
            while self.todo and self.num_open < self.at_most:
                self.num_open += 1
                self._ask(self.todo.pop())
            while self.paused and self.paused[0][0] <= self.now:
                self._ask(heapq.heappop(self.paused)[2])
            if self.scheduler.idle:
                self.now = self.paused[0][0]
                continue
            steps += self._step()
        possible = sum(chat.num_possible for chat in self.chats)
        least = sum(len(chat.tokens) - 1 for chat in self.chats)
        computed = self.scheduler.stats.computed_tokens / least
        return Outcome(self.cached / possible, computed, steps, self.now, self.busy)

    def _ask(self, chat: Chat) -> None:
        settled = len(chat.tokens) if chat.turn else 0
        chat.tokens.extend(chat.questions[chat.turn])
        group = submit(self.scheduler, chat.tokens, chat.answer, settled, program=chat.number)
        self.running[group] = chat

    def _step(self) -> int:
        """Runs a step, or lets a millisecond pass where the scheduler waits for a program."""
        plan = self.scheduler.plan()
        if not plan.rows:
            self.now += 0.001
            return 0
        self._pass(FIXED + PER_TOKEN * plan.num_tokens)
        for one in commit(self.scheduler, plan):
            if one.ended:
                self._ended(one.sequence)
        return 1

    def _ended(self, sequence: Sequence) -> None:
        chat = self.running.pop(sequence.group)
        self.cached += sequence.group.cached
        chat.tokens = sequence.tokens
        node, old, pins = self.scheduler.end(sequence), chat.pin, self.scheduler.pins
        assert node is not None
        chat.turn += 1
        is_over = chat.turn == len(chat.questions)
        chat.pin = None if is_over else pins.pin(node, chat.number)
        if old is not None:
            pins.unpin(old)
        self.scheduler.unpin(node)
        if is_over:
            self.num_open -= 1
        else:
            heapq.heappush(self.paused, (self.now + chat.pauses.pop(), chat.number, chat))


CONFIG = SchedulerConfig(page_size=PAGE, speculation="off")  # its texts repeat nothing
UNLIMITED = replace(CONFIG, admission="unlimited")
POLICIES = {
    "unlimited, fcfs": (replace(UNLIMITED, policy="fcfs"), 10**9, 0.0),
    "unlimited, lpm": (UNLIMITED, 10**9, 0.0),
    "at most ten programs": (UNLIMITED, 10, 0.0),
    "at most five programs": (UNLIMITED, 5, 0.0),
    "programs that fit": (CONFIG, 10**9, 0.0),
    "unlimited, lpm, second tier": (UNLIMITED, 10**9, 1.0),
    "programs that fit, second tier": (CONFIG, 10**9, 1.0),
}
"""Configuration, most programs at a time, and the second tier as a part of what all programs need.
"""


def outcome(
    name: str, seed: int, answer: int, think: float, memory: float, scale: float
) -> Outcome:
    """One run of one policy."""
    made = chats(seed, answer, think, scale)
    config, at_most, part = POLICIES[name]
    tier = -(-int(part * sum(one.length for one in made)) // PAGE)
    return PressureRun(
        made, replace(config, num_pages=pages_for(made, memory)), at_most, tier
    ).run()


@runner.command
def main(
    *,
    answers: runner.Ints = (8, 384),
    thinks: runner.Floats = (0, 10, 100),
    memory: runner.Floats = (0.5, 0.25),
    scale: float = 0.25,
    seeds: int = 2,
    only: Annotated[str, "policies whose name contains this"] = "",
) -> None:
    cases = list(product(answers, thinks))
    for part in memory:
        titles = [f"answer {answer}, think {think:g}" for answer, think in cases]
        print("\n" + " | ".join([f"memory {part:.0%}", *titles]))
        for name in (one for one in POLICIES if only in one):
            cells = []
            for answer, think in cases:
                runs = [outcome(name, seed, answer, think, part, scale) for seed in range(seeds)]
                figures = zip(*map(astuple, runs), strict=True)
                cells.append(str(Outcome(*map(mean, figures))))
            print(" | ".join([name, *cells]), flush=True)
