"""Who gets memory and who waits how long: the real scheduler in virtual time, without a model.

    python -m benchmarks.virtual_time pressure [--answers 8,384] [--thinks 0,10,100] [--memory 0.5,0.25]
    python -m benchmarks.virtual_time policies [--requests N]    policy x load x number of hot prefixes
    python -m benchmarks.virtual_time shares [--programs N]      a flood beside a small client

A step takes `FIXED` seconds and each of its tokens `PER_TOKEN`, so that a policy is tried in seconds.
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
from typing import Annotated, Any

from benchmarks import runner
from lmprog.config import PolicyName, SchedulerConfig
from lmprog.radix.frames import WindowPool
from lmprog.runtime.engine.model.resolution import CLOSEST_STATES, STATES_OF_MEMORY
from lmprog.runtime.scheduling.active_programs import Pin
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from lmprog.runtime.scheduling.logits_requests import collect_requests
from lmprog.runtime.scheduling.plan import Plan
from lmprog.runtime.scheduling.recurrent import StatePool
from lmprog.runtime.scheduling.sampling_requests import SampleResult, StepResults
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from lmprog.runtime.tier.page_store import KnownPage, LoadEnd, PageCosts, PageKey
from lmprog.wire import SamplingParams

# -- steps of the scheduler, in which one token is sampled for all

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
TOKEN = 7


def submit(
    scheduler: Scheduler, tokens: Items[int], answer: int, num_settled: int = 0, **fields: Any
) -> SequenceGroup:
    """A generation of `answer` tokens behind `tokens`, in a group with these fields. Raises
    ContextOverflow where it can never run, as a runtime does.
    """
    scheduler.check_fits(len(tokens), answer)
    group = SequenceGroup(prompt_len=len(tokens), **fields)
    settings = GenerationSettings(GREEDY, answer, (), len(tokens))
    held = tokens if isinstance(tokens, array) else array("i", tokens)
    sequence = Sequence(group, held, Generation(settings, 0))
    sequence.num_settled = num_settled
    group.sequences.append(sequence)
    scheduler.submit(group)
    return group


def commit(scheduler: Scheduler, plan: Plan) -> Any:
    """What came of the plan's sequences where each one that samples gets the same token."""
    requests = collect_requests(plan)
    results = StepResults((SampleResult(TOKEN, 0.0),) * len(requests.samples), ())
    return scheduler.commit(plan, requests, results)


# -- programs that take turns in a memory that does not hold all of them

FIXED = 0.004
PER_TOKEN = 0.00015


def step_seconds(num_tokens: int) -> float:
    return FIXED + PER_TOKEN * num_tokens


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
        self.is_shared = False
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

    def abandon(self, ticket: int, *, is_patient: bool = False) -> bool:
        return True

    def find(self, keys: Items[PageKey], states: Items[PageKey] = ()) -> int | None:
        return None

    def forget(self, handles: Items[int], keys: Items[PageKey]) -> None: ...

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
        self,
        chats: list[Chat],
        config: SchedulerConfig,
        at_most: int = 10**9,
        tier: int = 0,
        state: int = 0,
    ) -> None:
        """`tier`: pages of the second tier; `state`: as `states_of` says."""
        self.chats = chats
        self.now = 0.0
        store = VirtualStore(tier, lambda: self.now, self._pass) if tier else None
        states = states_of(config, state)
        self.scheduler = Scheduler(config, CONTEXT, None, lambda: self.now, store, states)
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
        self._pass(step_seconds(plan.num_tokens))
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


def states_of(config: SchedulerConfig, state: int) -> StatePool | None:
    """For a model whose recurrent state takes the memory of `state` tokens: slots beside the pages, as
    an engine has them. 0: it has none.
    """
    if not state:
        return None
    num_tokens, share = config.num_pages * PAGE, STATES_OF_MEMORY / (1.0 - STATES_OF_MEMORY)
    return StatePool(int(num_tokens * share / state), max(CLOSEST_STATES, int(state / share)))


CONFIG = SchedulerConfig(page_size=PAGE, speculation="off")  # its texts repeat nothing
UNLIMITED = replace(CONFIG, admission="unlimited")
MEMORY_POLICIES = {
    "unlimited, fcfs": (replace(UNLIMITED, policy="fcfs"), 10**9, 0.0, 0),
    "unlimited, lpm": (UNLIMITED, 10**9, 0.0, 0),
    "at most ten programs": (UNLIMITED, 10, 0.0, 0),
    "at most five programs": (UNLIMITED, 5, 0.0, 0),
    "programs that fit": (CONFIG, 10**9, 0.0, 0),
    "programs that fit, states of 32": (CONFIG, 10**9, 0.0, 32),
    "unlimited, lpm, second tier": (UNLIMITED, 10**9, 1.0, 0),
    "programs that fit, second tier": (CONFIG, 10**9, 1.0, 0),
}
"""Configuration, most programs at a time, the second tier as a part of what all programs need, and the
tokens whose memory a recurrent state takes.
"""


