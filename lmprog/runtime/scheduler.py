"""Decides who computes how many tokens in a step, and owns every page that is not free.

Pure: no clock, no randomness, no transport, no tensors; a step is `plan`, somebody else's arithmetic, `commit`. There
is one kind of step: prefill chunks, decodes, forced tokens and scorings are rows of one plan under one token budget.

How a lane moves: it waits in the line; it is *seated* when its prefix has been looked up and locked and there is
memory for what it must compute; each step it gets a row; what it computes of known text enters the tree when it is
planned, so that other lanes of the same step share it already; what it generates enters when it ends.

When memory runs out, pages that nobody stands on are forgotten first; then the lanes seated last are unseated: they
are unlocked, keep nothing but their tokens, and what they computed stays in the tree until its pages are needed. The
lane seated first can unseat all others and fits the pool alone (`submit` refuses it otherwise), so something always
moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmprog.config import SchedulerConfig
from lmprog.errors import ContextOverflow, LmprogError, ModelError, Overloaded
from lmprog.radix import Node, PageAllocator, RadixTree
from lmprog.runtime.generation import Generation, ScoredToken
from lmprog.runtime.line import Line
from lmprog.runtime.masks import Wanted, known_targets
from lmprog.runtime.pagetable import PageTables
from lmprog.runtime.patience import Patience
from lmprog.runtime.picks import Picked, Sampled
from lmprog.runtime.pins import Pins
from lmprog.runtime.plan import Plan, Row
from lmprog.runtime.request import Call, Lane, LaneState
from lmprog.runtime.stats import Stats


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step brought one lane. The `added` newest tokens of `lane` are new; `ended` when nothing more comes."""

    lane: Lane
    added: int = 0
    ended: bool = False
    error: LmprogError | None = None


