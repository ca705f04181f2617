"""Drafts: tokens that a sequence is guessed to go on with, computed as further tokens of its row.

The logits after each drafted token are asked for like those after the last known one: with the same
random number, mask, penalties and bans that the token at that position would have without a draft.
As long as what is sampled is what was drafted, the next logits are right; after the first other
token the rest of the row is for nothing, and is computed again. So the text is the same as without
drafts, token by token, also where it is sampled.

Tokens are guessed as they went on where the last tokens of the text stood before (`continuation`):
texts that quote, extract or edit repeat long stretches of their prompt, and so does a model that
goes round in circles. No index is kept; where the end of a text is new, which one search of its
bytes tells, a guess costs 1 us for a thousand tokens.

Or a small model writes them (`GrowingDraft`), asked for each token as the large one is asked. So
what it proposes is a fixed token, and the text is the one without drafts, whatever it proposes; and
where both models expect the same, they draw the same, also at high temperatures. A draft that is
drawn by itself and accepted by chance would be equal in distribution only, and accepted no more
often than the most likely token is drawn.

A drafted row is a row like any other, with more tokens and the logits of several. It takes only
what other rows leave: of the token budget, and of pages that are free or that nobody uses. Where
drafts are worth it `draft_worth` knows. Knows tasks, rows, tokens, pages and requests; knows no
tensors.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from collections.abc import Sequence as Tokens
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Protocol

from lmprog.errors import LmprogError
from lmprog.runtime.scheduling.active_programs import Memory
from lmprog.runtime.scheduling.draft_worth import (
    ASKED,
    MOST,
    SHORTEST,
    WRITTEN,
    DraftAccounts,
    DraftChances,
    DraftCosts,
    DraftRecord,
    StepKind,
    Worth,
)
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.logits_requests import plain_request, sample_request
from lmprog.runtime.scheduling.plan import Plan, Row, RowDraft
from lmprog.runtime.scheduling.sampling_requests import SampleRequest
from lmprog.runtime.scheduling.sequence import Sequence

log = logging.getLogger("lmprog")

LONGEST = 12
"""Of several places the one counts that has the most tokens before it in common, up to so many; of
equals the last one.
"""
MOST_INSIDE = 16
"""Places inside of tokens, where bytes are equal and tokens are not, that a search passes over."""

UNWATCHED = 9
"""While drafting pauses, so many steps are passed over before the next one that is measured."""


class Guess(NamedTuple):
    """Tokens that may follow, and what speaks for them."""

    tokens: Tokens[int]
    evidence: int = SHORTEST
    """As `draft_worth` counts it."""


class DraftSource(Protocol):
    """Guesses the tokens that follow: any number up to `most`; none where fewer than `evidence`
    tokens speak for them, if it knows how many.
    """

    def __call__(self, tokens: array[int], most: int, evidence: int) -> Guess: ...


class GuessWorth(NamedTuple):
    """Which guesses are worth a draft."""

    least: int | None
    """Fewest tokens that must speak for one; None: however many do, it is not."""
    asks: bool
    """Text that a constraint asks for is one."""
    most_of: Callable[[int], int]
    """How many tokens of one with that evidence."""


def draft(
    tokens: array[int], task: Generation, room: int, source: DraftSource, worth: GuessWorth
) -> RowDraft | None:
    """How `task` may go on after `tokens`: as many sampled tokens as its first guess is worth, and
    with forced ones at most `room`. None: nothing is known, or worth it.

    What a constraint or the end of the text excludes is left out, and what completes a stop string:
    so a stop can end a text only with the last token that a step brings.
    """
    longest = min(MOST, task.left - 1)
    guess = _guess(task, tokens, longest, source, worth)
    most = min(longest, worth.most_of(guess.evidence)) if guess.tokens else 0
    if not most:
        return None
    if task.is_plain:
        guessed = guess.tokens[: min(most, room)]
        end = next((at for at, one in enumerate(guessed) if task.is_end(one)), len(guessed))
        return before_stop(task, array("i", guessed[:end]), [1] * end, [], guess.evidence)
    ahead, drafted, guesses = task, tokens[:], list(guess.tokens)
    lengths: list[int] = []
    aheads: list[Generation] = []
    while len(aheads) < most:
        guesses = guesses or list(_guess(ahead, drafted, most - len(aheads), source, worth).tokens)
        num_before = len(drafted)
        after = after_guess(ahead, guesses, drafted)
        if after is None or len(drafted) - len(tokens) > room:
            break
        ahead = after
        piece = drafted[num_before:].tolist()
        guesses = guesses[len(piece) :] if guesses[: len(piece)] == piece else []
        aheads.append(ahead)
        lengths.append(len(piece))
    del drafted[: len(tokens)]
    return before_stop(task, drafted, lengths, aheads, guess.evidence)


def _guess(
    ahead: Generation, drafted: array[int], most: int, source: DraftSource, worth: GuessWorth
) -> Guess:
    """Text that the constraint asks for, where it is not appended anyway, or else the source's."""
    settings = ahead.settings
    if worth.asks and settings.constraint is not None and settings.forcing is not None:
        asked = settings.forcing(settings.constraint, ahead.guide, drafted)
        if asked:
            return Guess(asked, ASKED)
    return Guess(()) if worth.least is None else source(drafted, most, worth.least)