def outcome(
    name: str, seed: int, answer: int, think: float, memory: float, scale: float
) -> Outcome:
    """One run of one policy."""
    made = chats(seed, answer, think, scale)
    config, at_most, part, state = MEMORY_POLICIES[name]
    tier = -(-int(part * sum(one.length for one in made)) // PAGE)
    config = replace(config, num_pages=pages_for(made, memory))
    return PressureRun(made, config, at_most, tier, state).run()


def pressure(
    *,
    answers: runner.Ints = (8, 384),
    thinks: runner.Floats = (0, 10, 100),
    memory: runner.Floats = (0.5, 0.25),
    scale: float = 0.25,
    seeds: int = 2,
    only: Annotated[str, "policies whose name contains this"] = "",
) -> None:
    """20 programs of 4 turns, questions of 256 to 512 tokens that share nothing; between two turns a
    program thinks, in fixed-cost steps. The columns are percent of possible hits / tokens computed
    over the lower bound / steps / seconds to the last answer / seconds computing.
    """
    cases = list(product(answers, thinks))
    for part in memory:
        titles = [f"answer {answer}, think {think:g}" for answer, think in cases]
        print("\n" + " | ".join([f"memory {part:.0%}", *titles]))
        for name in (one for one in MEMORY_POLICIES if only in one):
            cells = []
            for answer, think in cases:
                runs = [outcome(name, seed, answer, think, part, scale) for seed in range(seeds)]
                figures = zip(*map(astuple, runs), strict=True)
                cells.append(str(Outcome(*map(mean, figures))))
            print(" | ".join([name, *cells]), flush=True)


# -- who waits how long

FAIR = replace(CONFIG, num_pages=4096)
ANSWER = 16
PREFIX, OWN = 1024, 64
COLD_SECONDS = step_seconds(PREFIX + OWN + ANSWER)
HOT_SECONDS = step_seconds(OWN + ANSWER)
POLICIES: list[tuple[PolicyName, float]] = [
    ("fcfs", 60.0),
    ("lpm", 4.0),
    ("lpm", 20.0),
    ("lpm", 60.0),
    ("lpm", 1e9),
    ("dfs", 60.0),
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
    """Requests in the order of their arrival, under one configuration. `state`: see `states_of`."""

    config: SchedulerConfig
    now: float = 0.0
    state: int = 0
    windows: WindowPool | None = None
    num_computed: int = 0

    def run(self, requests: list[Request]) -> float:
        """Answers all; the seconds that takes."""
        apart = states_of(self.config, self.state), self.windows
        scheduler = Scheduler(self.config, CONTEXT, None, lambda: self.now, None, *apart)
        todo, open_ones = list(reversed(requests)), dict[SequenceGroup, Request]()
        while todo or open_ones:
            if not open_ones:
                self.now = max(self.now, todo[-1].at)
            while todo and todo[-1].at <= self.now:
                one = todo.pop()
                open_ones[submit(scheduler, one.prompt, one.answer, client=one.client)] = one
            self._step(scheduler, open_ones)
        self.num_computed = scheduler.stats.computed_tokens
        return self.now

    def _step(self, scheduler: Scheduler, open_ones: dict[SequenceGroup, Request]) -> None:
        plan = scheduler.plan()
        self.now += step_seconds(plan.num_tokens) if plan.rows else 0.001
        for one in commit(scheduler, plan):
            request = open_ones[one.sequence.group]
            request.first_token = request.first_token or self.now
            if one.ended:
                request.ended = self.now
                del open_ones[one.sequence.group]
                if (node := scheduler.end(one.sequence)) is not None:
                    scheduler.unpin(node)


def random_tokens(dice: random.Random, count: int) -> list[int]:
    return dice.choices(range(32_000), k=count)


def mixed(count: int, load: float, num_hot: int, seed: int) -> list[Request]:
    """Half hot, half cold, at `load` times the rate that can be computed."""
    dice = random.Random(seed)
    prefixes = [random_tokens(dice, PREFIX) for _ in range(num_hot)]
    rate, at, found = 2.0 * load / (COLD_SECONDS + HOT_SECONDS), 0.0, []
    for _ in range(count):
        at += dice.expovariate(rate)
        if dice.random() < 0.5:
            found.append(Request(at, "hot", dice.choice(prefixes) + random_tokens(dice, OWN)))
        else:
            found.append(Request(at, "cold", random_tokens(dice, PREFIX + OWN)))
    return found


def policies(*, requests: int = 600) -> None:
    """For each load and number of prefixes, all policies: half of the requests are cold (1,088 tokens
    of their own), half are hot (one of so many prefixes of 1,024 tokens, 64 of their own); all
    generate 16 tokens. They arrive at random, at so many times the rate that the machine can compute.
    Seconds to the first token, p50 / p99.
    """
    print("| load | hot prefixes | policy | cold | hot | all answered after |\n|-:|-:|-|-:|-:|-:|")
    for load, num_hot, (policy, ageing) in product((0.7, 1.0, 1.5), (1, 8, 64), POLICIES):
        arriving = mixed(requests, load, num_hot, seed=1)
        config = replace(FAIR, admission="unlimited", policy=policy, ageing=ageing)
        seconds, cells = QueueRun(config).run(arriving), []
        for kind in ("cold", "hot"):
            p50, p99 = runner.middle_and_p99([one.waited for one in arriving if one.kind == kind])
            cells.append(f"{p50:.2f} / {p99:.2f}")
        name = policy if policy != "lpm" else f"lpm, ageing {ageing:g} s"
        runner.say(f"{load:g}", num_hot, name, *cells, f"{seconds:.1f}")


def shares(*, programs: int = 1000) -> None:
    """One client starts so many programs at once, another sends a request each half second: seconds
    to the small one's first token, and what it costs the flood.
    """
    dice = random.Random(1)
    flood = [Request(0.0, "flood", random_tokens(dice, 256), 32) for _ in range(programs)]
    small = [Request(0.5 * n, "small", random_tokens(dice, 64), 8) for n in range(1, 61)]
    for name, is_fair in (("shared fairly", True), ("as one client", False)):
        for request in [*flood, *small]:
            request.first_token = 0.0
            request.client = request.kind if is_fair else ""
        QueueRun(FAIR).run(sorted([*flood, *small], key=lambda one: one.at))
        p50, p99 = runner.middle_and_p99(one.waited for one in small)
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


COMMANDS = runner.commands(pressure, policies, shares)
