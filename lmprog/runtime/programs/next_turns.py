"""The next turns of chats whose last one has been answered, computed before they are asked.

What a turn will begin with is written by the template, which may write the answer anew; what of it
no later text can change is tokenised and computed, as early texts are: in steps in which no call
has a row, on pages that are free, a part in each. Whose answers they followed pays for it, the one
that was served least goes first, and nothing is kept for it: it is evicted like anything else.

Counts what is computed so, what a later prompt of the same client begins with, and what none is
expected to begin with any more. Knows branches, templates and the tree; knows no ops.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmprog import wire
from lmprog.errors import LmprogError
from lmprog.runtime.programs.branch import RuntimeBranch
from lmprog.runtime.programs.long_texts import LONG
from lmprog.runtime.text.special_tokens import Passage

if TYPE_CHECKING:
    from lmprog.radix import Node
    from lmprog.runtime.programs.long_texts import EarlyTexts
    from lmprog.runtime.scheduling.scheduler import Scheduler
    from lmprog.runtime.scheduling.sequence import Client, Sequence, SequenceGroup
    from lmprog.runtime.scheduling.sessions import Pause

MOST_TURNS = 64
"""That are to be computed."""
MOST_OF_CLIENT = 8
MOST_EXPECTED = 256
"""Prompts that are remembered until they come."""
IN_PART = LONG // 2
"""Characters of a text that are tokenised at a time."""


@dataclass(eq=False, slots=True)
class NextTurn:
    """`branch` has as much of it as was tokenised."""

    branch: RuntimeBranch
    conversation: wire.Conversation
    pause: Pause | None
    """Of its session."""
    passage: Passage | None = None
    at: int = 0
    """Where in the passage what the branch has ends."""


@dataclass(eq=False, slots=True)
class Expected:
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
        self._expected: OrderedDict[RuntimeBranch, Expected] = OrderedDict()
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
        if self._early.compute(turn.branch, lambda *given: self._computed(turn, *given)):
            return True
        try:
            passage = turn.passage = turn.passage or self._write(turn.conversation)
        except LmprogError:  # a request that asks so will hear of it
            return False
        begin, end = turn.at, min(len(passage.text), turn.at + IN_PART)
        turn.at = end
        if begin == end:
            return False
        spans = [(max(a, begin) - begin, min(b, end) - begin) for a, b in passage.quoted]
        turn.branch.append(passage.text[begin:end], [(a, b) for a, b in spans if a < b])
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
            known = Expected(branch.payer, branch.tokens, end - count)
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
