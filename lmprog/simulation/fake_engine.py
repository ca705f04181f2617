"""A fake model whose keys and values are rolling hashes, read through the page tables.

The contents of the slot of position i are a hash of all tokens up to i, and the logits of a
position come from a sum over *all* slots that the position may read. So any wrongly shared or stale
page, any slot written twice and any late copy changes the text. `reference_logits` computes the
same from the token list alone: no pages, no batch, no cache. Integers and numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.engine.batch import Batch

_MIX = np.uint64(0x9E3779B97F4A7C15)
_STEP = np.uint64(0xBF58476D1CE4E5B9)
_SEED = np.uint64(7)

Floats = NDArray[np.float32]
PageContents = tuple[NDArray[np.uint64], NDArray[np.bool_]]
"""Of each slot of a page: its hash, and whether it is not finite."""


class FakeEngine:
    """Runs batches on hashes, with the faults of real engines.

    Tokens in `poison` give contents that are not finite, and so does row `bad_row` of the next step
    if it gives logits; everything that reads them is not finite either. `fail_next` makes the next
    step raise.
    """

    def __init__(self, num_pages: int, page_size: int, vocab_size: int) -> None:
        self._page_size = page_size
        self._vocab_size = vocab_size
        # Unwritten slots hold junk, so that reading one shows.
        self._slots = np.arange(num_pages * page_size, dtype=np.uint64) * _STEP + np.uint64(12345)
        self._bad = np.zeros(num_pages * page_size, bool)
        self.poison: set[int] = set()
        self.bad_row: int | None = None
        self.fail_next = False
        self.num_faults = 0
        """Number of faults so far."""

    def read_page(self, page: int) -> PageContents:
        """A copy of what is in the slots of `page`."""
        where = slice(page * self._page_size, (page + 1) * self._page_size)
        return self._slots[where].copy(), self._bad[where].copy()

    def write_page(self, page: int, contents: PageContents) -> None:
        where = slice(page * self._page_size, (page + 1) * self._page_size)
        self._slots[where], self._bad[where] = contents

    def spoil_page(self, page: int) -> None:
        """Junk, that shows when it is read."""
        self.write_page(page, (np.zeros(self._page_size, np.uint64), np.ones(1, bool)))

    def forward(self, batch: Batch) -> Floats:
        """Logits [L, vocab] of `batch.logit_tokens`."""
        self.num_faults += self.fail_next or self.bad_row is not None
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("the fake engine was told to fail")
        if len(batch.copies):
            self._slots[batch.copies[:, 1]] = self._slots[batch.copies[:, 0]]
            self._bad[batch.copies[:, 1]] = self._bad[batch.copies[:, 0]]
        targets: dict[int, list[int]] = {}
        for token, slot in zip(
            batch.write_tokens.tolist(), batch.write_slots.tolist(), strict=True
        ):
            targets.setdefault(token, []).append(slot)
        logit_rows = {int(token): index for index, token in enumerate(batch.logit_tokens)}
        logits = np.zeros((len(logit_rows), self._vocab_size), np.float32)
        for row in range(batch.num_rows):
            self._run_row(batch, row, targets, logit_rows, logits)
        self.bad_row = None
        return logits

    def _run_row(
        self,
        batch: Batch,
        row: int,
        targets: dict[int, list[int]],
        logit_rows: dict[int, int],
        logits: Floats,
    ) -> None:
        begin, end = int(batch.row_starts[row]), int(batch.row_starts[row + 1])
        pages = batch.pages[batch.page_starts[row] : batch.page_starts[row + 1]].astype(np.int64)
        readable = int(batch.kv_lens[row])
        bad_row = self.bad_row if end - 1 in logit_rows else None
        index = np.arange(readable)
        slots = pages[index // self._page_size] * self._page_size + index % self._page_size
        for token in range(begin, end):
            position, value = int(batch.positions[token]), int(batch.tokens[token])
            before = self._slots[slots[position - 1]] if position else _SEED
            not_finite = (
                value in self.poison or row == bad_row or bool(self._bad[slots[:position]].any())
            )
            self._slots[targets[token]] = mix(before, value)
            self._bad[targets[token]] = not_finite
            if token in logit_rows:
                logits[logit_rows[token]] = (
                    np.nan
                    if not_finite
                    else _logits(self._slots[slots[: position + 1]], self._vocab_size)
                )


def mix(before: np.uint64, token: int) -> np.uint64:
    """The contents of a slot: a hash of everything before it and its token."""
    with np.errstate(over="ignore"):
        mixed = (before ^ np.uint64(token + 1) * _MIX) * _STEP
    return np.uint64(mixed ^ (mixed >> np.uint64(29)))


class Reference:
    """The fake model on one token list, without any page."""

    def __init__(self, tokens: Sequence[int], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._contents: list[np.uint64] = []
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        self._contents.append(mix(self._contents[-1] if self._contents else _SEED, token))

    def logits(self) -> Floats:
        """The logits after the tokens so far."""
        return _logits(np.array(self._contents, np.uint64), self._vocab_size)


def reference_logits(tokens: Sequence[int], vocab_size: int) -> Floats:
    """The fake model's logits after `tokens`, computed without any page."""
    return Reference(tokens, vocab_size).logits()


def _logits(contents: NDArray[np.uint64], vocab_size: int) -> Floats:
    with np.errstate(over="ignore"):
        weights = (np.arange(1, len(contents) + 1, dtype=np.uint64) * _MIX) | np.uint64(1)
        total = np.uint64((contents * weights).sum(dtype=np.uint64))
        spread = (np.arange(vocab_size, dtype=np.uint64) * _MIX ^ total) * _STEP
        spread ^= spread >> np.uint64(31)
    return ((spread >> np.uint64(40)).astype(np.float64) / 2**22).astype(np.float32)
