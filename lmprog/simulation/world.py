"""The simulated world: clients, faults and virtual time around the real interpreter, scheduler,
tree and loop.

Everything is drawn from one seed. The invariants are checked after every step. At the end faults
stop and the world must become idle: every call answered once, every page free or cached, nothing
locked, no client remembered.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace
from typing import Any

from lmprog import wire
from lmprog.config import SchedulerConfig, SpeculationName
from lmprog.errors import NotSupported
from lmprog.radix.frames import WindowPool
from lmprog.runtime.loop import Loop
from lmprog.runtime.programs.call_builder import ServedModel
from lmprog.runtime.programs.interpreter import Interpreter
from lmprog.runtime.scheduling.active_programs import ActivePrograms
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.namespaces import AdapterNames
from lmprog.runtime.scheduling.recurrent import StatePool
from lmprog.runtime.scheduling.rows import RunningSequences
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence
from lmprog.runtime.steps import EngineLost, StepEngine, StepSampler
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.simulation.fake_engine import (
    PARTS_OF_STATE,
    FakeDevice,
    FakeEngine,
    FakeStore,
    Floats,
    GuessingSource,
    LetterTokenizer,
)
from lmprog.simulation.plain_sampler import PlainSampler
from lmprog.simulation.reply_checks import ReplyChecks, check_running
from lmprog.simulation.sim_client import ADAPTERS, SimClient
from lmprog.transport.channel import ClientId, Gone

CONTEXT = 120
MOST_IDLE_SECONDS = 40.0
"""Besides what the tokens of a program that pauses cost."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What varies between worlds, drawn from the seed."""

    scheduler: SchedulerConfig
    num_clients: int
    busy: float
    faults: float
    seconds_per_step: float
    seconds_per_token: float
    num_handles: int = 0
    """Pages of a second tier; 0: there is none."""
    floods: float = 0.0
    """Chance per client and step of a frame of forty questions that need no model."""
    pauses: float = 0.0
    """Chance per client and step that its programs think for some thirty steps."""
    seconds_per_look: float = 0.0
    """Time that passes whenever the runtime looks at its clock: messages then take time too."""
    is_ahead: bool = False
    """Whether steps are computed as on a device, where the next one is begun meanwhile."""
    right_drafts: float = 0.0
    """Chance that a drafted token is what the model finds likeliest."""
    states: StatePool | None = None
    """Of a model with recurrent layers, without steps ahead."""
    windows: WindowPool | None = None
    """Of a model with windows, without steps ahead or states."""


