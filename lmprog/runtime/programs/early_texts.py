"""Texts that are computed before a call asks for what follows: in steps in which no call has a row,
on pages that are free, a part in each.

Early texts come in parts, to branches that are open (`EarlyTexts`). Next turns are those of chats
whose last one has been answered (`NextTurns`): the template writes what they will begin with, and
may write the answer anew. What no later text can change is tokenised and computed. Of next turns
that of the client that was served least goes first, who asked for them pays, and nothing is kept
for them: they are evicted like anything else. It is counted what a later prompt of the same client
begins with, and what none is expected to begin with any more.

Knows branches, templates, the tree, and when the scheduler has nothing to do; knows no ops.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeAlias

from lmprog import wire
from lmprog.errors import LmprogError
from lmprog.runtime.programs.branch import BranchState, RuntimeBranch
from lmprog.runtime.programs.long_texts import LONG
from lmprog.runtime.scheduling.generation import Scoring
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup, SequenceState
from lmprog.runtime.text.special_tokens import Passage

if TYPE_CHECKING:
    from lmprog.radix import Node
    from lmprog.runtime.programs.call_builder import ServedModel
    from lmprog.runtime.programs.long_texts import LongTexts
    from lmprog.runtime.scheduling.logits_requests import Progress
    from lmprog.runtime.scheduling.scheduler import Scheduler
    from lmprog.runtime.scheduling.sequence import Client
    from lmprog.runtime.scheduling.sessions import Pause

MOST_GROWN = 64
"""Branches with early texts that are looked at; of more, those that grew last."""
MOST_TURNS = 64
"""That are to be computed."""
MOST_OF_CLIENT = 8
MOST_EXPECTED = 256
"""Prompts that are remembered until they come."""
IN_PART = LONG // 2
"""Characters of a text that are tokenised at a time."""


Computed: TypeAlias = Callable[[RuntimeBranch, Sequence, "Node | None"], object]
"""A part of a branch's text was computed, and ends there; None: it was not."""


