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

import argparse
import heapq
import random
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace

from lmprog.config import SchedulerConfig
from lmprog.runtime.scheduling.active_programs import Pin
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from lmprog.runtime.scheduling.logits_requests import collect_requests
from lmprog.runtime.scheduling.sampling_requests import SampleResult, StepResults
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from lmprog.runtime.tier.page_store import KnownPage, LoadEnd, PageCosts, PageKey
from lmprog.wire import SamplingParams

FIXED = 0.004
PER_TOKEN = 0.00015
PAGE_COSTS = PageCosts(0.0001, 0.0001)
"""Of the second tier, to store and to load a page: what the page cache of a small machine takes."""
MOST_STAGED = 48
"""Pages under way to the second tier at a time: as many of 88 million weights in float32 are in what the
runtime has in memory for that."""
CONTEXT = 4096
PAGE = 16
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


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
        now = self._clock()
        missing = self._written_at - now - PAGE_COSTS.store * (MOST_STAGED - 1)
        if missing > max(wait, 1e-9):
            return False
        self._wait(max(0.0, missing))
        self._written_at = max(self._written_at, self._clock()) + PAGE_COSTS.store
        return True

    def load(self, handles: Items[int], pages: Items[int], keys: Items[PageKey]) -> int:
        self._ready_at = max(self._ready_at, self._clock()) + PAGE_COSTS.load * len(pages)
        self._num_loads += 1
        ticket = self._num_loads
        self._loads.append((self._ready_at, LoadEnd(ticket, len(pages))))
        return ticket

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
        store = VirtualStore(tier, self._time, self._pass) if tier else None
        self.scheduler = Scheduler(config, CONTEXT, clock=self._time, store=store)
        self.busy = 0.0
        self.cached = 0
        self.running: dict[SequenceGroup, Chat] = {}
        self.paused: list[tuple[float, int, Chat]] = []
        self.todo = list(reversed(chats))
        self.num_open = 0
        self.at_most = at_most

    def _time(self) -> float:
        return self.now

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
        lengths = [len(chat.tokens) for chat in self.chats]
        possible = sum(  # the last token of an answer is computed with the next question
            sum(len(question) for question in chat.questions[:turn]) + chat.answer * turn - 1
            for chat in self.chats
            for turn in range(1, len(chat.questions))
        )
        stats = self.scheduler.stats
        computed = stats.computed_tokens / (sum(lengths) - len(lengths))
        return Outcome(self.cached / possible, computed, steps, self.now, self.busy)

    def _ask(self, chat: Chat) -> None:
        chat.tokens.extend(chat.questions[chat.turn])
        group = SequenceGroup(prompt_len=len(chat.tokens), program=chat.number)
        settings = GenerationSettings(GREEDY, chat.answer, (), len(chat.tokens))
        sequence = Sequence(group, chat.tokens, Generation(settings, 0))
        sequence.num_settled = len(chat.tokens) - len(chat.questions[chat.turn]) if chat.turn else 0
        group.sequences.append(sequence)
        self.running[group] = chat
        self.scheduler.submit(group)

    def _step(self) -> int:
        """Runs a step, or lets a millisecond pass where the scheduler waits for a program."""
        plan = self.scheduler.plan()
        if not plan.rows:
            self.now += 0.001
            return 0
        seconds = FIXED + PER_TOKEN * plan.num_tokens
        self.now += seconds
        self.busy += seconds
        requests = collect_requests(plan)
        results = StepResults((SampleResult(7, 0.0),) * len(requests.samples), ())
        for one in self.scheduler.commit(plan, requests, results):
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


def chats(seed: int, answer: int, think: float, scale: float) -> list[Chat]:
    """20 chats; a pause is exponential with a mean of `think` fixed-cost steps."""
    dice = random.Random(seed)

    def text() -> list[int]:
        return dice.choices(range(32_000), k=int(scale * dice.randrange(256, 513)))

    return [
        Chat(
            number,
            [text() for _ in range(4)],
            max(1, int(scale * answer)),
            [dice.expovariate(1 / (think * FIXED)) if think else 0.0 for _ in range(4)],
        )
        for number in range(1, 21)
    ]


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
    sizes = [sum(map(len, chat.questions)) + 4 * chat.answer for chat in made]
    tokens = max(int(memory * sum(sizes)), 2 * max(sizes))
    config, at_most, part = POLICIES[name]
    tier = -(-int(part * sum(sizes)) // PAGE)
    return PressureRun(made, replace(config, num_pages=-(-tokens // PAGE)), at_most, tier).run()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--answers", default="8,384")
    parser.add_argument("--thinks", default="0,10,100")
    parser.add_argument("--memory", default="0.5,0.25")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="", help="policies whose name contains this")
    asked = parser.parse_args()
    for memory in map(float, asked.memory.split(",")):
        cases = [
            (int(answer), float(think))
            for answer in asked.answers.split(",")
            for think in asked.thinks.split(",")
        ]
        print(
            f"\nmemory {memory:.0%} | " + " | ".join(f"answer {a}, think {t:g}" for a, t in cases)
        )
        for name in POLICIES:
            if asked.only in name:
                runs = [
                    [outcome(name, s, a, t, memory, asked.scale) for s in range(asked.seeds)]
                    for a, t in cases
                ]
                print(f"{name} | " + " | ".join(str(_mean(some)) for some in runs), flush=True)


def _mean(some: list[Outcome]) -> Outcome:
    names = ("hits", "computed", "steps", "wall", "busy")
    return Outcome(*(sum(getattr(one, name) for one in some) / len(some) for name in names))


if __name__ == "__main__":
    main()
