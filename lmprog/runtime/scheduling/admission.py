"""Which waiting sequence is admitted next, and whether memory allows it.

Clients take turns by what they were served. Within a client, sequences of programs in memory go
before others, unless another one has waited longer by more than the policy's margin, or the program
has used its turn up: then one that was served less goes first if there is room for it. One that is
short beside the first (`CallTurns`) goes before it, and programs in memory take turns, all within
the policy's margin. A sequence of a program that is not in memory
needs a place: room for its pages and for what it and all active programs are expected to add, if
need be the places of programs that pause (what these stand on stays until the pages are really
needed). Without room it runs all the same where sharing the fixed cost of steps saves more than
computing tokens again will cost. An overdue one gets the places of all paused programs, and
meanwhile nobody is admitted before it. Where a second tier gives back what was evicted for little,
places are not needed: whoever has pages for the next call runs.

While the first in turn waits for memory, others go past it that fit in free memory with all tokens
that they may have, however much those that run grow meanwhile, and that end before it could begin
(*backfill*). None that came more than the policy's margin after it does, so that the bounds of
waiting hold; and before one that is overdue nobody does. The first one itself needs no more either.

Knows pages, programs and the queue; knows no budget and no rows.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING, Literal

from lmprog.runtime.scheduling.active_programs import ActivePrograms, Memory
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.sequence import Sequence
from lmprog.runtime.scheduling.stats import WaitCause
from lmprog.runtime.scheduling.step_costs import QUANTUM, Growth
from lmprog.runtime.scheduling.waiting_queue import (
    ClientQueue,
    ClientShares,
    Key,
    OrderedSequences,
    WaitingQueue,
)

if TYPE_CHECKING:
    from lmprog.runtime.tier.second_tier import SecondTier

MOST_LOADS_AWAITED = 8
"""Loads from the second tier that a sequence waits for; what it lacks then is computed."""
MOST_PASSING = 8
"""Sequences of a client that are tried when the first in turn waits for memory."""
Means = Literal["free", "replace", "force"]
"""How a sequence gets a place: by free memory alone; also by the places of programs that pause or
beyond memory where that is worth it; at any rate."""
MOST_IN_TURN = 32
"""Programs of a client whose turns are compared; of more, those that began to wait first."""
FETCHED_AHEAD = 4
"""While the head of a queue waits for a load, so many from the head on are loaded too."""


class ProgramAdmission:
    """Chooses from `waiting`; takes places from `programs`."""

    def __init__(
        self,
        memory: Memory,
        waiting: WaitingQueue,
        programs: ActivePrograms,
        shares: ClientShares,
    ) -> None:
        self._memory = memory
        self._waiting = waiting
        self._programs = programs
        self.shares = shares
        self._step = 0
        self._growth: Growth | None = None
        """What the active programs are expected to add, as it was reckoned in that step."""
        self.blocked_by: WaitCause | None = None
        """Why `next` found nobody ..."""
        self._first: Sequence | None = None
        """... who was the first in turn that may be passed; None for nobody ..."""
        self._missing = 0.0  # ... and pages that it lacked
        self._short: Sequence | None = None  # goes before others because it is short

    def next(
        self, running: Items[Sequence], step: int, now: float, before: Sequence | None
    ) -> Sequence | None:
        """The next sequence to admit in a step, its prefix locked; of those whose turn comes before
        that of one that runs. None when there is none, or no memory for it yet.
        """
        if step != self._step:
            self._step, self._growth = step, None
        self.blocked_by = self._first = None
        found = self._in_turn(running, now, before)
        if found is None and self._first is not None and running:
            limit = inf if before is None else self.shares.served(before.group.client)
            return self._passing(self._first, running, limit)
        return found

    def _in_turn(
        self, running: Items[Sequence], now: float, before: Sequence | None
    ) -> Sequence | None:
        """The one whose turn it is."""
        queues = {queue.client: queue for queue in self._waiting.clients()}
        limit = inf if before is None else self.shares.served(before.group.client)
        for place, client in enumerate(self.shares.least_served_first(queues)):
            queue = queues[client]
            if self.shares.served(client) > limit:
                return None
            own = before if before is not None and client == before.group.client else None
            is_overdue = self._is_overdue(queue)
            may_be_active = queue.active.entries and not is_overdue
            active = self._next_active(queue) if may_be_active else None
            if active is not None or own is not None:
                passing = self._passing_programs(queue, active, own) if place == 0 else None
                if (
                    passing is not None
                    and self._has_place(passing, running, now)
                    and not self._is_loading(passing, queue.others, running)
                ):
                    return passing
                if active is None or (own is not None and not self._is_before(active, own)):
                    continue
                if not self._has_pages(active, running):
                    self._block("memory", active)
                    return None
                return None if self._is_loading(active, queue.active, running) else active
            if queue.others.head is not None and (place == 0 or is_overdue):
                sequence = queue.others.head[1] if is_overdue else self._next_other(queue)
                means: Means = "force" if is_overdue else "replace"
                if self._has_place(sequence, running, now, means):
                    return None if self._is_loading(sequence, queue.others, running) else sequence
                self._block("place", sequence)
                if is_overdue:
                    self._first = None
                    return None
        return None

    def gives_row(self, sequence: Sequence, *, only_short: bool = False) -> bool:
        """Whether one that runs is to wait for one that waits, whose client was served less by a
        turn, or no more where it is short beside it.
        """
        client, served = sequence.group.client, self.shares.served
        queue = min(self._waiting.clients(), key=lambda one: served(one.client))
        if not only_short and served(queue.client) < served(client) - QUANTUM:
            return True
        active = self._next_active(queue)
        found = self._next_other(queue) if active is None else active
        if served(queue.client) > served(client) or not self._is_short(found, sequence):
            return False
        return queue.client != client or found.group.priority >= sequence.group.priority

    @property
    def lacks_memory(self) -> bool:
        return self.blocked_by in ("memory", "place")

    def _is_short(self, waiting: Sequence, other: Sequence) -> bool:
        turns, seconds = self._programs.turns, self._programs.seconds_left
        if not turns.is_short(waiting.group.client, seconds(waiting), seconds(other)):
            return False
        self._short = waiting
        return True

    def is_behind(self, sequence: Sequence) -> bool:
        """Whether calls of its client wait whose turn is before that of one that runs."""
        queue = self._waiting.queue_of(sequence.group.client)
        if queue is None:
            return False
        active = self._next_active(queue)
        if active is not None and self._is_before(active, sequence):
            return True
        return self._passing_programs(queue, active, sequence) is not None

    def _next_active(self, queue: ClientQueue) -> Sequence | None:
        """Of programs in memory: who was preempted, then by turn."""
        head = queue.active.head
        if head is None or not head[0][0] or len(queue.programs) == 1:
            return None if head is None else head[1]
        latest = self._latest(queue)
        served = self._programs.turns.served

        def turn(entry: tuple[Key, Sequence]) -> tuple[int, float, Key]:
            return -entry[1].group.priority, served(entry[1]), entry[0]

        longest = islice(queue.programs.values(), MOST_IN_TURN)
        heads = [part.entries[0] for part in longest if part.entries[0][0][1] <= latest]
        return min(heads, key=turn)[1] if heads else head[1]

    def _passing_programs(
        self, queue: ClientQueue, active: Sequence | None, own: Sequence | None
    ) -> Sequence | None:
        """The one without a place in memory whose turn is before that of the next one with a place,
        and of one that runs, as far as there are such.
        """
        head = queue.others.head
        if head is None or head[0][1] > self._latest(queue):
            return None
        if active is not None and active.admission_order:
            return None
        behind = [one for one in (active, own) if one is not None]
        found = self._next_other(queue)
        return found if all(self._is_before(found, one) for one in behind) else None

    def _next_other(self, queue: ClientQueue) -> Sequence:
        """The next one without a place in memory: the first, unless another is short beside it."""
        others, head = queue.others, queue.others.entries[0][1]
        if len(others.entries) == 1 or head.admission_order:
            return head
        priority, latest = head.group.priority, self._latest(queue)
        for _, key, sequence in others.shortest(self._programs.seconds_left, MOST_PASSING):
            if key[1] <= latest and sequence.group.priority >= priority:
                return sequence if self._is_short(sequence, head) else head
        return head

    def _is_before(self, waiting: Sequence, other: Sequence) -> bool:
        if waiting.group.priority < other.group.priority:
            return False
        return self._programs.turns.is_before(waiting, other) or self._is_short(waiting, other)

    def _latest(self, queue: ClientQueue) -> float:
        """The largest rank that may go first, so that the bounds of waiting hold. A program that
        has a place waits since its last sequence was admitted.
        """
        order, waited = self._waiting.order, self._programs.turns.waited
        least = queue.others.least_rank
        if order.policy == "dfs" or len(queue.programs) > MOST_IN_TURN:
            least = min(least, queue.active.least_rank)
        else:
            for part in queue.programs.values():
                since = waited(part.entries[0][1]) - order.ageing * part.most_priority
                least = min(least, max(part.least_rank, since))
        return least + order.margin

    def _block(self, cause: WaitCause, sequence: Sequence) -> None:
        self.blocked_by, self._first = cause, self._first or sequence

    def _passing(self, first: Sequence, running: Items[Sequence], limit: float) -> Sequence | None:
        """One that may run before `first`, its prefix locked."""
        order, places = self._waiting.order, self._waiting.places
        latest = places[first][0][1] + order.margin
        steps: float | None = None
        queues = {queue.client: queue for queue in self._waiting.clients()}
        for client in self.shares.least_served_first(queues):
            if self.shares.served(client) > limit:
                return None
            queue = queues[client]
            own = min(queue.active.least_rank, queue.others.least_rank) + order.margin
            shortest = queue.others.shortest(self._programs.seconds_left, MOST_PASSING)
            tried = queue.active.entries[:MOST_PASSING] + queue.others.entries[:MOST_PASSING]
            for key, sequence in chain(tried, [one[1:] for one in shortest]):
                if key[1] > min(latest, own):
                    continue
                if steps is None:
                    lacking = self._memory.tables.tokens_in(self._missing)
                    steps = self._programs.steps_until_freed(running, lacking)
                most = inf if sequence is first else steps
                if self._fits_to_its_end(sequence, running, most):
                    self.blocked_by = None
                    return None if self._awaits_tier(sequence) else sequence
        return None

    def _fits_to_its_end(
        self, sequence: Sequence, running: Items[Sequence], most_steps: float
    ) -> bool:
        """Locks the sequence's prefix where free memory has room for all of its tokens, and those
        that run may grow in each of its steps, of which it has no more than `most_steps`.
        """
        task, memory = sequence.task, self._memory
        left = task.left if isinstance(task, Generation) else 0
        size = memory.config.page_size
        if left + 1 > most_steps:
            return False
        has_slot = memory.tables.attach(sequence)
        sequence.num_found = sequence.computed
        steps = left + 1 + sequence.remaining // size
        needed = memory.tables.pages_for(sequence, len(sequence.tokens) + left)
        later = len(running) * (steps // size + 1) * size + self._programs.later_tokens(sequence)
        growth = memory.tables.pages_to_grow(later, running)
        spare = memory.num_obtainable - memory.pages.cost(memory.tree.num_pinned)
        if has_slot and steps <= most_steps and needed + growth <= spare:
            self._growth = None
            return True
        memory.tables.detach(sequence)
        return False

    def _awaits_tier(self, sequence: Sequence) -> bool:
        """Whether the sequence, whose prefix is locked, waits for the second tier; its lock is
        given back then.
        """
        tier, num_running = self._memory.tier, 1
        if tier is None or not self._awaits_load(
            tier, sequence, lambda count: self._free(count, num_running)
        ):
            return False
        self._memory.tables.detach(sequence)
        return True

    def lose_place(self, program: int, *, is_kept: bool) -> None:
        """Unless the program runs, it must be admitted again. `is_kept`: what it stands on stays
        until others need the pages; else its pins are gone.
        """
        self._programs.deactivate(program, is_kept=is_kept)
        if not self._programs.is_active(program):
            self._waiting.move_program(program, is_active=False)
            if is_kept:
                self._memory.pins.demote(program)

    def take_place(self, sequence: Sequence, now: float) -> None:
        """The sequence, which has left the queue, begins to run."""
        self.has_waited(sequence, now)
        if sequence is self._short:
            self._programs.turns.go_ahead(sequence, self._programs.seconds_left(sequence))
        program = self._programs.number_of(sequence)
        if self._programs.admit(sequence, now):
            self._waiting.move_program(program, is_active=True)
        self._memory.pins.restore(program)

    def has_waited(self, sequence: Sequence, now: float) -> None:
        since, until = sequence.waits_since, self._waiting.clock.read(now)
        self.shares.wait(sequence.group.client, since, until)

    def _is_overdue(self, queue: ClientQueue) -> bool:
        """Whether the first sequence without a place has waited much longer than those with one."""
        if queue.active.head is None:
            return False
        return queue.others.least_rank + self._waiting.order.margin < queue.active.least_rank

    def _is_loading(self, head: Sequence, part: OrderedSequences, running: Items[Sequence]) -> bool:
        """Whether the next of `part`, whose prefix is locked, waits for the second tier. Then its
        lock is given back, and those behind it are asked for too.
        """
        tier, reserve = self._memory.tier, len(running) + 1
        if tier is None:
            return False
        others = [one for _, one in part.entries[:FETCHED_AHEAD] if one is not head]
        if not self._awaits_load(tier, head, lambda count: self._free(count, reserve)):
            return False
        self.blocked_by = "load"
        self._memory.tables.detach(head)
        pinned = self._memory.tree.num_pinned
        for sequence in others:
            self._awaits_load(tier, sequence, lambda count: self._free(count, reserve + pinned))
        return True

    def _free(self, count: int, reserve: int) -> bool:
        """Frees `count` pages where `reserve` more could be freed, pinned ones last and by program.
        Whether it did.
        """
        memory = self._memory
        if memory.num_obtainable < count + reserve:
            return False
        while (missing := count - memory.pages.num_free) > 0:
            for program in memory.pins.drop_for(missing):
                self.lose_place(program, is_kept=False)
            freed = memory.tree.evict(missing)
            memory.stats.evicted_pages += freed
            if freed < missing and not memory.pages.give_way():
                return False
        return True

    def _awaits_load(
        self, tier: SecondTier, sequence: Sequence, free: Callable[[int], bool]
    ) -> bool:
        """Whether a load of the sequence's prefix is under way; begins one where it may."""
        if sequence.load is not None and tier.is_loading(sequence.load):
            return True
        sequence.load = None
        if sequence.num_loads < MOST_LOADS_AWAITED:
            sequence.load = tier.fetch(*self._memory.tables.prefix(sequence), free)
        sequence.num_loads += sequence.load is not None
        return sequence.load is not None

    def _has_pages(self, sequence: Sequence, running: Items[Sequence]) -> bool:
        """Locks the sequence's prefix; False, and nothing is locked, when there are too few
        pages.
        """
        tables = self._memory.tables
        if not tables.attach(sequence):
            self._missing = 1.0  # a slot for its state is free when one of those that run ends
            tables.detach(sequence)
            return False
        needed = tables.pages_for(sequence, len(sequence.tokens))
        # Pages for the next tokens of all that run then, doubled with each preemption: so it waits
        # until they have grown, and none is preempted more than log2(pages) + 1 times.
        reserve = max(
            len(running) << sequence.num_memory_preemptions,
            sum(1 << other.num_memory_preemptions for other in running),
        )
        if running and self._memory.num_obtainable < needed + reserve:
            self._missing = needed + reserve - self._memory.num_obtainable
            tables.detach(sequence)
            return False
        return True

    def _has_place(
        self, sequence: Sequence, running: Items[Sequence], now: float, means: Means = "free"
    ) -> bool:
        """Locks the sequence's prefix and makes a place for its program; False, and nothing is
        locked, when there is none.
        """
        if not self._has_pages(sequence, running):
            return False
        memory, programs = self._memory, self._programs
        sequence.num_found = sequence.computed
        is_swapping = memory.tier is not None and memory.tier.is_cheap()
        if memory.config.admission == "unlimited" or is_swapping:
            return True
        if self._growth is None:
            self._growth = programs.expected_growth(running)
        tables, num_paused = memory.tables, max(0, len(programs) - len(running))
        needed = tables.pages_for(sequence, len(sequence.tokens))
        growth = self._growth.plus(programs.growth_of(sequence))
        missing: float = memory.num_used + needed - memory.pages.num_pages
        if programs.kept_tokens:
            kept = tables.pages_to_grow(programs.kept_tokens)
            missing -= min(kept, memory.pages.cost(memory.tree.num_pinned))
        missing += tables.pages_to_grow(growth.most, running, num_paused)
        no_slots = programs.missing_slots(sequence, memory.tables.states)
        if missing > 0.0 or no_slots > 0:
            is_overdue = means == "force"
            paused = programs.replaceable(len(running), now, force=is_overdue)
            losers = []
            for place in paused if means != "free" else ():
                losers.append(place)
                rest = growth.plus(programs.growth_of_paused(place), -1)
                missing -= tables.pages_to_grow(place.size + growth.most - rest.most, (), 1)
                growth = rest
                no_slots -= 1
                if missing <= 0.0 and no_slots <= 0:
                    break
            # An idle machine takes a program that does not fit, if nobody who pauses is waited for.
            may_exceed = is_overdue or (not running and (losers or not len(programs)))
            if not may_exceed and no_slots <= 0:
                lost = programs.expected_missing(tables.tokens_in(missing), now, losers)
                may_exceed = programs.is_worth_exceeding(sequence, lost, len(running))
            is_allowed = may_exceed and means != "free"
            if (missing > 0.0 or no_slots > 0) and not is_allowed:
                self._missing = max(1.0, missing)
                memory.tables.detach(sequence)
                return False
            for place in losers:
                self.lose_place(place.number, is_kept=True)
        self._growth = growth
        return True
