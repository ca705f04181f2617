"""The plan of one step: which rows compute how many tokens, where their keys and values go, and for
which positions logits are needed.

There is one kind of row: a run of a sequence's tokens is computed. Prefill, a chunk of it, decode,
forced tokens and scoring differ only in their counts. The scheduler makes a plan, `batch` turns it
into flat arrays, and the scheduler takes it back with the sampled tokens. Integers only.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.sequence import Client, Sequence


class Row(NamedTuple):
    """Tokens `start .. end` of `sequence` are computed in this step.

    `pages` is the sequence's page table over positions `0 .. end`: position `i` lives in
    slot `pages[i // page_size] * page_size + i % page_size`. Logits are needed for the positions
    `logits_from .. end` (none where `logits_from == end`).

    A tuple, because a step makes one for each sequence and a frozen dataclass takes four times as
    long to make.
    """

    sequence: Sequence
    tokens: array[int]
    start: int
    end: int
    pages: array[int]
    logits_from: int

    @property
    def num_tokens(self) -> int:
        return self.end - self.start

    @property
    def num_logits(self) -> int:
        return self.end - self.logits_from


@dataclass(frozen=True, slots=True)
class Copy:
    """Slot `source` is copied to slot `target` in every layer before the step computes anything.

    All sources are read before any target is written, so a target may be the source of another
    copy.
    """

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Mirror:
    """Row `row` writes the keys and values of its `offset`-th new token to slot `target` as well.

    This is how two branches of one step share part of a page that the same step computes.
    """

    row: int
    offset: int
    target: int


class RowDraft(NamedTuple):
    """What is drafted after the known tokens of a row: pieces of a token that is sampled and those
    that a constraint forces after it.
    """

    tokens: array[int]
    lengths: tuple[int, ...]
    """Of the pieces."""
    aheads: tuple[Generation, ...] = ()
    """The generation after each piece; none where it is plain, so that all pieces are tokens."""
    evidence: int = 0
    """What speaks for its first guess, as `draft_worth` counts it."""


class StepPart(NamedTuple):
    """What a client has of a step, and the seconds that it was charged when that was planned."""

    client: Client
    num_rows: int
    num_tokens: int
    charged: float


class PlanStates(NamedTuple):
    """Recurrent states of a step. Its rows are computed as if one after the other: a row may read
    what one before it writes, and no row writes what another one reads that is not behind it.
    """

    rows: tuple[tuple[int, int], ...]
    """Of each row: the slot that its state is read from, -1 for the state before the first token,
    and the slot that it is written to."""
    snapshots: tuple[tuple[int, int, int], ...]
    """A row, after how many of its tokens, and the slot that its state is written to as well: of a
    row with drafts the slot that it was read from."""


@dataclass(frozen=True, slots=True)
class Plan:
    rows: tuple[Row, ...] = ()
    copies: tuple[Copy, ...] = ()
    mirrors: tuple[Mirror, ...] = ()
    drafts: Mapping[int, RowDraft] = field(default_factory=dict)
    """By row: what its last tokens are, if they are not known but drafted."""
    is_bounded: bool = False
    """Its prefills were cut, so that it lasts no longer than a step with decodes may."""
    parts: tuple[StepPart, ...] = ()
    """By client."""
    states: PlanStates | None = None
    """None: the model has no recurrent layers."""
    num_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        count = 0
        for _, _, start, end, _, _ in self.rows:
            count += end - start
        object.__setattr__(self, "num_tokens", count)

    @property
    def num_decoded(self) -> int:
        """Its tokens, if no row is a prefill: one for each row, and what is drafted."""
        num_drafted = sum([len(one.tokens) for one in self.drafts.values()]) if self.drafts else 0
        return len(self.rows) + num_drafted
