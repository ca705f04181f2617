"""The simulated world: clients, faults and virtual time around the real interpreter, scheduler,
tree and loop.

Everything comes from one seed. After every step the invariants are checked; at the end faults stop
and everything must come to rest: every call answered once, every page free or cached, nothing
locked, nobody remembered.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace

from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.errors import NotSupported
from lmprog.runtime.loop import Loop
from lmprog.runtime.programs.call_builder import CallBuilder, CallLimits
from lmprog.runtime.programs.interpreter import Interpreter
from lmprog.runtime.scheduling.policy import overtaking_bound
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.simulation.fake_engine import FakeEngine
from lmprog.simulation.letters import LetterTokenizer
from lmprog.simulation.plain_sampler import PlainSampler
from lmprog.simulation.sim_client import SimClient
from lmprog.transport.channel import ClientId, Gone

CONTEXT = 120


@dataclass(frozen=True, slots=True)
class Scenario:
    """What varies between worlds; drawn from the seed by `draw`."""

    scheduler: SchedulerConfig
    num_clients: int
    busy: float
    faults: float


def draw(rng: random.Random) -> Scenario:
    """A scenario: pools from hardly enough to plenty, all policies, all page sizes, small and large
    budgets.
    """
    page_size = rng.choice([1, 2, 4, 16])
    fewest = -(-40 // page_size) + 2
    config = SchedulerConfig(
        page_size=page_size,
        num_pages=fewest + rng.choice([0, 1, 3, 10, 40, 200]),
        token_budget=rng.choice([1, 5, 16, 64, 256]),
        max_rows=rng.choice([1, 3, 8, 64]),
        max_chunk=rng.choice([0, 0, 1, 7]),
        policy=rng.choice(["fcfs", "lpm", "dfs"]),
        ageing=rng.choice([1, 4, 64]),
        share=rng.random() < 0.9,
    )
    return Scenario(
        config, rng.randrange(1, 5), rng.choice([0.05, 0.3, 0.8]), rng.choice([0.0, 0.02, 0.1])
    )


class SimChannel:
    """Frames in lists; no threads, no time."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.inbox: list[tuple[ClientId, wire.Op | Gone]] = []
        self.sent: list[tuple[ClientId, wire.Reply]] = []

    def receive(self, wait: float) -> list[tuple[ClientId, wire.Op | Gone]]:
        messages, self.inbox = self.inbox, []
        return messages

    def send(self, replies: object) -> None:
        assert isinstance(replies, list)
        self.sent += replies

    def close(self) -> None:
        """Nothing to free."""


