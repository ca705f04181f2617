"""Decides who computes how many tokens in a step, and owns every page that is not free.

Pure: no clock, no randomness, no transport, no tensors; a step is `plan`, somebody else's
arithmetic, `commit`. There is one kind of step: prefill chunks, decodes, forced tokens and scorings
are rows of one plan under one token budget.

How a sequence moves: it waits in the line; it is *admitted* when its prefix has been looked up and locked
and there is memory for what it must compute; each step it gets a row; what it computes of known
text enters the tree when it is planned, so that other sequences of the same step share it already; what
it generates enters when it ends.

When memory runs out, pages that nobody stands on are forgotten first; then the sequences admitted last
are preempted: they are unlocked, keep nothing but their tokens, and what they computed stays in the
tree until its pages are needed. The sequence admitted first can preempt all others and fits the pool alone
(`submit` refuses it otherwise), so something always moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmprog.config import SchedulerConfig
from lmprog.errors import ContextOverflow, LmprogError, ModelError, Overloaded
from lmprog.radix import Node, PageAllocator, RadixTree
from lmprog.runtime.scheduling.admission_delay import AdmissionDelay
from lmprog.runtime.scheduling.generation import Generation, ScoredToken
from lmprog.runtime.scheduling.logits_requests import LogitsRequests, known_targets
from lmprog.runtime.scheduling.page_tables import PageTables
from lmprog.runtime.scheduling.pins import Pins
from lmprog.runtime.scheduling.plan import Plan, Row
from lmprog.runtime.scheduling.sampling_requests import SampleResult, StepResults
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup, SequenceState
from lmprog.runtime.scheduling.stats import Stats
from lmprog.runtime.scheduling.waiting_queue import WaitingQueue


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step brought one sequence. The `added` newest tokens of `sequence` are new; `ended` when
    nothing more comes.
    """

    sequence: Sequence
    added: int = 0
    ended: bool = False
    error: LmprogError | None = None