def after_guess(ahead: Generation, guesses: list[int], drafted: array[int]) -> Generation | None:
    """The generation after the first guess, which is appended to `drafted` with what it forces;
    None, and nothing is appended, where it cannot be sampled or ends the text.
    """
    if not guesses:
        return None
    token, num_before = guesses[0], len(drafted)
    if not ahead.is_ready():
        return None
    try:
        mask = ahead.mask()
        if mask is not None and not mask.allows(token):
            return None
        after = ahead.copy()
        after.accept(token, drafted)
    except LmprogError:  # its constraint exceeded its limits: where it is sampled, this is said
        del drafted[num_before:]
        return None
    if after.finish is not None:
        del drafted[num_before:]
        return None
    return after


def before_stop(
    task: Generation,
    drafted: array[int],
    lengths: list[int],
    aheads: list[Generation],
    evidence: int = WRITTEN,
) -> RowDraft | None:
    """Leaves out what completes a stop, and what belongs to no piece."""
    most = len(drafted) if task.num_before_stop is None else task.num_before_stop(drafted)
    ends = list(accumulate(lengths))
    count = bisect_right(ends, most)
    del drafted[ends[count - 1] if count else 0 :]
    if not count:
        return None
    return RowDraft(drafted, tuple(lengths[:count]), tuple(aheads[:count]), evidence)


def continuation(tokens: array[int], most: int, evidence: int = SHORTEST) -> Guess:
    """The `most` tokens that would follow `tokens`; none where the last `evidence` of them are new.

    Where the repeated stretch reaches the end of `tokens`, it goes on in a circle.
    """
    place, length = _place(tokens, max(evidence, SHORTEST))
    if not length:
        return Guess(array("i"))
    period = len(tokens) - place
    found = tokens[place : place + most]
    while len(found) < most:
        found.extend(found[len(found) - period : len(found) - period + most - len(found)])
    return Guess(found, length)


def _place(tokens: array[int], length: int) -> tuple[int, int]:
    """Where what followed the tokens like the last `length` or more begins, and how many are like
    them; none are where these are new.
    """
    text, size = tokens.tobytes(), tokens.itemsize
    place = _last(text, length * size, size)
    if place < 0:
        return 0, 0
    too_long = LONGEST + 1
    while too_long - length > 1:  # what is found for some length is for all shorter ones
        middle = (length + too_long) // 2
        found = _last(text, middle * size, size)
        if found < 0:
            too_long = middle
        else:
            place, length = found, middle
    return place // size, length


def _last(text: bytes, length: int, size: int) -> int:
    """The end of the last earlier place of the last `length` bytes; -1 where there is none."""
    if length >= len(text):
        return -1
    wanted, end = text[-length:], len(text) - size
    for _ in range(MOST_INSIDE):
        at = text.rfind(wanted, 0, end)
        if at < 0:
            return -1
        if at % size == 0:
            return at + length
        end = at + length - 1
    return -1


