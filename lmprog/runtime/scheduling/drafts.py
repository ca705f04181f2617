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

Knows tasks, rows, tokens and requests; knows no tensors. `drafting` says where it is done.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from itertools import accumulate
from typing import NamedTuple, Protocol

from lmprog.errors import LmprogError
from lmprog.runtime.scheduling.draft_worth import ASKED, MOST, SHORTEST, WRITTEN
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.logits_requests import plain_request, sample_request
from lmprog.runtime.scheduling.plan import Row, RowDraft
from lmprog.runtime.scheduling.sampling_requests import SampleRequest

LONGEST = 12
"""Of several places the one counts that has the most tokens before it in common, up to so many; of
equals the last one.
"""
MOST_INSIDE = 16
"""Places inside of tokens, where bytes are equal and tokens are not, that a search passes over."""


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
