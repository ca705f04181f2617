"""The sequences that run: how one is admitted, how room is made for it, and how it leaves.

It leaves by its end, because others need its memory (*preempted*: it waits again at the head of the
queue, and what it computed stays in the tree until its pages are needed), or because what it stood
on was discarded. When memory runs out, unlocked pages are evicted first; then the sequences
admitted last are preempted. The sequence admitted first can preempt all others and fits the pool
alone, so at least one makes progress in each step.

Knows no budget and no rows: which of them computes how much is `step_planner`'s matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from lmprog.runtime.scheduling.active_programs import ActivePrograms
from lmprog.runtime.scheduling.plan import Row
from lmprog.runtime.scheduling.policy import preemption_order
from lmprog.runtime.scheduling.program_admission import Memory, ProgramAdmission
from lmprog.runtime.scheduling.sequence import Sequence, SequenceState
from lmprog.runtime.scheduling.waiting_queue import WaitingQueue


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
        self._programs = programs
        self._admission = admission
        self.sequences: list[Sequence] = []
        """In the order of first admission."""
        self._admissions = 0

    def admit_next(self, step: int, now: float, limit: float) -> Sequence | None:
        """The next sequence runs from now on, its prefix locked. None when none waits of a client
        that was served less than `limit`, or there is no memory for it yet.
        """
        sequence = self._admission.next(self.sequences, now, limit)
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
        self.sequences.sort(key=attrgetter("admission_order"))
        self._admission.take_place(sequence)
        return sequence

    def queue(self, sequence: Sequence) -> None:
        """The sequence waits."""
        number = self._programs.number_of(sequence)
        self._waiting.push(sequence, is_active=self._programs.is_active(number))

    def preempt(self, sequence: Sequence) -> None:
        """Sends a running sequence back to the head of the queue; its work stays in the tree."""
        self.sequences.remove(sequence)
        node = self._memory.tables.release(sequence, pin=False)
        assert node is None
        sequence.num_tokens_at_enqueue = len(sequence.tokens)
        sequence.group.preemptions += 1
        self._memory.stats.preemptions += 1
        self._requeue(sequence)

    def make_room(self, needed: int, sequence: Sequence, rows: Iterable[Row]) -> bool:
        """Frees pages until `needed` are free: evicts, then preempts sequences admitted later than
        `sequence`, those of `rows` left out. False: it must wait.
        """
        memory = self._memory
        while memory.pages.num_free < needed:
            missing = needed - memory.pages.num_free
            for program in memory.pins.drop_for(missing):
                self._admission.lose_place(program, is_kept=False)
            freed = memory.tree.evict(missing)
            memory.stats.evicted_pages += freed
            if freed >= missing:
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
        """A running sequence waits again. Its program loses its place if no other one runs."""
        sequence.state = SequenceState.WAITING
        number = self._programs.number_of(sequence)
        self._programs.preempt(number)
        if not self._programs.is_active(number):
            self._admission.lose_place(number, is_kept=True)
        self.queue(sequence)