class World:
    """One seed's world. `step` moves it, `settle` brings it to rest; both raise AssertionError on
    any violation.
    """

    def __init__(self, seed: int, scenario: Scenario | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.scenario = scenario or draw(self.rng)
        self.now = 0.0
        self.steps = 0
        self.most_preemptions = 0
        config = self.scenario.scheduler
        tokenizer = LetterTokenizer()
        self.channel = SimChannel()
        self.scheduler = Scheduler(config, CONTEXT)
        self.engine = FakeEngine(config.num_pages, config.page_size, tokenizer.vocab_size)
        limits = CallLimits(
            tokenizer.vocab_size, self.scheduler.longest_sequence, self.scheduler.check_fits
        )
        calls = CallBuilder(tokenizer, limits, None, None, random.Random(seed))
        welcome = wire.Welcome(
            wire.PROTOCOL_VERSION, "fake", CONTEXT, tokenizer.vocab_size, 1, 1, 0
        )
        self.interpreter = Interpreter(self.scheduler, calls, _no_template, welcome, self.clock)
        self.loop = Loop(
            self.channel, self.interpreter, self.scheduler, self.engine, PlainSampler(), self.clock
        )
        self.clients = [
            self._client(b"client-%d" % number) for number in range(self.scenario.num_clients)
        ]
        self._trace = hashlib.blake2b()
        self._arrived: dict[Sequence, int] = {}
        self._stuck = 0

    @property
    def trace(self) -> str:
        """A hash of everything that happened; equal for equal seeds."""
        return self._trace.hexdigest()[:16]

    def clock(self) -> float:
        return self.now

    def step(self) -> None:
        """Clients act, perhaps something fails, the loop turns once, everything is checked."""
        rng, scenario = self.rng, self.scenario
        for client in self.clients:
            if rng.random() < scenario.busy and len(client.waiting) < 12:
                self.channel.inbox += [(client.name, op) for op in client.act()]
        if rng.random() < scenario.faults:
            self._fault()
        self._turn()

    def settle(self, most: int = 20_000) -> None:
        """No more faults and no more programs: everything must be answered and freed."""
        for client in self.clients:
            if self.rng.random() < 0.5:
                self.channel.inbox += [(client.name, op) for op in client.leave()]
        for _ in range(most):
            if self.scheduler.idle and not self.channel.inbox:
                break
            self._turn()
        for client in self.clients:
            unanswered = [asked.op for asked in client.asked.values() if not asked.ended]
            assert not unanswered, f"never answered: {unanswered[:3]}"
            self.channel.inbox.append((client.name, Gone()))
        self._turn()
        tree, pages = self.scheduler.tree, self.scheduler.pages
        assert not self.interpreter.clients, "clients that are gone are forgotten"
        assert tree.num_evictable == tree.num_cached, "nothing is locked when nobody runs"
        tree.clear()
        assert pages.num_free == pages.num_pages, "all pages come back"

    # --- inside
    # --------------------------------------------------------------------------------------------------

    def _client(self, name: bytes) -> SimClient:
        self.channel.inbox.append((name, wire.Hello(wire.PROTOCOL_VERSION)))
        rng = random.Random(self.rng.getrandbits(64))
        return SimClient(
            name, rng, self.scheduler.longest_sequence, self.clock, lambda: self.engine.num_faults
        )

    def _fault(self) -> None:
        kind = self.rng.choice(["step", "row", "preempt", "gone", "jump"])
        if kind == "preempt" and self.scheduler.running:
            self.scheduler.preempt(self.rng.choice(self.scheduler.running))
        elif kind == "step":
            self.engine.fail_next = True
        elif kind == "row":
            self.engine.bad_row = self.rng.randrange(3)
        elif kind == "jump":
            self.now += self.rng.uniform(0.0, 30.0)
        elif kind == "gone":
            index = self.rng.randrange(len(self.clients))
            gone = self.clients[index]
            self.channel.inbox.append((gone.name, Gone()))
            self.clients[index] = self._client(b"%s'" % gone.name)

    def _turn(self) -> None:
        self.now += self.rng.uniform(0.001, 0.1)
        self.steps += 1
        before = self.scheduler.stats.steps
        self.loop.step()
        self._check_progress(self.scheduler.stats.steps > before)
        self._check_overtaking()
        self.scheduler.check()
        sent, self.channel.sent = self.channel.sent, []
        self._trace.update(repr((self.steps, self.scheduler.stats.computed_tokens, sent)).encode())
        clients = {client.name: client for client in self.clients}
        for name, reply in sent:
            if name in clients:
                clients[name].hear(reply)

    def _check_progress(self, moved: bool) -> None:
        """If anybody waits or runs, somebody moves."""
        self._stuck = 0 if moved or self.scheduler.idle else self._stuck + 1
        assert self._stuck < 3, "somebody waits and nobody moves"
        bound = self.scenario.scheduler.num_pages.bit_length() + 1
        for sequence in self.scheduler.running:
            self.most_preemptions = max(self.most_preemptions, sequence.num_memory_preemptions)
            assert sequence.num_memory_preemptions <= bound, (
                f"a sequence was preempted {sequence.num_memory_preemptions} times, bound {bound}"
            )

    def _check_overtaking(self) -> None:
        """Bounded waiting: nobody is overtaken by a sequence that came too long after it."""
        config, scheduler = self.scenario.scheduler, self.scheduler
        if config.policy == "dfs":
            return
        bound = overtaking_bound(CONTEXT, config.ageing) if config.policy == "lpm" else 0
        waiting = {
            sequence: sequence.arrival
            for sequence in scheduler.line
            if not sequence.admission_order
        }
        oldest = min(waiting.values(), default=None)
        for sequence in scheduler.running:
            if sequence not in self._arrived and oldest is not None:
                assert sequence.arrival <= oldest + bound, (
                    f"{sequence.arrival} overtook {oldest}, bound {bound}"
                )
        self._arrived = {sequence: sequence.arrival for sequence in scheduler.running}


def shrunk(scenario: Scenario, **changes: object) -> Scenario:
    """The scenario with another scheduler setting: for tests of one thing."""
    return replace(scenario, scheduler=replace(scenario.scheduler, **changes))  # type: ignore[arg-type]


def _no_template() -> ChatTemplate:
    raise NotSupported("the simulation has no chat template")