def draw(rng: random.Random) -> Scenario:
    """A scenario: tiny to ample pools, all policies, all page sizes, small and large budgets."""
    page_size = rng.choice([1, 2, 4, 16])
    fewest = -(-40 // page_size) + 2
    config = SchedulerConfig(
        page_size=page_size,
        num_pages=fewest + rng.choice([0, 1, 3, 10, 40, 200]),
        token_budget=rng.choice([1, 5, 16, 64, 256]),
        max_rows=rng.choice([1, 3, 8, 64]),
        max_chunk=rng.choice([0, 0, 1, 7]),
        policy=rng.choice(["fcfs", "lpm", "dfs"]),
        ageing=rng.choice([0.0, 0.5, 10.0]),
        admission=rng.choice(["programs", "programs", "unlimited"]),
        share=rng.random() < 0.9,
    )
    return Scenario(
        config,
        num_clients=rng.randrange(1, 5),
        busy=rng.choice([0.05, 0.3, 0.8]),
        faults=rng.choice([0.0, 0.02, 0.1]),
        seconds_per_step=rng.choice([0.0, 0.005, 0.1]),
        seconds_per_token=rng.choice([0.0, 0.0001, 0.01]),
        num_handles=rng.choice([0, 3, 20, 200]),
        floods=rng.choice([0.0, 0.0, 0.02]),
        pauses=rng.choice([0.0, 0.05]),
        seconds_per_look=rng.choice([0.0, 0.0, 0.0005]),
    )


def with_drafts(scenario: Scenario, dice: random.Random) -> Scenario:
    """Two in three with drafts: some mostly right, some never."""
    speculation: SpeculationName = dice.choice(["off", "always", "auto"])
    scheduler = replace(scenario.scheduler, speculation=speculation)
    right = dice.choice([0.0, 0.5, 0.9, 1.0])
    return replace(scenario, scheduler=scheduler, right_drafts=right, is_ahead=dice.random() < 0.5)


def with_states(scenario: Scenario, dice: random.Random) -> Scenario:
    """One in four has recurrent states: hardly any slots to ample ones."""
    if dice.random() >= 0.25:
        return scenario
    slots, every = dice.choice([2, 3, 5, 12, 60, 400]), dice.choice([1, 8, 40, 1000])
    return replace(scenario, is_ahead=False, states=StatePool(slots, every, PARTS_OF_STATE))


def with_windows(scenario: Scenario, dice: random.Random) -> Scenario:
    """One in eight of those without states has windows."""
    has_windows = dice.random() < 0.125 and scenario.states is None
    return windowed(scenario, dice) if has_windows else scenario


def windowed(scenario: Scenario, dice: random.Random) -> Scenario:
    """With windows of some tokens, whose frames are most of the memory or little of it."""
    pages, frames = dice.choice([(1, 5), (1, 1), (7, 2), (0, 3)])
    window = dice.choice([2, 3, 7, 16])
    windows = WindowPool(window, scenario.scheduler.num_pages, pages, frames)
    num_handles = scenario.num_handles if pages else 0
    return replace(scenario, is_ahead=False, num_handles=num_handles, states=None, windows=windows)


def scenario_of(
    seed: int, rng: random.Random | None = None, guessing: random.Random | None = None
) -> Scenario:
    """That of the world of a seed, which goes on with the dice that are given."""
    plain = draw(rng or random.Random(seed))
    # worlds without drafts, states and windows stay as they were
    drafting = with_drafts(plain, guessing or _guessing(seed))
    made = with_states(drafting, random.Random(f"recurrent states of {seed}"))
    return with_windows(made, random.Random(f"windows of {seed}"))


def _guessing(seed: int) -> random.Random:
    return random.Random(f"drafts of {seed}")


class SimChannel:
    """A channel of lists, without threads or time."""

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
    """One seed's world: `step`, then `settle`. Both raise AssertionError on any violation, and
    EngineLost where so many steps in a row were told to fail that the runtime has ended.
    """

    def __init__(
        self, seed: int, scenario: Scenario | None = None, full_check_every: int = 1
    ) -> None:
        """After each step what it touched is checked, after every `full_check_every`-th and at the
        end everything.
        """
        self.seed = seed
        self._full_check_every = full_check_every
        self.rng = random.Random(seed)
        guessing = _guessing(seed)
        self.scenario = scenario or scenario_of(seed, self.rng, guessing)
        self.now = 0.0
        self.steps = 0
        self.num_passes = 0
        self.most_preemptions = 0
        config = self.scenario.scheduler
        tokenizer = LetterTokenizer()
        self.channel = SimChannel()
        states = self.scenario.states
        self.engine = FakeEngine(
            config.num_pages,
            config.page_size,
            tokenizer.vocab_size,
            0 if states is None else states.num_slots,
            windows := self.scenario.windows,
        )
        num_handles, dice = self.scenario.num_handles, random.Random(seed)
        self.store = FakeStore(self.engine, num_handles, dice, self.scenario.faults)
        staging = random.Random(f"staging of {seed}")  # likewise
        self.store.most_staged = staging.choice([None, None, 1, 4])
        store = self.store if num_handles else None
        self.scheduler = Scheduler(config, CONTEXT, None, self.clock, store, states, windows)
        if self.scheduler.drafting is not None:
            self.scheduler.drafting.source = GuessingSource(
                tokenizer.vocab_size, guessing, self.scenario.right_drafts
            )
        adapting = random.Random(f"adapters of {seed}")  # likewise
        self._adapting = adapting if adapting.random() < 0.4 else None
        suspending = random.Random(f"suspended calls of {seed}")  # likewise
        self._suspending = suspending if suspending.random() < 0.5 else None
        adapters = ADAPTERS if self._adapting else {}
        welcome = wire.Welcome(
            wire.PROTOCOL_VERSION,
            "fake",
            CONTEXT,
            tokenizer.vocab_size,
            1,
            1,
            0,
            adapters=adapters,
        )
        model = ServedModel(tokenizer, _no_template, welcome, adapters=AdapterNames(adapters))
        self.interpreter = Interpreter(self.scheduler, model, None, self.clock, random.Random(seed))
        self.sampler = PlainSampler()
        computed: tuple[StepEngine[Any], StepSampler[Any]] = (self, self.sampler)
        self._device: FakeDevice | None = None
        if self.scenario.is_ahead:
            self._device = FakeDevice(self.forward, self.sampler, guessing)
            self.engine.before_access = self._device.drain
            computed = (self._device, self._device)
        self.loop = Loop(self.channel, self.interpreter, self.scheduler, *computed, self.clock)
        self.clients = [
            self._client(b"client-%d" % number) for number in range(self.scenario.num_clients)
        ]
        self._trace = hashlib.blake2b()
        self._seen_running: list[Sequence] = []
        self._last_admission = 0
        self._were_suspended: set[Sequence] = set()
        self._admitted_at: dict[int, float] = {}
        self._note_admissions(self.scheduler._running)
        self._moved_at = 0.0

    @property
    def trace(self) -> str:
        """A hash of all events; equal for equal seeds."""
        return self._trace.hexdigest()[:16]

    def clock(self) -> float:
        self.now += self.scenario.seconds_per_look
        return self.now

    def forward(self, batch: Batch) -> Floats:
        """The fake engine's, which takes time."""
        self.num_passes += 1
        self.now += self.scenario.seconds_per_step + self.scenario.seconds_per_token * len(
            batch.tokens
        )
        return self.engine.forward(batch)

    def step(self) -> None:
        """Clients act, a fault may strike, the loop runs one step, the invariants are checked."""
        rng, scenario = self.rng, self.scenario
        for client in self.clients:
            if rng.random() < scenario.pauses:
                client.silent_until = self.steps + int(rng.expovariate(1 / 30))
            if rng.random() < scenario.floods:
                self.channel.inbox += [(client.name, op) for op in client.flood()]
            is_silent = self.steps < client.silent_until
            if not is_silent and rng.random() < scenario.busy and client.num_waiting < 12:
                self.channel.inbox += [(client.name, op) for op in client.act()]
        if self._suspending is not None and self._suspending.random() < 0.2:
            client = self._suspending.choice(self.clients)
            ops = client.read_slowly(self._suspending)
            self.channel.inbox += [(client.name, op) for op in ops]
        if rng.random() < scenario.faults:
            self._fault()
        self._turn()

    def settle(self, most: int = 20_000) -> None:
        """No more faults or programs: everything must be answered and freed."""
        for client in self.clients:
            self.channel.inbox += [(client.name, op) for op in client.read_all()]
            if self.rng.random() < 0.5:
                self.channel.inbox += [(client.name, op) for op in client.leave()]
        for _ in range(most):
            tier = self.scheduler.tier
            is_loading = tier is not None and (tier.pages_held() or tier.slots_held())
            is_said = not self.channel.inbox and not self.loop.inbox.num_ops
            if (
                self.scheduler.idle
                and is_said
                and not is_loading
                and not self.interpreter.is_working
            ):
                break
            self._turn()
        for client in self.clients:
            unanswered = [issued.op for issued in client.calls.values() if not issued.ended]
            assert not unanswered, f"never answered: {unanswered[:3]}"
            self.channel.inbox.append((client.name, Gone()))
        self._turn()
        while self.loop.inbox.num_ops:
            self._turn()
        tree, pages = self.scheduler.tree, self.scheduler.pages
        assert not self.interpreter.clients, "vanished clients are forgotten"
        self.scheduler.check()
        assert tree.num_evictable == tree.num_cached, "nothing is locked when nothing runs"
        tree.clear()
        assert pages.num_free == pages.num_pages, "all pages are freed"
        if (states := self.scheduler.tables.states) is not None:
            slots = states.snapshots.slots
            assert slots.num_free == slots.num_pages, "all slots of states are freed"

    def _client(self, name: bytes) -> SimClient:
        self.channel.inbox.append((name, wire.Hello(wire.PROTOCOL_VERSION)))
        rng = random.Random(self.rng.getrandbits(64))
        return SimClient(
            name,
            rng,
            ReplyChecks(self.scheduler.longest_sequence, self.clock, self._num_faults_told),
            self._adapting,
        )

    def _num_faults_told(self) -> int:
        """One that ended a step nobody waits for is told later, to calls that came since."""
        is_untold = self._device is not None and self._device.has_untold_fault
        return self.engine.num_faults - is_untold

    def _fault(self) -> None:
        kind = self.rng.choice(["step", "row", "preempt", "gone", "jump"])
        if kind == "preempt" and self.scheduler.running:
            self.scheduler.preempt(self.rng.choice(self.scheduler.running))
        elif kind == "step":
            self.engine.fail_next = True
        elif kind == "row":
            self.engine.bad_row = self.rng.randrange(3)
        elif kind == "jump":
            jump = self.rng.uniform(0.0, 30.0)
            self.now += jump
            self._moved_at += jump  # nobody could have got on meanwhile
        elif kind == "gone":
            index = self.rng.randrange(len(self.clients))
            gone = self.clients[index]
            self.channel.inbox.append((gone.name, Gone()))
            self.clients[index] = self._client(b"%s'" % gone.name)

    def _turn(self) -> None:
        self.now += self.rng.uniform(0.001, 0.1)
        self.steps += 1
        before = self.scheduler.stats.steps
        try:
            self.loop.step()
        except EngineLost as error:
            told, failed = self.engine.num_faults, self.scheduler.stats.failed_steps
            if failed > told:
                raise AssertionError(
                    f"{failed} steps failed, {told} were told to: {error}"
                ) from error
            raise
        self._check_progress(self.scheduler.stats.steps > before)
        self._check_overtaking()
        self._check_invariants()
        sent, self.channel.sent = self.channel.sent, []
        self._trace.update(b"%d %d " % (self.steps, self.scheduler.stats.computed_tokens))
        if not sent:
            return
        clients = {client.name: client for client in self.clients}
        for name, reply in sent:
            if not isinstance(reply, wire.Described):  # it names the process
                self._trace.update(wire.encode((reply,)))
            if name in clients:
                clients[name].receive(reply)

    def _check_invariants(self) -> None:
        check_running(self.scheduler)
        assert not self.scheduler.stats.invariant_failures, "the loop found a broken invariant"
        if self.steps % self._full_check_every == 0:
            self.scheduler.check()

    def _check_progress(self, moved: bool) -> None:
        """If any sequence waits or runs, some sequence makes progress."""
        if moved or self.scheduler.idle:
            self._moved_at = self.now
        # It may idle for the place of a program that pauses, but no longer than its tokens cost.
        waited = self.now - self._moved_at - MOST_IDLE_SECONDS
        if waited > 0.0:
            costs, config = self.scheduler.costs, self.scenario.scheduler
            bound = costs.per_token * config.num_pages * config.page_size
            assert waited <= bound, "sequences wait and none makes progress"
        most = self.scenario.scheduler.num_pages.bit_length() + 1
        for sequence in self.scheduler.running:
            self.most_preemptions = max(self.most_preemptions, sequence.num_memory_preemptions)
            assert sequence.num_memory_preemptions <= most, (
                f"a sequence was preempted {sequence.num_memory_preemptions} times, bound {most}"
            )

    def _note_admissions(self, running: RunningSequences) -> None:
        """When a sequence of each program was last admitted, also one that ends in that step."""
        admit_next = running.admit_next

        def admit(step: int, now: float, before: Sequence | None = None) -> Sequence | None:
            sequence = admit_next(step, now, before)
            if sequence is not None:
                self._admitted_at[ActivePrograms.number_of(sequence)] = now
            return sequence

        running.admit_next = admit  # type: ignore[method-assign]

    def _check_overtaking(self) -> None:
        """Bounded waiting: no sequence is overtaken by one of its client that came too much later
        than it, and than the last sequence of its program that was admitted. What was suspended may
        be overtaken by what ran before and runs again: that one was admitted meanwhile.
        """
        running, seen = self.scheduler.running, self._seen_running
        self._were_suspended.update(self.scheduler.suspended)
        if running == seen:
            return
        self._seen_running, before = running[:], set(seen)
        admitted = [one for one in running if one not in before]
        if not admitted:
            return
        last = self._last_admission
        self._last_admission = max(last, running[-1].admission_order)
        order = self.scheduler.waiting.order
        waiting: dict[object, list[Sequence]] = {}
        for sequence in self.scheduler.waiting:
            if not sequence.admission_order:
                waiting.setdefault(sequence.group.client, []).append(sequence)
        for sequence in admitted:
            for other in waiting.get(sequence.group.client, ()):
                higher = sequence.group.priority - other.group.priority
                if order.policy == "dfs":
                    behind = sequence.sweep - other.sweep
                    assert behind <= 1 + max(0, higher), f"overtaken by {behind} sweeps"
                    continue
                if other in self._were_suspended and sequence.admission_order <= last:
                    continue
                since = self._admitted_at.get(ActivePrograms.number_of(other), other.queued_at)
                seconds = sequence.queued_at - max(since, other.queued_at)
                bound = order.overtaking_bound(higher)
                assert seconds <= bound, f"overtaken by {seconds:.3f} s, bound {bound:.3f} s"


def _no_template() -> ChatTemplate:
    raise NotSupported("the simulation has no chat template")
