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

from lmprog.radix import Match
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


class PlanWindows(NamedTuple):
    """Where layers with windows find the step's pages."""

    frames: array[int]
    """As they are now: for the step that is computed next."""
    copies: tuple[tuple[int, int], ...]
    """Of the plan's copies, in the same order: slots of frames, from one to the other."""


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
    windows: PlanWindows | None = None
    """None: all layers have the same pages."""
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


class StepCopies:
    """The copies and mirrors of one step after the other."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self.frames: array[int] | None = None
        """Of each page now, where layers with windows have frames of their own."""
        self._apart: list[tuple[int, int]] = []
        """The copies' slots in frames, as they are when a copy is planned: a source may lose its
        page and its frame before the step, but not their contents."""
        self._apart_sources: dict[int, int] = {}
        """Slot copied to in this step -> the slot of a frame."""
        self._copies: list[Copy] = []
        self._mirrors: list[Mirror] = []
        self._writers: dict[int, tuple[int, int, int]] = {}
        """Page written in this step -> (row, position of the page's first slot, first position that
        the row computes).
        """
        self.origins: dict[int, Copy | Mirror] = {}
        """Slot copied to in this step -> how it gets its contents."""

    def begin(self) -> None:
        """Another step is planned."""
        self._copies, self._mirrors, self._apart = [], [], []
        self._apart_sources.clear()
        self._writers.clear()
        self.origins.clear()

    def finish(self) -> tuple[tuple[Copy, ...], tuple[Mirror, ...]]:
        """The copies and mirrors of the step."""
        return tuple(self._copies), tuple(self._mirrors)

    def windows(self) -> PlanWindows:
        """What of the step goes to frames, where there are any."""
        assert self.frames is not None
        return PlanWindows(self.frames, tuple(self._apart))

    def write(self, page: int, row: int, begin: int, first: int) -> None:
        """Row `row`, which computes positions from `first` on, writes `page`, whose first slot is
        that of position `begin`.
        """
        self._writers[page] = (row, begin, first)

    def writer(self, match: Match) -> tuple[int, int] | None:
        """The row of this step that computes the last token of `match`, and how many of its tokens
        those up to there are; None where no row does.
        """
        if not match.length:
            return None
        page = match.pages[-1] if match.partial is None else match.partial
        row, _, first = self._writers.get(page, (0, 0, match.length))
        return None if match.length <= first else (row, match.length - first)

    def source(self, page: int) -> int:
        """The page that has now what `page` will have once the step has made its copies."""
        origin = self.origins.get(page * self._page_size)
        return origin.source // self._page_size if isinstance(origin, Copy) else page

    def frame_source(self, page: int) -> int | None:
        """The frame that has now what that of `page` will have; None: its own."""
        first = self._apart_sources.get(page * self._page_size)
        return None if first is None else first // self._page_size

    def is_written(self, page: int) -> bool:
        """Whether a row of the step writes to it."""
        return page in self._writers

    def share_slots(self, page: int, count: int, other: int, frame: int = 0) -> None:
        """The first slots of page `other`, so many, get the contents that those of `page`, whose
        frame this is, have after this step.
        """
        row, begin, first = self._writers.get(page, (0, 0, count))
        for offset in range(count):
            source, target = page * self._page_size + offset, other * self._page_size + offset
            known = self.origins.get(source)
            origin: Copy | Mirror
            if begin + offset >= first:
                origin = Mirror(row, begin + offset - first, target)
            elif isinstance(known, Mirror):
                origin = Mirror(known.row, known.offset, target)
            else:
                origin = Copy(source if known is None else known.source, target)
            if isinstance(origin, Mirror):
                self._mirrors.append(origin)
            else:
                self._copies.append(origin)
                if self.frames is not None:
                    self._copy_frame(source, frame * self._page_size + offset, target)
            self.origins[target] = origin

    def _copy_frame(self, source: int, first: int, target: int) -> None:
        """As slot `source`, which is `first` in its frame, is copied to slot `target`, so is that
        of its frame.
        """
        assert self.frames is not None
        first = self._apart_sources.get(source, first)
        self._apart_sources[target] = first
        page, offset = divmod(target, self._page_size)
        self._apart.append((first, self.frames[page] * self._page_size + offset))