class Scheduler:
    """Owner of the tree, the pages and all sequences."""

    def __init__(
        self, config: SchedulerConfig, context_len: int, stats: Stats | None = None
    ) -> None:
        assert config.num_pages > 0, "the engine says how many pages there are"
        self.config = config
        self.context_len = context_len
        self.stats = stats or Stats()
        self.pages = PageAllocator(config.num_pages)
        self.tree = RadixTree(config.page_size, self.pages)
        self.tables = PageTables(config, self.tree, self.pages)
        self.line = WaitingQueue(config.policy, config.ageing, self._cached_prefix)
        self.patience = AdmissionDelay()
        self.pins = Pins(self.tree)
        self.running: list[Sequence] = []
        """Running sequences in the order in which they were admitted first."""
        self.step = 0
        self._admissions = 0

    @property
    def idle(self) -> bool:
        return not self.running and not len(self.line)

    # --- calls in and out
    # ----------------------------------------------------------------------------------------

    def check_fits(self, num_tokens: int, max_tokens: int) -> None:
        """Raises `ContextOverflow` where a sequence of that length can never run, with the numbers."""
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
                f"the prompt is {num_tokens:,} tokens; with max_tokens={max_tokens:,} that is {total:,} > {most:,} "
                f"({what}). Shorten the prompt{instead}.",
                prompt=num_tokens,
                max_tokens=max_tokens,
                limit=most,
            )

    @property
    def longest_sequence(self) -> int:
        """Most tokens of one sequence: the context, or all pages but the one that a shared part-page
        may cost.
        """
        return min(self.context_len, (self.config.num_pages - 1) * self.config.page_size)

    def submit(self, call: SequenceGroup) -> None:
        """Puts all sequences of `call` in the line. Raises `Overloaded` when the line is full; then
        nothing was done.
        """
        if len(self.line) + len(call.sequences) > self.config.max_waiting:
            raise Overloaded(
                f"{len(self.line):,} calls are waiting and at most {self.config.max_waiting:,} may; try again later.",
                retry_after=1.0,
            )
        for sequence in call.sequences:
            sequence.arrival = self.step
            sequence.matched = self._cached_prefix(sequence)
            if isinstance(sequence.task, Generation):
                self.stats.generated_tokens += (
                    sequence.task.generated
                )  # what was forced before the first step
            self.line.join(sequence)

    def end(self, sequence: Sequence, keep: int | None = None) -> Node | None:
        """Ends `sequence` wherever it is; what it computed of its first `keep` tokens (None: all) stays
        in the tree.

        Returns the node where it ended, pinned for the caller (who owes an `unpin`), None where
        nothing was computed.
        """
        if sequence.state is SequenceState.WAITING:
            self.line.leave(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
            if keep is not None:
                sequence.computed = min(sequence.computed, keep)
        sequence.state = SequenceState.ENDED
        return self.tables.leave(sequence, pin=True)

    def unpin(self, node: Node) -> None:
        """Gives back what `end` pinned."""
        self.tree.unpin(node)

    def preempt(self, sequence: Sequence) -> None:
        """Unseats a running sequence: unlocked, its work left in the tree, first in the line again."""
        self.running.remove(sequence)
        node = self.tables.leave(sequence, pin=False)
        assert node is None
        sequence.state = SequenceState.WAITING
        sequence.num_tokens_at_enqueue = len(sequence.tokens)
        sequence.call.preemptions += 1
        self.stats.preemptions += 1
        self.line.join(sequence)

    # --- a step
    # --------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Who runs how many tokens in this step. Their slots are held and what they compute of
        known text is in the tree already; `commit` or `fail` must follow."""
        self.step += 1
        self.tables.begin()
        rows: list[Row] = []
        budget = self.config.token_budget
        planned: set[Sequence] = set()
        # Decodes first: they are short and somebody waits for each token. Then prefills in the
        # order of seating.
        for sequence in sorted(self.running, key=_is_prefill):
            if not budget or len(rows) == self.config.max_rows:
                break
            if (
                sequence.state is SequenceState.RUNNING
            ):  # may have been preempted for an earlier one
                budget -= self._extend(sequence, budget, rows, planned)
        self.line.renew()
        while budget and len(rows) < self.config.max_rows:
            head = self.line.head
            if head is None or not self._seat(head):
                break
            budget -= self._extend(head, budget, rows, planned)
        plan = Plan(tuple(rows), *self.tables.finish())
        self.stats.see_plan(
            plan, len(self.running), len(self.line), self.config.num_pages - self.pages.num_free
        )
        return plan

    def commit(self, plan: Plan, wanted: LogitsRequests, sampled: StepResults) -> list[Progress]:
        """Takes what was sampled; sequences that ended by it are still admitted until `end` is called for
        them.
        """
        progress = []
        for index, row in enumerate(plan.rows):
            row.sequence.computed = row.end
            row.sequence.call.computed += row.count
            progress.append(self._take(row, index, wanted, sampled))
        if any(one.error for one in progress):
            self._restart_spoiled({one.sequence for one in progress if one.ended})
        return progress

    def fail(self, plan: Plan, error: LmprogError) -> list[Progress]:
        """The step raised: nothing it was to compute exists, so its rows' sequences fail and leave
        nothing behind.
        """
        for row in plan.rows:
            self.tables.spoil(row)
        self._restart_spoiled({row.sequence for row in plan.rows})
        return [Progress(row.sequence, ended=True, error=error) for row in plan.rows]

    def check(self) -> None:
        """All invariants of tree, pages and sequences; raises AssertionError."""
        own = [page for sequence in self.running for page in self.tables.own_pages(sequence)]
        self.tree.check()
        self.pages.check([*self.tree.pages_held(), *own])
        held = set(self.tree.pages_held())
        for sequence in self.running:
            assert sequence.state is SequenceState.RUNNING, "a admitted sequence runs"
            assert sequence not in self.line, "a admitted sequence does not wait"
            whole = min(sequence.shared, sequence.computed // self.config.page_size)
            assert all(page in held for page in sequence.pages[:whole]), (
                "shared pages are in the tree"
            )
            assert sequence.node is None or sequence.node.salt == sequence.namespace.root, (
                "salts never share a page"
            )
            assert len(sequence.pages) * self.config.page_size >= sequence.computed, (
                "computed tokens have pages"
            )
        for sequence in self.line:
            assert sequence.state is SequenceState.WAITING, "who waits is not admitted"
            assert sequence.node is None, "who waits locks nothing"
            assert not sequence.pages, "who waits holds no page"

    # --- inside a step
    # -------------------------------------------------------------------------------------------

    def _cached_prefix(self, sequence: Sequence) -> int:
        return self.tables.cached_prefix(sequence)

    def _seat(self, sequence: Sequence) -> bool:
        """Looks up and locks the sequence's prefix; False when there is no memory for it yet."""
        self.tables.attach(sequence)
        needed = self.tables.pages_for(sequence, len(sequence.tokens))
        # A page for the next tokens of each running sequence, twice as many for each time that this one
        # was preempted: so it waits until the others have grown, and nobody is preempted more than
        # log2(pages) + 1 times.
        reserve = len(self.running) << sequence.num_memory_preemptions
        room = self.pages.num_free + self.tree.num_evictable - needed - reserve
        waits = self.patience.left and not sequence.is_continuation and room < self.tree.num_pinned
        if self.running and (room < 0 or waits):
            self.tables.detach(sequence)
            if room >= 0:
                self.patience.spend()
            return False
        if sequence.is_continuation:
            self.patience.earn()
        self.line.leave(sequence)
        if not sequence.admission_order:
            self._admissions += 1
            sequence.admission_order = self._admissions
            sequence.call.cached += sequence.computed
            self.stats.count_admission(
                self.step - sequence.arrival - 1, len(sequence.tokens), sequence.computed
            )
        sequence.state = SequenceState.RUNNING
        self.running.append(sequence)
        self.running.sort(key=_admission_order_of)
        return True

    def _extend(
        self, sequence: Sequence, budget: int, rows: list[Row], planned: set[Sequence]
    ) -> int:
        """Plans the sequence's next tokens, at most `budget`; returns how many. 0 when memory must wait
        for others.
        """
        if sequence.remaining > 1:
            self.tables.attach(sequence)  # somebody may have computed more of it in the meantime
        count = min(sequence.remaining, budget, self.config.max_chunk or budget)
        needed = self.tables.pages_for(sequence, sequence.computed + count)
        if not self._make_room(needed, sequence, planned):
            return 0
        rows.append(self.tables.extend(sequence, count, len(rows)))
        planned.add(sequence)
        return count

    def _make_room(self, needed: int, sequence: Sequence, planned: set[Sequence]) -> bool:
        """Frees pages until `needed` are free: what nobody stands on, then the sequences admitted after
        this one.
        """
        while self.pages.num_free < needed:
            missing = needed - self.pages.num_free
            self.pins.loosen(missing)
            freed = self.tree.evict(missing)
            self.stats.evicted_pages += freed
            if freed >= missing:
                continue
            victim = self.running[-1]
            if victim is sequence or victim in planned:
                victim = next(
                    (
                        v
                        for v in reversed(self.running)
                        if v.admission_order > sequence.admission_order and v not in planned
                    ),
                    sequence,
                )
            if victim is sequence:
                return False
            victim.num_memory_preemptions += 1
            self.preempt(victim)
        return True

    def _take(self, row: Row, index: int, wanted: LogitsRequests, sampled: StepResults) -> Progress:
        sequence, pick = row.sequence, wanted.pick_of[index]
        picked = None if pick is None else sampled.picked[pick]
        found = _scored(wanted, sampled, wanted.scores_of[index])
        if found is None or (pick is not None and picked is None):
            self.tables.spoil_path(sequence)
            return Progress(sequence, ended=True, error=_not_finite(row))
        task = sequence.task
        if isinstance(task, Generation):
            task.prompt_logprobs += found
            if index in wanted.failed:
                return Progress(sequence, ended=True, error=wanted.failed[index])
            return Progress(sequence) if picked is None else self._accept(sequence, task, picked)
        num_known = len(known_targets(row))
        task.logprobs += found[:num_known]
        if row.end < len(sequence.tokens):
            return Progress(sequence)
        task.final_logprobs = tuple(found[num_known:])
        return Progress(sequence, ended=True)

    def _accept(self, sequence: Sequence, task: Generation, picked: SampleResult) -> Progress:
        generated, prompt_len = task.generated, task.prompt_len
        try:
            added = task.accept(picked.token, sequence.tokens)
        except LmprogError as error:  # its constraint grew beyond its limits
            return Progress(sequence, ended=True, error=error)
        if task.settings.sampling.logprobs is not None and task.prompt_len == prompt_len:
            task.logprobs.append(ScoredToken(picked.token, picked.logprob, picked.top))
        self.stats.generated_tokens += task.generated - generated
        return Progress(sequence, added=added, ended=task.finish is not None)

    def _restart_spoiled(self, ended: set[Sequence]) -> None:
        """Sequences that stood on what a failed row had put into the tree begin again."""
        for sequence in [
            sequence
            for sequence in self.running
            if sequence not in ended and self.tables.is_spoiled(sequence)
        ]:
            self.running.remove(sequence)
            self.tables.detach(sequence)
            sequence.state = SequenceState.WAITING
            self.line.join(sequence)


def _admission_order_of(sequence: Sequence) -> int:
    return sequence.admission_order


def _is_prefill(sequence: Sequence) -> bool:
    return sequence.remaining > 1


def _not_finite(row: Row) -> ModelError:
    return ModelError(
        f"the model gave numbers that are not finite at position {row.end - 1}; the call was ended and nothing of "
        "it was kept. The checkpoint or its dtype is at fault (try float32)."
    )


def _scored(wanted: LogitsRequests, sampled: StepResults, which: range) -> list[ScoredToken] | None:
    """The scores of one row, position by position; None when its logits were not finite."""
    found: list[ScoredToken] = []
    for index in which:
        scored = sampled.scored[index]
        if scored is None:
            return None
        targets = wanted.scores[index].targets
        tops = scored.tops or ((),) * len(targets)
        found += [ScoredToken(*each) for each in zip(targets, scored.logprobs, tops, strict=True)]
    return found
