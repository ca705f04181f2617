"""Drafts: tokens that a sequence is guessed to go on with, computed as further tokens of its row.

The logits after each drafted token are asked for like those after the last known one: with the same
random number, mask, penalties and bans that the token at that position would have without a draft.
As long as what is sampled is what was drafted, the next logits are right; after the first other
token the rest of the row is for nothing, and is computed again. So the text is the same as without
drafts, token by token, also where it is sampled.

Knows tasks and tokens; knows no rows and no tensors. `drafting` says where it is done, a
`DraftSource` what is guessed (`prompt_lookup`); `growing_drafts` are guessed token by token.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from itertools import accumulate
from typing import NamedTuple, Protocol

from lmprog.errors import LmprogError
from lmprog.runtime.scheduling.draft_chances import ASKED, MOST, SHORTEST, WRITTEN
from lmprog.runtime.scheduling.generation import Generation


class Guess(NamedTuple):
    """Tokens that may follow, and what speaks for them."""

    tokens: Tokens[int]
    evidence: int = SHORTEST
    """As `draft_chances` has it."""


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


class RowDraft(NamedTuple):
    """What is drafted after the known tokens of a row: pieces of a token that is sampled and those
    that a constraint forces after it.
    """

    tokens: array[int]
    lengths: tuple[int, ...]
    """Of the pieces."""
    aheads: tuple[Generation, ...] = ()
    """The generation after each piece; none where it is plain, so that all pieces are tokens."""
    evidence: int = WRITTEN
    """Of its first guess."""


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