class GrowingDraft:
    """How a row may go on, as far as that is written."""

    def __init__(self, row: Row, task: Generation, most: int, room: int) -> None:
        """At most `most` sampled tokens, and with forced ones at most `room`."""
        self.row = row
        self.sequence = row.sequence
        self.tokens = row.sequence.tokens[:]
        """The known ones, and those that are drafted."""
        self.is_over = most <= 0 or room <= 0
        self._task = self._ahead = task
        self._most = most
        self._end = len(self.tokens) + room
        self._lengths: list[int] = []
        self._aheads: list[Generation] = []

    def request(self, logit: int) -> SampleRequest | None:
        """The request for its next token; None, and it is over, where its constraint exceeded its
        limits.
        """
        if self._task.is_plain:
            return plain_request(self.row, self._task, logit, len(self._lengths))
        if not self._ahead.is_ready():
            self.is_over = True
            return None
        try:
            return sample_request(self.tokens, self._ahead, logit)
        except LmprogError:
            self.is_over = True
            return None

    def take(self, token: int) -> None:
        """The next token; it is over where that ends the text, or where it is long enough."""
        task, num_before = self._task, len(self.tokens)
        if task.is_plain:
            if task.is_end(token):
                self.is_over = True
                return
            self.tokens.append(token)
        else:
            after = after_guess(self._ahead, [token], self.tokens)
            if after is None or len(self.tokens) > self._end:
                del self.tokens[num_before:]
                self.is_over = True
                return
            self._ahead = after
            self._aheads.append(after)
        self._lengths.append(len(self.tokens) - num_before)
        self.is_over = len(self._lengths) >= self._most or len(self.tokens) >= self._end

    def whole(self) -> RowDraft | None:
        """All of it; None where nothing was drafted."""
        drafted = self.tokens[len(self.sequence.tokens) :]
        return before_stop(self._task, drafted, self._lengths, self._aheads)


class DraftModel(Protocol):
    """A small model with memory of its own, in which it keeps what it has read of sequences."""

    @property
    def num_pages(self) -> int: ...

    @property
    def num_free_pages(self) -> int: ...

    def extend(self, drafts: list[GrowingDraft]) -> None:
        """Writes on each of them until it is over; on none that it cannot read yet."""
        ...


