"""What runs, and the rows of a step.

A step: one row for each sequence that decodes, then prefills under the budget that is left, clients
in turn. Where several clients have calls and the decodes are too many for a short step, sequences
of those that were served most sit out in turn. No more sequences run than there are rows: where
more were admitted, since some got no row in their turn, those whose clients were served most wait
again.

A running sequence leaves by its end, because others need its memory or its row (*preempted*: it
waits again at the head of the queue, and what it computed stays in the tree until its pages are
needed), or because what it stood on was discarded. A row goes to a client that was served less by a
turn, or no more where its call is short; such a call gets memory, too, from those that are long
beside it. When memory runs out, unlocked pages are evicted first, then the sequences admitted last
are preempted. The one admitted first can preempt all others and fits the pool alone, so at least
one makes progress in each step.

Knows rows, budgets and pages; whom to admit is asked of `admission`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from operator import attrgetter
from typing import NamedTuple

from lmprog.runtime.scheduling.active_programs import ActivePrograms, Memory
from lmprog.runtime.scheduling.admission import ProgramAdmission
from lmprog.runtime.scheduling.plan import Row
from lmprog.runtime.scheduling.sequence import Client, Sequence, SequenceState
from lmprog.runtime.scheduling.step_costs import QUANTUM, StepCosts
from lmprog.runtime.scheduling.waiting_queue import (
    ClientShares,
    StepBill,
    WaitingQueue,
    preemption_order,
)

ALONE_SECONDS = 1.0
"""How long a step without decodes may last at most: what comes meanwhile waits for its end."""
MOST_GIVEN = 64
"""Sequences that give their memory to short calls in a step; in vain, none in as many more."""
_order = attrgetter("admission_order")


class RunningSequences:
    """Moves sequences between `waiting` and its own list."""

    def __init__(
        self,
        memory: Memory,
        waiting: WaitingQueue,
        programs: ActivePrograms,
        admission: ProgramAdmission,
    ) -> None:
        self._memory = memory
        self._waiting = waiting
        self.programs = programs
        self.admission, self._served = admission, admission.shares.served
        self.sequences: list[Sequence] = []
        """In the order of first admission."""
        self.suspended: dict[Sequence, None] = {}
        self._admissions = self._gives_from = 0

    def admit_next(self, step: int, now: float, before: Sequence | None = None) -> Sequence | None:
        """The next sequence runs from now on, its prefix locked. None when none waits whose turn is
        before that of one that runs, or there is no memory for it yet.
        """
        sequence = self.admission.next(self.sequences, step, now, before)
        if sequence is None:
            return None
        self._waiting.remove(sequence)
        if not sequence.admission_order:
            self._admissions += 1
            sequence.admission_order = self._admissions
            sequence.num_found = sequence.computed
            if not sequence.group.goes_on:
                self._memory.stats.count_admission(
                    step - sequence.arrival - 1, len(sequence.tokens), sequence.computed
                )
        sequence.state = SequenceState.RUNNING
        self.sequences.append(sequence)
        self.sequences.sort(key=_order)
        self.admission.take_place(sequence, now)
        return sequence

    def take_turns(self, step: int, now: float) -> None:
        """Where all rows are taken, or memory is, a row of whose client was served most is given to
        one that waits, or runs without a row; or more of them, where a call that is short beside
        them lacks memory.
        """
        served, admission, most = self._served, self.admission, self._memory.config.max_rows
        for _ in range(min(MOST_GIVEN, len(self.sequences))):
            # who lost its work with its row is further than it was before it loses it again
            known = [one for one in self.sequences if one.computed > one.reached or not one.reached]
            if not known:
                return
            last = max(known, key=lambda one: (served(one.group.client), _order(one)))
            if len(self.sequences) > most and self._is_owed(last):
                self.preempt(last)
                continue
            if not self._waiting.places or not admission.gives_row(last):
                return
            if self.admit_next(step, now, last) is not None:
                if len(self.sequences) > most:
                    self.preempt(last)
                return
            is_given = admission.lacks_memory and step >= self._gives_from
            if not is_given or not admission.gives_row(last, only_short=True):
                return
            self.preempt(last)
        self._gives_from = step + MOST_GIVEN

    def _is_owed(self, sequence: Sequence) -> bool:
        """Whether its row is one for a client that was served less by a turn. Those of one client
        take turns as they run: who is preempted for another of them would come back for it.
        """
        least = min(self._served(one.group.client) for one in self.sequences)
        return least < self._served(sequence.group.client) - QUANTUM

    def queue(self, sequence: Sequence, now: float | None = None) -> None:
        """It waits; without a time since the wait clock was read last."""
        sequence.waits_since = self._waiting.clock.read(now)
        number = sequence.group.program or 0
        self._waiting.push(sequence, is_active=self.programs.is_active(number))

    def preempt(self, sequence: Sequence) -> None:
        """Sends a running sequence back to the head of the queue; its work stays in the tree."""
        self._leave(sequence)
        sequence.group.preemptions += 1
        self._memory.stats.preemptions += 1
        self._requeue(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self.sequences.remove(sequence)
        sequence.reached = max(sequence.reached, sequence.computed)
        node = self._memory.tables.release(sequence, pin=False)
        assert node is None
        sequence.num_tokens_at_enqueue = len(sequence.tokens)

    def suspend(self, sequence: Sequence, now: float) -> None:
        """It leaves queue and row until `resume`; its work stays in the tree."""
        if sequence.state is SequenceState.RUNNING:
            self._leave(sequence)
            self._lose_row(sequence)
        elif sequence.state is SequenceState.WAITING:
            self.admission.has_waited(sequence, now)
            self._waiting.remove(sequence)
        else:
            return
        sequence.state = SequenceState.SUSPENDED
        self.suspended[sequence] = None

    def resume(self, sequence: Sequence, now: float) -> None:
        if sequence.state is SequenceState.SUSPENDED:
            del self.suspended[sequence]
            sequence.state = SequenceState.WAITING
            self.queue(sequence, now)

    def make_room(self, needed: int, sequence: Sequence, rows: Iterable[Row]) -> bool:
        """Frees pages until `needed` are free: evicts, then preempts sequences admitted later than
        `sequence`, those of `rows` left out. False: it must wait.
        """
        memory = self._memory
        while memory.pages.num_free < needed:
            missing = needed - memory.pages.num_free
            for program in memory.pins.drop_for(missing):
                self.admission.lose_place(program, is_kept=False)
            freed = memory.tree.evict(missing)
            memory.stats.evicted_pages += freed
            if freed >= missing or memory.pages.give_way():
                continue
            own, planned = preemption_order(sequence), {row.sequence for row in rows}
            later = [v for v in self.sequences if v not in planned and preemption_order(v) > own]
            if not later:
                return False
            victim = max(later, key=preemption_order)
            victim.num_memory_preemptions += 1
            self.preempt(victim)
        return True

    def restart_discarded(self, ended: set[Sequence]) -> None:
        """Sequences that shared what a failed row had inserted into the tree begin again."""
        tables = self._memory.tables
        for sequence in [
            sequence
            for sequence in self.sequences
            if sequence not in ended and tables.is_discarded(sequence)
        ]:
            self.sequences.remove(sequence)
            tables.detach(sequence)
            self._requeue(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        """A running sequence waits again."""
        sequence.state = SequenceState.WAITING
        self._lose_row(sequence)
        self.queue(sequence)

    def _lose_row(self, sequence: Sequence) -> None:
        """Its program loses its place if no other one of it runs."""
        number = self.programs.number_of(sequence)
        self.programs.preempt(number)
        if not self.programs.is_active(number):
            self.admission.lose_place(number, is_kept=True)


class StepRows(NamedTuple):
    """The rows of a step. Their slots are allocated, and their known tokens are in the tree."""

    rows: list[Row]
    bill: StepBill
    budget: int
    """Tokens that it may have besides."""
    is_bounded: bool  # see `Plan`


class StepPlanner:
    """Gives running sequences rows, and admits others while the budget lasts."""

    def __init__(
        self,
        memory: Memory,
        running: RunningSequences,
        waiting: WaitingQueue,
        shares: ClientShares,
        costs: StepCosts,
        step_seconds: float | None,
    ) -> None:
        """`step_seconds`: how long a step with decodes may last; inf: as long as one without; None:
        no step is bounded, since `costs` are no seconds.
        """
        self._config = memory.config
        self._tables = memory.tables
        self._running = running
        self._waiting = waiting
        self._shares = shares
        self._costs = costs
        self._step_seconds = step_seconds
        self._num_rows = 1  # of the step before
        self._turn_of_decodes = 0
        self._bill = StepBill(shares, costs.price(1))

    def rows(self, step: int, now: float) -> StepRows:
        """The rows of a step that begins now."""
        rows: list[Row] = []
        self._bill = StepBill(self._shares, self._costs.price(self._num_rows))
        admission = self._running.admission
        num_over = len(self._running.sequences) - self._config.max_rows
        if num_over > 0 or (self._waiting.places and (not num_over or admission.lacks_memory)):
            self._running.take_turns(step, now)
        # Decodes first: somebody waits for each token. Then prefills, each client's as admitted.
        prefills = self._plan_decodes(rows)
        budget, is_bounded = self.prefill_budget(len(rows))
        if len(prefills) > 1:
            prefills.sort(key=self._turn)  # stable
        resets = {sequence: sequence.num_resets for sequence in prefills}
        for sequence in prefills:
            client = sequence.group.client
            if self._waiting.has_beside(client) or self._running.admission.is_behind(sequence):
                budget = self._admit(rows, budget, (step, now, sequence))
            if not budget or len(rows) == self._config.max_rows:
                break
            # it may have been preempted for an earlier one, and even admitted again since
            if sequence.state is SequenceState.RUNNING and sequence.num_resets == resets[sequence]:
                budget -= self._extend(sequence, budget, rows)
        if self._waiting.places:
            self._waiting.refresh()
            budget = self._admit(rows, budget, (step, now, None))
            if self._waiting.places:
                cause = None if len(rows) == self._config.max_rows else admission.blocked_by
                self._waiting.clock.set(cause or "step", now)
        self._num_rows = len(rows)
        return StepRows(rows, self._bill, budget, is_bounded)

    def bill_of(self, rows: Iterable[Row]) -> StepBill:
        """That of a step with these rows, which is planned ahead."""
        bill = StepBill(self._shares, self._costs.price(self._num_rows))
        last: Client = None
        num_rows = num_tokens = 0
        for sequence, _, start, end, _, _ in rows:
            client = sequence.group.client
            if client != last:
                if num_rows:
                    bill.charge(last, num_rows, num_tokens)
                last, num_rows, num_tokens = client, 0, 0
            num_rows += 1
            num_tokens += end - start
        bill.charge(last, num_rows, num_tokens)
        return bill

    def _turn(self, sequence: Sequence) -> tuple[float, int]:
        """By its client's account, and by the turns that its program has used up."""
        return self._shares.served(sequence.group.client), self._running.programs.turns.turn_of(
            sequence
        )

    def _admit(
        self, rows: list[Row], budget: int, until: tuple[int, float, Sequence | None]
    ) -> int:
        """Admits sequences while there is budget for them, as `RunningSequences.admit_next` says.
        Returns what is left of the budget.
        """
        while budget and self._waiting.places and len(rows) < self._config.max_rows:
            admitted = self._running.admit_next(*until)
            if admitted is None:
                break
            budget -= self._extend(admitted, budget, rows)
        return budget

    def _plan_decodes(self, rows: list[Row]) -> list[Sequence]:
        """Adds a row for each sequence with one token left to compute; returns the others."""
        prefills: list[Sequence] = []
        last: Client = None
        count = 0  # rows of the client that came last
        left = min(self._config.token_budget, self._config.max_rows)
        next_slot = self._tables.next_slot
        sequences = self._running.sequences[:]  # a preemption changes the list
        if len(sequences) > 1:
            sequences = self._cut_decodes(sequences)
        for sequence in sequences:
            if sequence.state is not SequenceState.RUNNING:
                continue
            if len(sequence.tokens) - sequence.computed != 1:
                prefills.append(sequence)
            elif left and (sequence.task.is_plain or sequence.task.is_ready()):
                row = next_slot(sequence)
                if row is not None:
                    rows.append(row)
                    client = sequence.group.client
                    if client != last:  # neighbours mostly have the same one
                        if count:
                            self._bill.charge(last, count, count)
                        last, count = client, 0
                    count += 1
                    left -= 1
                else:
                    left -= self._extend(sequence, 1, rows)
        if count:
            self._bill.charge(last, count, count)
        return prefills

    def _cut_decodes(self, sequences: list[Sequence]) -> list[Sequence]:
        """Without the decodes for which such a step is too short: those of the clients that were
        served most, each of whose sequences sits out in turn.
        """
        seconds = self._step_seconds
        if not self._shares.are_several or seconds is None or seconds == inf:
            return sequences
        most = self._costs.decodes_beside(seconds)
        if len(sequences) <= most:
            return sequences
        decodes: dict[Client, list[Sequence]] = {}
        for sequence in sequences:
            if sequence.remaining == 1:
                decodes.setdefault(sequence.group.client, []).append(sequence)
        left, out = max(1, most), set[Sequence]()
        for client in sorted(decodes, key=self._shares.served):
            own = decodes[client]
            if len(own) > left:
                begin = self._turn_of_decodes % len(own)
                self._turn_of_decodes += left
                out.update((own[begin:] + own[:begin])[left:])
            left -= min(left, len(own))
        return [sequence for sequence in sequences if sequence not in out]

    def prefill_budget(self, num_decodes: int) -> tuple[int, bool]:
        """What is left for prefills beside so many decodes, cut so that the step lasts no longer
        than it may, and whether it is cut for them; at least a page, so that they get on.
        """
        budget, is_bounded = self._config.token_budget - num_decodes, False
        costs, seconds = self._costs, self._step_seconds
        if seconds is None:
            return budget, False
        are_several = self._shares.are_several
        if num_decodes and seconds < inf:
            within = costs.shared(seconds) if are_several else seconds
            left, is_bounded = costs.tokens_beside(num_decodes, within), True
        else:
            beside = seconds if are_several else None
            left = costs.tokens_alone(ALONE_SECONDS, beside) - num_decodes
        return min(budget, max(self._config.page_size, left)), is_bounded

    def _extend(self, sequence: Sequence, budget: int, rows: list[Row]) -> int:
        """Plans its next tokens, at most `budget`; returns how many. 0: no memory or mask yet."""
        tables = self._tables
        if sequence.remaining > 1:
            tables.attach(sequence)  # others may have computed more of it since
        count = min(sequence.num_due, budget, self._config.max_chunk or budget)
        if count and tables.states is not None:
            count = tables.states.cut(sequence, count)
        if tables.windows is not None:
            count = tables.windows.advance(sequence, count)
        needed = tables.pages_for(sequence, sequence.computed + count)
        if not count or not self._running.make_room(needed, sequence, rows):
            return 0
        if tables.has_lost_part(sequence):
            tables.detach(sequence)  # all it has is in the tree; it finds less there next time
            return 0
        rows.append(tables.extend(sequence, count, len(rows)))
        self._bill.charge(sequence.group.client, 1, count)
        return count
