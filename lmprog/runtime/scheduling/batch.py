"""A plan as flat, frozen integer arrays: all that the engine and an attention backend ever see of
it.

Knows numpy and plans; knows no request, no text and no torch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.scheduling.plan import Plan, PlanStates, PlanWindows

Ints = NDArray[np.int32]


class PagesFull(Exception):
    """A batch's pages have no memory, because others have taken it; nothing of it was begun."""

    def __init__(self, said: str, give_back: Callable[[Sequence[int]], None]) -> None:
        super().__init__(said)
        self.give_back = give_back
        """Takes the memory of pages that nobody uses; it serves others."""


@dataclass(frozen=True, slots=True)
class RowStates:
    """Of R rows, and S snapshots: see `PlanStates`. All arrays are int32."""

    sources: Ints  # [R]; -1: the state before the first token
    targets: Ints  # [R]
    snapshots: Ints  # [S, 3]: row, after how many of its tokens, slot


@dataclass(frozen=True, slots=True)
class ApartPages:
    """What layers with windows read and write in place of the arrays of the same names: frames
    stand where pages do. Frame 0 stands for what is behind a window. All arrays are int32.
    """

    pages: Ints
    write_slots: Ints  # [W]
    copies: Ints  # [C, 2]


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens in R rows; W = T + mirrored writes; L wanted logits. All arrays are int32 and
    contiguous.

    Rows that stand on a common prefix have page tables that begin with the same pages; a backend
    that reads a shared segment once finds the segments there.
    """

    tokens: Ints  # [T]
    positions: Ints  # [T]
    row_starts: Ints  # [R+1]: row r has the tokens row_starts[r] .. row_starts[r+1]
    kv_lens: Ints  # [R]: positions that row r's last token may read, itself included
    page_starts: Ints  # [R+1]
    pages: Ints  # [page_starts[R]]: the rows' page tables, one after the other
    write_tokens: Ints  # [W]: token write_tokens[i] ...
    write_slots: (
        Ints  # [W]: ... writes its keys and values to slot write_slots[i]; the first T are 0..T-1
    )
    # [C, 2]: (source slot, target slot), before anything is computed, all read before any is
    # written
    copies: Ints
    logit_tokens: Ints  # [L]: tokens whose logits are wanted, row by row
    page_size: int
    adapters: Ints | None = None  # [R]: each row's adapter, 0 for the base; None: all are the base
    states: RowStates | None = None  # None: the model has no recurrent layers
    apart: ApartPages | None = None  # None: all layers have the same pages

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_rows(self) -> int:
        return len(self.kv_lens)


def build_batch(plan: Plan, page_size: int, has_adapters: bool = False) -> Batch:
    """The arrays of `plan`. Python joins the rows' own arrays; numpy does all else. Sequences are
    asked for their adapters only where there are any.
    """
    if not plan.rows:
        return _batch_of_nothing(page_size)
    batch = _batch_of_rows(plan, page_size)
    if plan.states is not None:
        batch = replace(batch, states=_row_states(plan.states))
    if plan.windows is not None:
        batch = replace(batch, apart=_apart(batch, plan.windows))
    if not has_adapters:
        return batch
    adapters = np.array([row.sequence.namespace.adapter for row in plan.rows], np.int32)
    return replace(batch, adapters=adapters) if adapters.any() else batch


def _batch_of_rows(plan: Plan, page_size: int) -> Batch:
    _, tokens_of, first, last, pages_of, wanted_from = zip(*plan.rows, strict=True)
    num_rows = len(first)
    starts, ends = np.array(first, np.int32), np.array(last, np.int32)
    tokens, pages = _joined(tokens_of), _joined(pages_of)
    page_starts = _offsets(np.fromiter(map(len, pages_of), np.int32, num_rows))
    total = len(tokens)
    if total == num_rows and wanted_from == first and not plan.mirrors:
        return _decodes(plan, page_size, (tokens, starts, ends, page_starts, pages))
    counts = ends - starts
    row_starts = _offsets(counts)
    wanted = ends - np.array(wanted_from, np.int32)
    within = np.arange(total, dtype=np.int32)
    positions = within + (starts - row_starts[:-1]).repeat(counts)
    page_bases = page_starts[:-1].repeat(counts)
    logit_starts = _offsets(wanted)
    logit_tokens = np.arange(int(logit_starts[-1]), dtype=np.int32)
    logit_tokens += (row_starts[1:] - wanted - logit_starts[:-1]).repeat(wanted)
    page_of, offsets = np.divmod(positions, np.int32(page_size))
    slots = pages[page_bases + page_of] * np.int32(page_size) + offsets
    write_tokens = within
    if plan.mirrors:
        mirrored = [int(row_starts[one.row]) + one.offset for one in plan.mirrors]
        write_tokens = np.concatenate([within, np.array(mirrored, np.int32)])
        slots = np.concatenate([slots, np.array([one.target for one in plan.mirrors], np.int32)])
    return Batch(
        tokens=tokens,
        positions=positions,
        row_starts=row_starts,
        kv_lens=ends,
        page_starts=page_starts,
        pages=pages,
        write_tokens=write_tokens,
        write_slots=slots,
        copies=_copies(plan),
        logit_tokens=logit_tokens,
        page_size=page_size,
    )


def _decodes(plan: Plan, page_size: int, joined: tuple[Ints, Ints, Ints, Ints, Ints]) -> Batch:
    """Every row is one token whose logits are wanted, and written to one place. `joined` are
    tokens, first and last positions, where page tables begin, and these.
    """
    tokens, starts, ends, page_starts, pages = joined
    row_starts = np.arange(len(tokens) + 1, dtype=np.int32)
    each = row_starts[:-1]
    slots, offsets = np.divmod(starts, np.int32(page_size))
    slots += page_starts[:-1]
    slots = pages[slots]
    slots *= np.int32(page_size)
    slots += offsets
    return Batch(
        tokens=tokens,
        positions=starts,
        row_starts=row_starts,
        kv_lens=ends,
        page_starts=page_starts,
        pages=pages,
        write_tokens=each,
        write_slots=slots,
        copies=_copies(plan),
        logit_tokens=each,
        page_size=page_size,
    )


def _row_states(states: PlanStates) -> RowStates:
    sources, targets = np.array(states.rows, np.int32).T.copy()
    return RowStates(sources, targets, np.array(states.snapshots, np.int32).reshape(-1, 3))


def _apart(batch: Batch, windows: PlanWindows) -> ApartPages:
    pages, offsets = np.divmod(batch.write_slots, np.int32(batch.page_size))
    frame_of = np.frombuffer(windows.frames, np.int32)
    frames = frame_of[pages]
    assert frames.all(), "a page that is written has a frame"
    return ApartPages(
        frame_of[batch.pages],
        frames * np.int32(batch.page_size) + offsets,
        np.array(windows.copies, np.int32).reshape(-1, 2),
    )


def _offsets(counts: Ints) -> Ints:
    """Where each of several stretches begins, and where the last one ends."""
    out = np.zeros(len(counts) + 1, np.int32)
    counts.cumsum(out=out[1:])
    return out


def _joined(runs: tuple[array[int], ...]) -> Ints:
    return np.frombuffer(bytearray().join(runs), np.int32)


def _copies(plan: Plan) -> Ints:
    if not plan.copies:
        return np.zeros((0, 2), np.int32)
    pairs = [(copy.source, copy.target) for copy in plan.copies]
    return np.array(pairs, np.int32).reshape(-1, 2)


def _batch_of_nothing(page_size: int) -> Batch:
    nothing, start = np.zeros(0, np.int32), np.zeros(1, np.int32)
    return Batch(
        tokens=nothing,
        positions=nothing,
        row_starts=start,
        kv_lens=nothing,
        page_starts=start,
        pages=nothing,
        write_tokens=nothing,
        write_slots=nothing,
        copies=nothing.reshape(0, 2),
        logit_tokens=nothing,
        page_size=page_size,
    )