class Scheduler:
    """Owner of the tree, the pages and all lanes."""

    def __init__(self, config: SchedulerConfig, context_len: int, stats: Stats | None = None) -> None:
        assert config.num_pages > 0, "the engine says how many pages there are"
        self.config = config
        self.context_len = context_len
        self.stats = stats or Stats()
        self.pages = PageAllocator(config.num_pages)
        self.tree = RadixTree(config.page_size, self.pages)
        self.tables = PageTables(config, self.tree, self.pages)
        self.line = Line(config.policy, config.ageing, self._cached_prefix)
        self.patience = Patience()
        self.pins = Pins(self.tree)
        self.seated: list[Lane] = []
        """Running lanes in the order in which they were seated first."""
        self.step = 0
        self._seats = 0

    @property
    def idle(self) -> bool:
        return not self.seated and not len(self.line)

    # --- calls in and out ----------------------------------------------------------------------------------------

    def check_fits(self, num_tokens: int, max_tokens: int) -> None:
        """Raises `ContextOverflow` where a lane of that length can never run, with the numbers."""
        total = num_tokens + max_tokens
        most = self.longest_lane
        if total > most:
            what = "the model's context" if most == self.context_len else "what the key/value memory can hold"
            instead = f" or set max_tokens <= {most - num_tokens:,}" if num_tokens < most else ""
            raise ContextOverflow(
                f"the prompt is {num_tokens:,} tokens; with max_tokens={max_tokens:,} that is {total:,} > {most:,} "
                f"({what}). Shorten the prompt{instead}.",
                prompt=num_tokens,
                max_tokens=max_tokens,
                limit=most,
            )

    @property
    def longest_lane(self) -> int:
        """Most tokens of one lane: the context, or all pages but the one that a shared part-page may cost."""
        return min(self.context_len, (self.config.num_pages - 1) * self.config.page_size)

    def submit(self, call: Call) -> None:
        """Puts all lanes of `call` in the line. Raises `Overloaded` when the line is full; then nothing was done."""
        if len(self.line) + len(call.lanes) > self.config.max_waiting:
            raise Overloaded(
                f"{len(self.line):,} calls are waiting and at most {self.config.max_waiting:,} may; try again later.",
                retry_after=1.0,
            )
        for lane in call.lanes:
            lane.arrival = self.step
            lane.matched = self._cached_prefix(lane)
            if isinstance(lane.task, Generation):
                self.stats.generated_tokens += lane.task.generated  # what was forced before the first step
            self.line.join(lane)

    def end(self, lane: Lane, keep: int | None = None) -> Node | None:
        """Ends `lane` wherever it is; what it computed of its first `keep` tokens (None: all) stays in the tree.

        Returns the node where it ended, pinned for the caller (who owes an `unpin`), None where nothing was computed.
        """
        if lane.state is LaneState.WAITING:
            self.line.leave(lane)
        elif lane.state is LaneState.RUNNING:
            self.seated.remove(lane)
            if keep is not None:
                lane.computed = min(lane.computed, keep)
        lane.state = LaneState.ENDED
        return self.tables.leave(lane, pin=True)

    def unpin(self, node: Node) -> None:
        """Gives back what `end` pinned."""
        self.tree.unpin(node)

    def preempt(self, lane: Lane) -> None:
        """Unseats a running lane: unlocked, its work left in the tree, first in the line again."""
        self.seated.remove(lane)
        node = self.tables.leave(lane, pin=False)
        assert node is None
        lane.state = LaneState.WAITING
        lane.standing = len(lane.tokens)
        lane.call.preemptions += 1
        self.stats.preemptions += 1
        self.line.join(lane)

    # --- a step --------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Who runs how many tokens in this step. Their slots are held and what they compute of known text is in the
        tree already; `commit` or `fail` must follow."""
        self.step += 1
        self.tables.begin()
        rows: list[Row] = []
        budget = self.config.token_budget
        planned: set[Lane] = set()
        # Decodes first: they are short and somebody waits for each token. Then prefills in the order of seating.
        for lane in sorted(self.seated, key=_is_prefill):
            if not budget or len(rows) == self.config.max_rows:
                break
            if lane.state is LaneState.RUNNING:  # may have been unseated for an earlier one
                budget -= self._extend(lane, budget, rows, planned)
        self.line.renew()
        while budget and len(rows) < self.config.max_rows:
            head = self.line.head
            if head is None or not self._seat(head):
                break
            budget -= self._extend(head, budget, rows, planned)
        plan = Plan(tuple(rows), *self.tables.finish())
        self.stats.see_plan(plan, len(self.seated), len(self.line), self.config.num_pages - self.pages.num_free)
        return plan

    def commit(self, plan: Plan, wanted: Wanted, sampled: Sampled) -> list[Progress]:
        """Takes what was sampled; lanes that ended by it are still seated until `end` is called for them."""
        progress = []
        for index, row in enumerate(plan.rows):
            row.lane.computed = row.end
            row.lane.call.computed += row.count
            progress.append(self._take(row, index, wanted, sampled))
        if any(one.error for one in progress):
            self._restart_spoiled({one.lane for one in progress if one.ended})
        return progress

    def fail(self, plan: Plan, error: LmprogError) -> list[Progress]:
        """The step raised: nothing it was to compute exists, so its rows' lanes fail and leave nothing behind."""
        for row in plan.rows:
            self.tables.spoil(row)
        self._restart_spoiled({row.lane for row in plan.rows})
        return [Progress(row.lane, ended=True, error=error) for row in plan.rows]

    def check(self) -> None:
        """All invariants of tree, pages and lanes; raises AssertionError."""
        own = [page for lane in self.seated for page in self.tables.own_pages(lane)]
        self.tree.check()
        self.pages.check([*self.tree.pages_held(), *own])
        held = set(self.tree.pages_held())
        for lane in self.seated:
            assert lane.state is LaneState.RUNNING, "a seated lane runs"
            assert lane not in self.line, "a seated lane does not wait"
            whole = min(lane.shared, lane.computed // self.config.page_size)
            assert all(page in held for page in lane.pages[:whole]), "shared pages are in the tree"
            assert lane.node is None or lane.node.salt == lane.realm.root, "salts never share a page"
            assert len(lane.pages) * self.config.page_size >= lane.computed, "computed tokens have pages"
        for lane in self.line:
            assert lane.state is LaneState.WAITING, "who waits is not seated"
            assert lane.node is None, "who waits locks nothing"
            assert not lane.pages, "who waits holds no page"

    # --- inside a step -------------------------------------------------------------------------------------------

    def _cached_prefix(self, lane: Lane) -> int:
        return self.tables.cached_prefix(lane)

    def _seat(self, lane: Lane) -> bool:
        """Looks up and locks the lane's prefix; False when there is no memory for it yet."""
        self.tables.attach(lane)
        needed = self.tables.pages_for(lane, len(lane.tokens))
        # A page for the next tokens of each running lane, twice as many for each time that this one lost its seat: so
        # it waits until the others have grown, and nobody loses a seat more than log2(pages) + 1 times.
        reserve = len(self.seated) << lane.unseated
        room = self.pages.num_free + self.tree.num_evictable - needed - reserve
        waits = self.patience.left and not lane.returns and room < self.tree.num_pinned
        if self.seated and (room < 0 or waits):
            self.tables.detach(lane)
            if room >= 0:
                self.patience.spend()
            return False
        if lane.returns:
            self.patience.earn()
        self.line.leave(lane)
        if not lane.seat:
            self._seats += 1
            lane.seat = self._seats
            lane.call.cached += lane.computed
            self.stats.see_seat(self.step - lane.arrival - 1, len(lane.tokens), lane.computed)
        lane.state = LaneState.RUNNING
        self.seated.append(lane)
        self.seated.sort(key=_seat_of)
        return True

    def _extend(self, lane: Lane, budget: int, rows: list[Row], planned: set[Lane]) -> int:
        """Plans the lane's next tokens, at most `budget`; returns how many. 0 when memory must wait for others."""
        if lane.remaining > 1:
            self.tables.attach(lane)  # somebody may have computed more of it in the meantime
        count = min(lane.remaining, budget, self.config.max_chunk or budget)
        needed = self.tables.pages_for(lane, lane.computed + count)
        if not self._make_room(needed, lane, planned):
            return 0
        rows.append(self.tables.extend(lane, count, len(rows)))
        planned.add(lane)
        return count

    def _make_room(self, needed: int, lane: Lane, planned: set[Lane]) -> bool:
        """Frees pages until `needed` are free: what nobody stands on, then the lanes seated after this one."""
        while self.pages.num_free < needed:
            missing = needed - self.pages.num_free
            self.pins.loosen(missing)
            freed = self.tree.evict(missing)
            self.stats.evicted_pages += freed
            if freed >= missing:
                continue
            victim = self.seated[-1]
            if victim is lane or victim in planned:
                victim = next((v for v in reversed(self.seated) if v.seat > lane.seat and v not in planned), lane)
            if victim is lane:
                return False
            victim.unseated += 1
            self.preempt(victim)
        return True

    def _take(self, row: Row, index: int, wanted: Wanted, sampled: Sampled) -> Progress:
        lane, pick = row.lane, wanted.pick_of[index]
        picked = None if pick is None else sampled.picked[pick]
        found = _scored(wanted, sampled, wanted.scores_of[index])
        if found is None or (pick is not None and picked is None):
            self.tables.spoil_path(lane)
            return Progress(lane, ended=True, error=_not_finite(row))
        task = lane.task
        if isinstance(task, Generation):
            task.prompt_logprobs += found
            if index in wanted.failed:
                return Progress(lane, ended=True, error=wanted.failed[index])
            return Progress(lane) if picked is None else self._accept(lane, task, picked)
        num_known = len(known_targets(row))
        task.logprobs += found[:num_known]
        if row.end < len(lane.tokens):
            return Progress(lane)
        task.final_logprobs = tuple(found[num_known:])
        return Progress(lane, ended=True)

    def _accept(self, lane: Lane, task: Generation, picked: Picked) -> Progress:
        generated, prompt_len = task.generated, task.prompt_len
        try:
            added = task.accept(picked.token, lane.tokens)
        except LmprogError as error:  # its constraint grew beyond its limits
            return Progress(lane, ended=True, error=error)
        if task.settings.sampling.logprobs is not None and task.prompt_len == prompt_len:
            task.logprobs.append(ScoredToken(picked.token, picked.logprob, picked.top))
        self.stats.generated_tokens += task.generated - generated
        return Progress(lane, added=added, ended=task.finish is not None)

    def _restart_spoiled(self, ended: set[Lane]) -> None:
        """Lanes that stood on what a failed row had put into the tree begin again."""
        for lane in [lane for lane in self.seated if lane not in ended and self.tables.is_spoiled(lane)]:
            self.seated.remove(lane)
            self.tables.detach(lane)
            lane.state = LaneState.WAITING
            self.line.join(lane)


def _seat_of(lane: Lane) -> int:
    return lane.seat


def _is_prefill(lane: Lane) -> bool:
    return lane.remaining > 1


def _not_finite(row: Row) -> ModelError:
    return ModelError(
        f"the model gave numbers that are not finite at position {row.end - 1}; the call was ended and nothing of "
        "it was kept. The checkpoint or its dtype is at fault (try float32)."
    )


def _scored(wanted: Wanted, sampled: Sampled, which: range) -> list[ScoredToken] | None:
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