class EarlyTexts:
    """Texts of branches that come in parts, which are computed before a call asks for what follows:
    in steps in which no call has a row, on pages that are free. What no later text can change is
    tokenised, as before a fork, so that the call finds it in the tree and its answer is the same.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        texts: LongTexts,
        model: ServedModel,
        move_pin_to: Callable[[RuntimeBranch, array[int]], object],
    ) -> None:
        """`move_pin_to` pins a branch to what is cached of its tokens."""
        self._scheduler = scheduler
        self._texts = texts
        self._model = model
        self._move_pin_to = move_pin_to
        self.grown: deque[RuntimeBranch] = deque(maxlen=MOST_GROWN)
        """Branches to which text has come, the first one first."""
        self.has_next = False
        self.under_way: list[tuple[RuntimeBranch, Sequence, Computed]] = []

    @property
    def is_waiting(self) -> bool:
        """Whether something is to be computed."""
        return bool(self.grown or (self.has_next and self.next_turns.are_missing))

    @cached_property
    def next_turns(self) -> NextTurns:
        """Made when the first one is expected."""
        self.has_next = True
        write, guard = self._model.template().begun, self._texts.service.guard
        return NextTurns(self._scheduler, self, partial(write, guard), self._texts.clock)

    def grow(self, branch: RuntimeBranch) -> None:
        """Text has come to the branch, and more may. Steps know of it from the first one on."""
        self.grown.append(branch)
        if self._begin not in self._scheduler.hooks.spare:
            self._scheduler.hooks.spare.append(self._begin)

    def _begin(self) -> None:
        """Submits what comes next, as much as a step may have beside decodes: a call that comes
        meanwhile waits no longer than for any other step.
        """
        while self.grown and not self.under_way:
            branch, began = self.grown[0], self._texts.clock()
            goes_on = self.goes_on(branch, self._computed)
            self._scheduler.shares.work(branch.payer, self._texts.clock() - began)
            if goes_on:
                return
            self.grown.popleft()

    def goes_on(self, branch: RuntimeBranch, computed: Computed) -> bool:
        """Computes what comes next of the branch, or else tokenises more of it. False: there is no
        more.
        """
        return self.compute(branch, computed) or self._tokenise(branch)

    def _tokenise(self, branch: RuntimeBranch) -> bool:
        """A part of what the branch has up to `UNSAID`."""
        if not self._is_free(branch):
            return False
        end = branch.pending.rfind(wire.UNSAID)
        part = branch.pending[: IN_PART if end < 0 else min(end, IN_PART)]
        cut = self._texts.encoder.cutter.last(part)
        try:
            self._texts.check_length(branch)
            if cut:
                branch.tokenise_up_to(cut, self._texts.encoder)
        except LmprogError:  # its call will say so
            return False
        return cut > 0

    @staticmethod
    def _is_free(branch: RuntimeBranch) -> bool:
        """Whether it is open, and no call of it has come."""
        is_asked = branch.is_busy or branch.queue or branch.failure is not None
        return branch.state is BranchState.OPEN and not is_asked

    def compute(self, branch: RuntimeBranch, computed: Computed) -> bool:
        """Submits what comes next of the branch, which `computed` hears of. False: nothing does."""
        sequence = self._next(branch)
        if sequence is not None:
            self._scheduler.submit(sequence.group)
            self.under_way.append((branch, sequence, computed))
        return sequence is not None

    def _next(self, branch: RuntimeBranch) -> Sequence | None:
        """None where less than a page is missing, a call has come, or it would cost others."""
        if not self._is_free(branch):
            return None
        scheduler, tokens, size = self._scheduler, branch.tokens, self._scheduler.config.page_size
        namespace = self._model.namespaces.of(tokens, branch.salt, branch.adapter)
        found = scheduler.tree.match(namespace.keys(tokens), namespace.root).length
        end = min(len(tokens), found + scheduler.planner.prefill_budget(1)[0])
        if end - found < size or scheduler.tables.states is not None or not scheduler.config.share:
            return None
        needed = (end - found) // size + 2
        growth = scheduler.programs.expected_growth(scheduler.running).most / size
        used = scheduler.memory.num_used + growth + needed
        if needed > scheduler.pages.num_free or used > scheduler.pages.num_pages:
            return None
        group = SequenceGroup(
            client=branch.payer, weight=branch.weight, prompt_len=end, goes_on=True
        )
        # one score, without which nobody would see that what was computed is not finite
        sequence = Sequence(group, tokens[:end], Scoring(end, (tokens[end - 1],)), namespace)
        group.sequences.append(sequence)
        return sequence

    def deliver(self, progress: Iterable[Progress]) -> None:
        """Ends what a step has computed, or failed to; and what has found no place."""
        branch, sequence, computed = self.under_way[0]
        brought = next((one for one in progress if one.sequence is sequence and one.ended), None)
        if brought is None and sequence.state is SequenceState.RUNNING:
            return
        self.under_way.clear()
        node = self._scheduler.end(sequence)
        has_failed = brought is None or brought.error is not None
        computed(branch, sequence, None if has_failed else node)
        sequence.group.sequences.clear()
        if node is not None:
            self._scheduler.unpin(node)

    def _computed(self, branch: RuntimeBranch, _: Sequence, node: Node | None) -> None:
        if branch.state is BranchState.OPEN and not branch.is_busy:
            self._move_pin_to(branch, branch.tokens)
        if node is None:
            self.grown.clear()  # not again and again


@dataclass(eq=False, slots=True)
class NextTurn:
    """`branch` has what the template writes of it, once that `is_written`."""

    branch: RuntimeBranch
    conversation: wire.Conversation
    pause: Pause | None
    """Of its session."""
    is_written: bool = False


@dataclass(eq=False, slots=True)
class ExpectedPrompt:
    """A prompt that was computed ahead: its tokens from `begin` on, `num_computed` of them."""

    client: Client
    tokens: array[int]
    begin: int
    num_computed: int = 0


class NextTurns:
    """Of all clients."""

    def __init__(
        self,
        scheduler: Scheduler,
        early: EarlyTexts,
        write: Callable[[wire.Conversation], Passage],
        clock: Callable[[], float],
    ) -> None:
        """`write`: what a conversation begins with, up to what is not known. Raises LmprogError."""
        self._scheduler = scheduler
        self._early = early
        self._write = write
        self._clock = clock
        self._turns: dict[NextTurn, None] = {}
        """The one that came first first."""
        self._expected: OrderedDict[RuntimeBranch, ExpectedPrompt] = OrderedDict()
        scheduler.hooks.spare.append(self._begin)
        scheduler.hooks.submitted.append(self._came)

    @property
    def are_missing(self) -> bool:
        """Whether some are to be computed."""
        return bool(self._turns)

    def expect(self, closed: RuntimeBranch, conversation: wire.Conversation) -> None:
        """The branch has been closed, and its chat is expected to go on so."""
        client, sessions = closed.payer, self._scheduler.sessions
        own = [one for one in self._turns if one.branch.payer == client]
        if len(own) >= MOST_OF_CLIENT:
            del self._turns[own[0]]
        elif len(self._turns) >= MOST_TURNS:
            payers = [one.branch.payer for one in self._turns]
            most = max(payers, key=payers.count)
            del self._turns[next(one for one in self._turns if one.branch.payer == most)]
        branch = RuntimeBranch(closed.id, closed.salt, closed.adapter, closed.weight, client)
        branch.open()
        self._turns[NextTurn(branch, conversation, sessions.last_of(closed.program))] = None

    def _begin(self) -> None:
        """Submits a part of the turn whose client was served least, or reads more of it."""
        scheduler = self._scheduler
        if not self._turns or self._early.under_way or scheduler.waiting.places:
            return
        turn = min(self._turns, key=lambda one: scheduler.shares.served(one.branch.payer))
        began = self._clock()
        if not self._goes_on(turn):
            del self._turns[turn]
        scheduler.shares.work(turn.branch.payer, self._clock() - began)

    def _goes_on(self, turn: NextTurn) -> bool:
        """Whether there is more to do for it."""
        if turn.is_written:
            return self._early.goes_on(turn.branch, lambda *given: self._computed(turn, *given))
        try:
            passage = self._write(turn.conversation)
        except LmprogError:  # a request that asks so will hear of it
            return False
        turn.branch.append(passage.text, passage.quoted)
        turn.is_written = True
        return True

    def _computed(
        self, turn: NextTurn, branch: RuntimeBranch, sequence: Sequence, node: Node | None
    ) -> None:
        if node is None:
            self._turns.pop(turn, None)
            return
        count, stats = sequence.group.computed, self._scheduler.stats
        stats.ahead_tokens += count
        if turn.pause is not None:
            self._scheduler.sessions.computed_ahead(turn.pause, node)
        end = sequence.group.prompt_len
        known = self._expected.get(branch)
        if known is None:
            known = ExpectedPrompt(branch.payer, branch.tokens, end - count)
            self._expected[branch] = known
        known.tokens = sequence.tokens[:end]
        known.num_computed += count
        if len(self._expected) > MOST_EXPECTED:
            stats.ahead_wasted_tokens += self._expected.popitem(last=False)[1].num_computed

    def _came(self, group: SequenceGroup) -> None:
        """A call was submitted, which may be an expected one."""
        if not self._expected or group.goes_on:
            return
        sequence = group.sequences[0]
        for branch, one in reversed(self._expected.items()):
            found = min(sequence.matched, len(one.tokens))
            if one.client != group.client or found <= one.begin:
                continue
            if sequence.tokens[:found] == one.tokens[:found]:
                stats = self._scheduler.stats
                num_used = min(one.num_computed, found - one.begin)
                stats.ahead_used_tokens += num_used
                stats.ahead_wasted_tokens += one.num_computed - num_used
                del self._expected[branch]
                return
