"""A plan as flat, frozen integer arrays: all that the engine and an attention backend ever see of
it.

Knows numpy and plans; knows no request, no text and no torch.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.scheduling.plan import Plan

Ints = NDArray[np.int32]


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

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_rows(self) -> int:
        return len(self.kv_lens)


def _offsets(counts: list[int]) -> Ints:
    out = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=out[1:])
    return out


def _joined(runs: list[array[int]]) -> Ints:
    return (
        np.concatenate([np.frombuffer(run, np.int32) for run in runs])
        if runs
        else np.zeros(0, np.int32)
    )


def build_batch(plan: Plan, page_size: int) -> Batch:
    """The arrays of `plan`. Work is per row and per page; inside a row numpy does it."""
    rows = plan.rows
    counts = [row.count for row in rows]
    starts = np.fromiter((row.start for row in rows), np.int32, len(rows))
    row_starts = _offsets(counts)
    page_starts = _offsets([len(row.pages) for row in rows])
    total = int(row_starts[-1])
    tokens = _joined([row.tokens for row in rows])
    pages = _joined([row.pages for row in rows])

    within = np.arange(total, dtype=np.int32)
    positions = within + np.repeat(starts - row_starts[:-1], counts)
    page_of = pages[np.repeat(page_starts[:-1], counts) + positions // page_size]
    slots = page_of * page_size + positions % page_size

    mirrored = np.fromiter(
        (row_starts[m.row] + m.offset for m in plan.mirrors), np.int32, len(plan.mirrors)
    )
    mirror_slots = np.fromiter((m.target for m in plan.mirrors), np.int32, len(plan.mirrors))
    wanted = [row.num_logits for row in rows]
    ends = row_starts[1:] - np.asarray(wanted, np.int32)
    logit_starts = _offsets(wanted)
    logit_tokens = np.arange(int(logit_starts[-1]), dtype=np.int32) + np.repeat(
        ends - logit_starts[:-1], wanted
    )
    copies = np.array([(copy.source, copy.target) for copy in plan.copies], np.int32).reshape(-1, 2)
    return Batch(
        tokens=tokens,
        positions=positions.astype(np.int32),
        row_starts=row_starts,
        kv_lens=(starts + np.asarray(counts, np.int32)).astype(np.int32),
        page_starts=page_starts,
        pages=pages,
        write_tokens=np.concatenate([within, mirrored]),
        write_slots=np.concatenate([slots, mirror_slots]).astype(np.int32),
        copies=copies,
        logit_tokens=logit_tokens.astype(np.int32),
        page_size=page_size,
    )
