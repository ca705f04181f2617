"""Owns every page that is not free and all sequences, and moves them through steps.

Pure: no randomness, no transport, no tensors. A step: `plan`, the forward pass, `commit`.

Life of a sequence: it waits in the queue; it is *admitted* once its prefix is matched and locked
and the pages it needs next can be freed (`admission`); then each step gives it a row
(`StepPlanner`). Known tokens enter the tree when they are planned, so that other sequences of
the same step already share them; generated tokens enter when the sequence ends. Others that need
its memory can send it back to the queue. A sequence that does not fit the memory alone is
refused (`check_fits`).

All work (prefill chunks, decodes, forced tokens, scorings) is rows of one plan under one token
budget. Prefills are cut so that the step lasts no longer than it may (`StepCosts`): beside decodes
and calls of other clients a short time, else at most `ALONE_SECONDS`. Clients take turns with them,
the one that was served least first; within a client those that run go before those that wait.

When there was no work for a while, memory goes back to the system (`IdleMemory`): cached prefixes
that no branch stands on are given up (where there is a second tier, it has them), and the memory of
free pages and of free slots of states is returned, with what the allocator of C keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import inf
from typing import TYPE_CHECKING

from lmprog import heap
from lmprog.config import SchedulerConfig
from lmprog.errors import ContextOverflow, LmprogError
from lmprog.radix import Node, PageAllocator, RadixTree
from lmprog.radix.eviction import ExpectedReuse
from lmprog.runtime.scheduling.active_programs import ActivePrograms, Memory, Pins
from lmprog.runtime.scheduling.admission import ProgramAdmission
from lmprog.runtime.scheduling.logits_requests import LogitsRequests, Progress, apply_results
from lmprog.runtime.scheduling.page_tables import PageTables
from lmprog.runtime.scheduling.plan import Plan, Row, RowDraft
from lmprog.runtime.scheduling.rows import RunningSequences, StepPlanner
from lmprog.runtime.scheduling.sampling_requests import StepResults
from lmprog.runtime.scheduling.sequence import (
    Client,
    Sequence,
    SequenceGroup,
    SequenceState,
    SessionTurn,
    check_sequences,
)
from lmprog.runtime.scheduling.sessions import Sessions
from lmprog.runtime.scheduling.stats import Stats
from lmprog.runtime.scheduling.step_costs import StepCosts
from lmprog.runtime.scheduling.waiting_queue import (
    AdmissionOrder,
    ClientShares,
    WaitingQueue,
    preemption_order,
)

if TYPE_CHECKING:
    from lmprog.radix.frames import WindowPool
    from lmprog.runtime.scheduling.drafting import Drafting
    from lmprog.runtime.scheduling.recurrent import RecurrentStates, StatePool
    from lmprog.runtime.scheduling.window_pages import Windows
    from lmprog.runtime.tier.page_store import PageStore
    from lmprog.runtime.tier.second_tier import SecondTier


_NOTHING = Plan()


@dataclass(eq=False, slots=True)
class StepHooks:
    """What hangs on the steps of a scheduler, beside what every step does. Each list is called in
    its order; what is switched off is in none.
    """

    extend_rows: list[Callable[[list[Row], int], dict[int, RowDraft]]] = field(default_factory=list)
    """Lengthens rows by tokens that are not known, so many at most; returns these by row."""
    planned: list[Callable[[Plan, int], object]] = field(default_factory=list)
    """A step is planned with everything known, and so much of its budget is left."""
    committed: list[Callable[[Plan, Mapping[int, int], float], object]] = field(
        default_factory=list
    )
    """The results of a step that began then are applied; by row, how many tokens that were not
    known were right.
    """
    submitted: list[Callable[[SequenceGroup], object]] = field(default_factory=list)
    """A group was queued, and its sequences have been looked up."""
    spare: list[Callable[[], object]] = field(default_factory=list)
    """A step is planned for which nobody has anything to compute; it may submit a group to it."""
    idle: list[Callable[[float], object]] = field(default_factory=list)
    """A turn at that time had no work; true where it has more to do then, and the next turn shall
    come at once.
    """


class Scheduler:
    """Owns the tree, the pages and all sequences."""

    def __init__(
        self,
        config: SchedulerConfig,
        context_len: int,
        stats: Stats | None = None,
        clock: Callable[[], float] | None = None,
        store: PageStore | None = None,
        states: StatePool | None = None,
        windows: WindowPool | None = None,
    ) -> None:
        """Without a clock, time is counted in work: one second for a step and for each token. With
        a store, evicted pages go to a second tier. `states` has those of a model with recurrent
        layers, `windows` the memory of one whose layers with windows have frames of their own.
        """
        assert config.num_pages > 0, "the engine says how many pages there are"
        self.config = config
        self.context_len = context_len
        self.stats = stats or Stats()
        assert windows is None or states is None, "states have no frames"
        seen = None if windows is None else self._windows(windows)
        self.pages = PageAllocator(config.num_pages) if seen is None else seen.pages
        self.tree = RadixTree(config.page_size, self.pages, ExpectedReuse(config.num_pages))
        self.costs = StepCosts()
        self._work = 0.0
        self.clock = clock or (lambda: self._work)
        self.hooks = StepHooks()
        recurrent = None if states is None else self._recurrent(states, store)
        self.tier = None if store is None else self._second_tier(store, recurrent, seen)
        self.tables = PageTables(config, self.tree, self.pages, self.tier, recurrent, seen)
        self.pins = Pins(self.tree)
        num_pages = config.num_pages if seen is None else self.pages.longest
        capacity = num_pages * config.page_size
        self.programs = ActivePrograms(self.longest_sequence, capacity, self.costs, self.tier)
        self.sessions = Sessions(self.pins, self.programs, self.tables.match)
        self.shares = ClientShares()
        order = AdmissionOrder(config.policy, config.ageing, context_len)
        self.waiting = WaitingQueue(order, self.tables.cached_prefix, config.max_waiting)
        held = (self.pages, self.tree, self.tables, self.pins, self.stats, self.tier)
        self.memory = memory = Memory(config, *held)
        self._admission = ProgramAdmission(memory, self.waiting, self.programs, self.shares)
        self._running = RunningSequences(memory, self.waiting, self.programs, self._admission)
        step_seconds = config.step_ms / 1000 if config.step_ms else inf
        self.planner = StepPlanner(
            memory,
            self._running,
            self.waiting,
            self.shares,
            self.costs,
            step_seconds if clock else None,
        )
        self.drafting = self._drafting() if config.speculation != "off" else None
        self.step = 0
        self._step_began = 0.0

    # --- what hangs on its steps; assembly hangs what needs more than a scheduler

    def _second_tier(
        self, store: PageStore, recurrent: RecurrentStates | None, seen: Windows | None
    ) -> SecondTier:
        """Takes evicted pages. It stores some before they are evicted, while others work."""
        from lmprog.runtime.tier.second_tier import SecondTier

        states = None if recurrent is None else recurrent.pool_states
        windows, price = None if seen is None else seen.pages, self.costs.token_cost
        tier = SecondTier(store, self.tree, self.pages, price, self.clock, states, windows)
        storing, clock = tier.storing, self.clock
        budget_pages = -(-self.config.token_budget // self.config.page_size)

        def save_ahead(plan: Plan, _: int) -> None:
            if plan.rows:
                storing.save_ahead(budget_pages - self.pages.num_free)

        self.hooks.planned.append(save_ahead)
        self.hooks.committed.append(lambda _plan, _right, began: storing.begin(clock() - began))
        self.hooks.idle.append(lambda _: storing.rest(self.stats.steps))
        return tier

    def _recurrent(self, states: StatePool, store: PageStore | None) -> RecurrentStates:
        from lmprog.runtime.scheduling.recurrent import RecurrentStates

        grain = self.config.page_size if store is not None and store.is_shared else 1
        return RecurrentStates(states, self.tree, is_shared=self.config.share, grain=grain)

    def _windows(self, pool: WindowPool) -> Windows:
        from lmprog.runtime.scheduling.window_pages import Windows

        return Windows(pool, self.config.page_size)

    def _drafting(self) -> Drafting | None:
        """None where the installation has been made without it."""
        if find_spec("lmprog.runtime.scheduling.drafting") is None:
            return None
        from lmprog.runtime.scheduling.drafting import Drafting

        drafting = Drafting(self.memory, self.clock)
        self.hooks.extend_rows.append(drafting.add)
        self.hooks.committed.append(drafting.committed)
        return drafting

    @property
    def running(self) -> list[Sequence]:
        """In the order of first admission."""
        return self._running.sequences

    @property
    def idle(self) -> bool:
        return not (self._running.sequences or self.waiting.places)

    # --- calls in and out

    def check_fits(self, num_tokens: int, max_tokens: int) -> None:
        """Raises `ContextOverflow` when a sequence of that length can never run."""
        total = num_tokens + max_tokens
        most = self.longest_sequence
        if total > most:
            what = (
                "the model's context"
                if most == self.context_len
                else "what the key/value memory can hold"
            )
            instead = f" or set max_tokens <= {most - num_tokens:,}" if num_tokens < most else ""
            raise ContextOverflow(
                f"the prompt is {num_tokens:,} tokens; with max_tokens={max_tokens:,} that is "
                f"{total:,} > {most:,} "
                f"({what}). Shorten the prompt{instead}.",
                prompt=num_tokens,
                max_tokens=max_tokens,
                limit=most,
            )

    @property
    def longest_sequence(self) -> int:
        """Most tokens of one sequence: the context, or what fits all pages but one (the copy of a
        partly filled page takes a page more).
        """
        return min(self.context_len, self.pages.longest * self.config.page_size)

    def submit(self, group: SequenceGroup, num_more: int = 0) -> list[SequenceGroup]:
        """Queues all sequences of `group`; so many more follow by `add`. Raises `Overloaded` when
        there is no room for all of them in the queue, and then queues none of them; a call that
        goes on is never refused.

        Returns the groups that lose their places to it, which the caller must end.
        """
        displaced = self.waiting.displaced_by(group, num_more)
        if group.program is None:
            group.program = self.programs.new_number()
        if group.turn is not None and not group.turn.number:
            self.sessions.join(group, group.turn, self.clock())
        self.add(group, group.sequences)
        for submitted in self.hooks.submitted:
            submitted(group)
        return displaced

    def add(self, group: SequenceGroup, sequences: Items[Sequence]) -> None:
        """Queues further sequences of a group that was submitted."""
        now, number = self.clock(), group.program
        assert number is not None
        self.programs.submit(number, len(sequences), now, group.client)
        waiting: Iterable[Client] = ()
        if not self.waiting.has(group.client):
            waiting = [queue.client for queue in self.waiting.clients()]
        self.shares.submit(group.client, len(sequences), group.weight, waiting, now)
        for sequence in sequences:
            sequence.arrival, sequence.queued_at = self.step, now
            sequence.reached = sequence.num_settled - 1  # its last token was sampled
            sequence.matched = self.tables.cached_prefix(sequence)
            self.stats.generated_tokens += sequence.num_generated  # forced before the first step
            self._running.queue(sequence, now)

    def end(self, sequence: Sequence, keep: int | None = None) -> Node | None:
        """Ends `sequence` in any state. What it computed of its first `keep` tokens (None: all)
        stays in the tree.

        Returns the node where it ended, pinned for the caller, who must `unpin` it; None when
        nothing was computed.
        """
        if sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is SequenceState.SUSPENDED:
            del self._running.suspended[sequence]
        elif sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
            if keep is not None:
                sequence.computed = min(sequence.computed, keep)
        was_running = sequence.state is SequenceState.RUNNING
        if sequence.state is not SequenceState.ENDED:
            now = self.clock()
            self.programs.end(sequence, was_running, now)
            self.shares.end(sequence.group.client, now)
        sequence.state = SequenceState.ENDED
        return self.tables.release(sequence, pin=True)

    def pause(self, turn: SessionTurn, node: Node | None) -> None:
        """The request of `turn` has ended in `node`, as `end` says."""
        self.sessions.pause(turn, node, self.clock())

    def unpin(self, node: Node) -> None:
        """Undoes the pin of `end`."""
        self.tree.unpin(node)

    def preempt(self, sequence: Sequence) -> None:
        """Sends a running sequence back to the queue, as where others need its memory."""
        self._running.preempt(sequence)

    def suspend(self, group: SequenceGroup, *, is_on: bool) -> None:
        """The sequences of `group` neither wait nor run for now, or they do again."""
        change = self._running.suspend if is_on else self._running.resume
        for sequence in group.sequences:
            change(sequence, self.clock())

    @property
    def suspended(self) -> Collection[Sequence]:
        return self._running.suspended

    def forget(self, node: Node, begin: int) -> None:
        """Frees what is cached for nobody else at `node`, back to position `begin`."""
        self.stats.evicted_pages += self.tree.give_up(node, begin)

    # --- a step

    def plan(self) -> Plan:
        """The rows of the next step. Their slots are allocated and their known tokens are in the
        tree already; `commit` or `fail` must follow."""
        self.step += 1
        self._step_began = self.clock()
        self.tree.tick(self._step_began)
        if self.sessions.limits:
            self.sessions.tick(self._step_began)
        if self.programs.idle or self.pins.released:
            self.programs.finish(self.pins)
        self.tables.begin()
        if not (self._running.sequences or self.waiting.places):  # `idle`, once for each turn
            for spare in self.hooks.spare:
                spare()
            if not self.waiting.places:
                self._work += 1.0
                return _NOTHING
        rows, bill, budget, is_bounded = self.planner.rows(self.step, self._step_began)
        drafts: dict[int, RowDraft] = {}
        for extend_rows in self.hooks.extend_rows:
            drafts = extend_rows(rows, budget)
            for index, drafted in drafts.items():
                bill.charge(rows[index].sequence.group.client, 0, len(drafted.tokens))
        tables, parts = self.tables, bill.parts()
        states = None if tables.states is None else tables.states.finish(rows)
        copied = tables.copies.finish()
        apart = None if tables.windows is None else tables.copies.windows()
        plan = Plan(tuple(rows), *copied, drafts, is_bounded, parts, states, apart)
        self._count(plan)
        for planned in self.hooks.planned:
            planned(plan, budget)
        return plan

    def go_ahead(self, plan: Plan) -> None:
        """`plan` is computed next, and was made before the step under way is committed, without
        what that one brings.
        """
        self.step += 1
        self._count(plan)

    def commit(self, plan: Plan, requests: LogitsRequests, results: StepResults) -> list[Progress]:
        """Applies the results of a step. Sequences that ended stay admitted until `end` is
        called.
        """
        seconds, least = self.clock() - self._step_began, plan.num_decoded
        self.costs.observe(plan.num_tokens, seconds, least, is_bounded=plan.is_bounded)
        self.shares.settle(plan.parts, seconds, self.costs.price, self.waiting)
        if self.waiting.places or plan.num_tokens > least:
            self.programs.turns.serve(plan.rows, seconds, self.costs.price)
        for sequence, _, start, end, _, _ in plan.rows:
            sequence.computed = end
            sequence.group.count_computed(sequence, start, end - start)
        progress, num_generated, accepted = apply_results(plan, requests, results)
        self.stats.generated_tokens += num_generated
        for committed in self.hooks.committed:
            committed(plan, accepted, self._step_began)
        has_failed = False
        for one in progress:
            has_failed |= one.error is not None
            if one.not_finite:
                self.tables.discard_path(one.sequence)
        if has_failed:
            self._running.restart_discarded({one.sequence for one in progress if one.ended})
        self.tables.settle()
        self._step_began = self.clock()  # of one planned ahead
        return progress

    def fail(self, plan: Plan, error: LmprogError) -> list[Progress]:
        """The step raised: its sequences fail, and nothing that it should have computed stays."""
        self.shares.settle(plan.parts, self.clock() - self._step_began, self.costs.price)
        for row in plan.rows:
            self.tables.discard_row(row)
        self._running.restart_discarded({row.sequence for row in plan.rows})
        return [Progress(row.sequence, ended=True, error=error) for row in plan.rows]

    def reclaim(self, num_pages: int) -> list[int] | None:
        """All free pages, after so many that nobody uses were evicted; None where there are none
        to evict.
        """
        freed = self.tree.evict(num_pages)
        self.stats.evicted_pages += freed
        return None if num_pages and not freed else list(self.pages.free_pages())

    def fail_newest(self, plan: Plan, error: LmprogError) -> list[Progress]:
        """There is no memory for the step, which has not begun: of its sequences the one admitted
        last fails, the others wait again, and nothing that they computed before is lost.
        """
        self.shares.settle(plan.parts, 0.0, self.costs.price)
        newest = max([row.sequence for row in plan.rows], key=preemption_order)
        for row in plan.rows:
            self.tables.take_back(row)
        for row in plan.rows:
            if row.sequence is not newest:
                self._running.preempt(row.sequence)
        self._running.restart_discarded({newest})
        self.tables.settle()
        return [Progress(newest, ended=True, error=error)]

    def _count(self, plan: Plan) -> None:
        self._work += 1.0 + plan.num_tokens
        self.stats.see_plan(
            plan,
            len(self._running.sequences),
            len(self.waiting.places),
            self.config.num_pages - self.pages.num_free,
        )

    def check(self) -> None:
        """All invariants of tree, pages and sequences; raises AssertionError."""
        private = [page for one in self.running for page in self.tables.private_pages(one)]
        self.tree.check()
        held = self.tree.pages_held()
        self.pages.check([*held, *self.tables.pages_loading(), *private])
        if self.tables.states is not None:
            self.tables.states.check(self.running, self.tier.slots_held() if self.tier else ())
        if self.tables.windows is not None:
            loading = () if self.tier is None else (self.tier.frames_held(),)
            self.tables.windows.check(self.running, *loading)
        self.programs.check(self.running, [*self.waiting, *self._running.suspended])
        self.sessions.check()
        check_sequences(self.running, self.waiting, set(held), self.config.page_size)


class IdleMemory:
    """`give_back` returns the memory of pages, behind whose numbers are those of the parts of
    states. It happens once after `seconds` of each pause.
    """

    def __init__(
        self, scheduler: Scheduler, give_back: Callable[[Items[int]], None], seconds: float
    ) -> None:
        self._scheduler = scheduler
        self._give_back = give_back
        self._seconds = seconds
        self._steps = -1
        self._since = 0.0
        self._is_done = False

    def turn(self, now: float) -> None:
        """A turn without work."""
        steps = self._scheduler.stats.steps
        if steps != self._steps:
            self._steps, self._since, self._is_done = steps, now, False
        if self._is_done or now - self._since < self._seconds:
            return
        self._is_done = True
        tree = self._scheduler.tree
        self._scheduler.tables.scored.clear()
        self._scheduler.stats.evicted_pages += tree.evict(tree.num_evictable - tree.num_pinned)
        pages, states = self._scheduler.pages, self._scheduler.tables.states
        pages.trim()
        free = pages.free_pages()
        if states is not None:
            free += states.free_parts(pages.num_pages)
        self._give_back(free)
        pages.prefer_low()  # little memory is taken again for little work
        heap.collect()
