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
from collections.abc import Sequence as Tokens
from itertools import accumulate
from typing import NamedTuple, Protocol

from lmprog.errors import LmprogError
from lmprog.runtime.scheduling.generation import Generation


class DraftSource(Protocol):
    """Guesses the tokens that follow; any number up to `most`."""

    def __call__(self, tokens: array[int], most: int) -> Tokens[int]: ...


class RowDraft(NamedTuple):
    """What is drafted after the known tokens of a row: pieces of a token that is sampled and those
    that a constraint forces after it.
    """

    tokens: array[int]
    lengths: tuple[int, ...]
    """Of the pieces."""
    aheads: tuple[Generation, ...] = ()
    """The generation after each piece; none where it is plain, so that all pieces are tokens."""


def draft(
    tokens: array[int], task: Generation, most: int, room: int, source: DraftSource
) -> RowDraft | None:
    """How `task` may go on after `tokens`: at most `most` sampled tokens, and with forced ones at
    most `room`. None: nothing is known.

    What a constraint or the end of the text excludes is left out, and what completes a stop string:
    so a stop can end a text only with the last token that a step brings.
    """
    if task.is_plain:
        guessed = source(tokens, min(most, room))
        end = next((at for at, one in enumerate(guessed) if task.is_end(one)), len(guessed))
        return before_stop(task, array("i", guessed[:end]), [1] * end, [])
    ahead, drafted = task, tokens[:]
    lengths: list[int] = []
    aheads: list[Generation] = []
    guesses: list[int] = []
    while len(aheads) < most:
        guesses = guesses or _guesses(ahead, drafted, most - len(aheads), source)
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
    return before_stop(task, drafted, lengths, aheads)


def _guesses(ahead: Generation, drafted: array[int], most: int, source: DraftSource) -> list[int]:
    """Text that the constraint asks for, where it is not appended anyway, or else the source's."""
    settings = ahead.settings
    if settings.constraint is not None and settings.forcing and settings.jump is None:
        asked = settings.forcing(settings.constraint, ahead.guide, drafted)
        if asked:
            return list(asked)
    return list(source(drafted, most))


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
    task: Generation, drafted: array[int], lengths: list[int], aheads: list[Generation]
) -> RowDraft | None:
    """Leaves out what completes a stop, and what belongs to no piece."""
    most = len(drafted) if task.num_before_stop is None else task.num_before_stop(drafted)
    ends = list(accumulate(lengths))
    count = bisect_right(ends, most)
    del drafted[ends[count - 1] if count else 0 :]
    return RowDraft(drafted, tuple(lengths[:count]), tuple(aheads[:count])) if count else None