class Drafting:
    """Adds drafts to the rows of a step, and takes back what was not right."""

    def __init__(
        self, memory: Memory, clock: Callable[[], float], source: DraftSource = continuation
    ) -> None:
        self._memory = memory
        self._mode = memory.config.speculation
        self._clock = clock
        self.source = source
        self.model: DraftModel | None = None
        """What drafts in place of the source, where there is one."""
        self.costs = DraftCosts()
        self.chances = DraftChances()
        self.accounts = DraftAccounts()
        self._least = 0.0
        """The chance from which on a token is drafted in this step."""
        self._most_each = MOST
        """Tokens that may be drafted for each row of it."""
        self._looked = 0.0
        """Seconds that it took to look for drafts of this step."""
        self._num_unwatched = 0
        """Steps before the next one of which anything is noted."""
        self._is_watched = self._mode == "auto"

    def add(self, rows: list[Row], budget: int) -> dict[int, RowDraft]:
        """Lengthens rows by drafts of at most `budget` tokens in all; returns these by row."""
        if not rows:
            return {}
        began = self._clock()
        if self._mode == "auto":
            self._is_watched = not self._num_unwatched
            if not self._is_watched:
                self._num_unwatched -= 1
                return {}
        tasks: dict[int, Generation] = {}
        for index, row in enumerate(rows):
            task = row.sequence.task
            if isinstance(task, Generation) and self._may_follow(row, task):
                tasks[index] = task
        if not tasks or (self._mode == "auto" and not self._may_draft(rows)):
            return {}
        if self.model is None:
            drafted = self._guessed(rows, tasks, budget)
        else:
            drafted = self._written(self.model, rows, tasks, budget)
        found: dict[int, RowDraft] = {}
        for index, one in drafted.items():
            if self._has_pages(rows[index], one):
                rows[index] = self._memory.tables.lengthen(rows[index], one.tokens)
                found[index] = one
        self._looked = self._clock() - began
        return found

    def _may_draft(self, rows: list[Row]) -> bool:
        """Whether drafts may pay in a step of these rows. Beside prompts, which take any time,
        they are not judged, so there only where they have paid.
        """
        kind = decoding_kind(rows)
        has_prompts = kind is None
        if kind is None:
            kind = StepKind(len(rows), all(row.sequence.task.is_plain for row in rows))
        if not self.accounts.may_draft(kind, has_prompts) or self.costs.usual(kind) is None:
            self._num_unwatched = 0 if self.accounts.is_open(kind) else UNWATCHED
            return False
        ratio = self.costs.ratio(kind)
        self._least = ratio / self.accounts.saved_by_one(kind)
        self._most_each = self.accounts.most_each(kind, ratio)
        return True

    def _guessed(
        self, rows: list[Row], tasks: Mapping[int, Generation], budget: int
    ) -> dict[int, RowDraft]:
        """By row: what the source guesses after it, where that is worth a draft."""
        found: dict[int, RowDraft] = {}
        worth: dict[bool, Worth] = {}
        for index, task in tasks.items():
            row, is_plain = rows[index], task.is_plain
            sequence = row.sequence
            if is_plain not in worth:
                worth[is_plain] = self._worth(is_plain)
            least, asks, best = worth[is_plain]
            asks = asks and _samples_forced(task)
            if budget <= 0 or not (least or asks) or not self._may_be_right(sequence, best):
                continue
            most = partial(self._most, sequence, is_plain)
            asked = GuessWorth(least, asks, most)
            drafted = draft(sequence.tokens, task, self._room(row, budget), self.source, asked)
            if drafted is not None:
                found[index] = drafted
                budget -= len(drafted.tokens)
        return found

    def _written(
        self, model: DraftModel, rows: list[Row], tasks: Mapping[int, Generation], budget: int
    ) -> dict[int, RowDraft]:
        """By row: what `model` drafts after it, all of it at once. A model that fails is not asked
        again.
        """
        growing: dict[int, GrowingDraft] = {}
        for index, task in tasks.items():
            row = rows[index]
            if self._may_be_right(row.sequence, self.chances.of(task.is_plain, WRITTEN)):
                most = self._most(row.sequence, task.is_plain, WRITTEN)
                room = self._room(row, budget // len(tasks))
                growing[index] = GrowingDraft(row, task, min(most, task.left - 1, room), room)
        try:
            model.extend(list(growing.values()))
        except Exception:  # texts need no drafts
            log.exception("the draft model failed; it is not used any more")
            self.model = None
            return {}
        whole = {index: one.whole() for index, one in growing.items()}
        return {index: drafted for index, drafted in whole.items() if drafted is not None}

    def _worth(self, is_plain: bool) -> Worth:
        """What is worth a draft, of requests that are plain or not."""
        if self._mode == "always":
            return Worth(SHORTEST, True, 1.0)
        return self.chances.worth(is_plain, self._least)

    def _may_be_right(self, sequence: Sequence, chance: float) -> bool:
        """Whether the sequence's own drafts were right often enough."""
        record = sequence.drafts
        factor = 1.0 if record is None else record.factor
        if self._mode == "always" or factor * chance >= self._least:
            return True
        if record is not None:
            record.forget()
        return False

    def _most(self, sequence: Sequence, is_plain: bool, evidence: int) -> int:
        """How many tokens of a guess are worth a draft."""
        if self._mode == "always":
            return MOST
        factor = 1.0 if sequence.drafts is None else sequence.drafts.factor
        num_worth = self.chances.num_worth(is_plain, evidence, self._least, factor)
        return min(self._most_each, num_worth)

    def _room(self, row: Row, budget: int) -> int:
        """How many tokens may be added to `row`."""
        chunk = self._memory.config.max_chunk
        return min(budget, chunk - row.num_tokens if chunk else budget)

    def committed(self, plan: Plan, accepted: Mapping[int, int], began: float) -> None:
        """The results of a step that began then are applied."""
        if plan.drafts:
            self.settle(plan, accepted)
        self.observe(plan, accepted, self._clock() - began)

    def observe(self, plan: Plan, accepted: Mapping[int, int], seconds: float) -> None:
        """A step lasted so long, in which so many drafted tokens of these rows were right. Steps
        that read prompts or forced text, which take any time, tell nothing of drafts.
        """
        looked, self._looked = self._looked, 0.0
        kind = decoding_kind(plan.rows) if self._is_watched and plan.rows else None
        if kind is None:
            return
        costs, drafts = self.costs, plan.drafts
        num_drafted = sum([len(one.tokens) for one in drafts.values()]) if drafts else 0
        usual, has_forced = costs.usual(kind), plan.num_tokens > kind.num_rows + num_drafted
        if not num_drafted:
            lost = looked / usual if usual else 0.0
            self.accounts.credit(kind, lost, 1 + self._num_unwatched)
            if not has_forced:
                costs.observe_plain(kind, seconds - looked)
        elif usual is not None and not has_forced:
            num_steps = costs.observe(kind, num_drafted, seconds - looked) + looked / usual
            if self._memory.tables.states is not None:
                num_steps += num_again(drafts, accepted) * costs.ratio(kind) / kind.num_rows
            paces = [
                _record(row.sequence).see_step(accepted.get(index, 0))
                for index, row in enumerate(plan.rows)
            ]
            self.accounts.see_paces(kind, paces)
            self.accounts.book(kind, sum(accepted.values()), num_steps)

    def settle(self, plan: Plan, accepted: Mapping[int, int]) -> None:
        """The first `accepted` drafted tokens of these rows were right; what was computed of the
        others is not the sequence's.
        """
        stats = self._memory.stats
        for index, drafted in plan.drafts.items():
            sequence, num_right = plan.rows[index].sequence, accepted.get(index, 0)
            num_wrong = sum(drafted.lengths[num_right:])
            sequence.computed -= num_wrong
            num_drafted = len(drafted.lengths)
            expected = self.chances.learn(
                sequence.task.is_plain, drafted.evidence, num_right, num_drafted
            )
            _record(sequence).learn(expected, num_right, num_drafted)
            self._memory.tables.give_back(sequence)
            group = sequence.group
            group.computed -= num_wrong
            group.drafted += num_drafted
            group.accepted += num_right
            stats.drafted_tokens += num_drafted
            stats.accepted_tokens += num_right
            stats.wrong_draft_tokens += num_wrong

    def _may_follow(self, row: Row, task: Generation) -> bool:
        """Whether `row` samples what need not end the text, in pages of the sequence's own."""
        sequence = row.sequence
        return (
            row.end - row.logits_from == 1
            and row.end == len(sequence.tokens)
            and task.left > 1
            and not task.is_healing
            and sequence.shared * self._memory.config.page_size <= row.start
        )

    def _has_pages(self, row: Row, drafted: RowDraft) -> bool:
        """Frees pages that nobody uses, where they are needed for the draft."""
        memory = self._memory
        needed = memory.tables.pages_after(row, len(drafted.tokens))
        if needed > memory.pages.num_free:
            memory.stats.evicted_pages += memory.tree.evict(needed - memory.pages.num_free)
        return needed <= memory.pages.num_free and memory.tables.may_draft(row)


def num_again(drafts: Mapping[int, RowDraft], accepted: Mapping[int, int]) -> int:
    """Tokens that a model with recurrent states computes again with the next rows: the right ones
    before a wrong one.
    """
    right = [(one.lengths, accepted.get(row, 0)) for row, one in drafts.items()]
    return sum(sum(lengths[:count]) for lengths, count in right if count < len(lengths))


def _record(sequence: Sequence) -> DraftRecord:
    """What became of the sequence's drafts."""
    if sequence.drafts is None:
        sequence.drafts = DraftRecord()
    return sequence.drafts


def _samples_forced(task: Generation) -> bool:
    """Whether what its constraint forces is sampled all the same."""
    return task.settings.forcing is not None and task.settings.jump is None


def decoding_kind(rows: Rows[Row]) -> StepKind | None:
    """The kind of a step of these rows; None where one reads a prompt. Runs in each step."""
    is_plain = True
    for row in rows:
        sequence = row[0]
        if row[2] < sequence.num_tokens_at_enqueue - 1:
            return None
        if not sequence.task.is_plain:
            is_plain = False
    return StepKind(len(rows), is_plain)
