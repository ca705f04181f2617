"""A fake model whose keys and values are rolling hashes, read through the page tables.

Slot contents at position i are a hash of all tokens up to i, and the logits of a position are drawn
from a sum over the contents of *all* slots that the position may read. So one wrong share, one
stale page, one slot written twice or one copy too late changes the text. `reference_logits`
computes the same from the token list alone: no pages, no batch, no cache. Integers and numpy only.
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


class FakeEngine:
    """Runs batches on hashes.

    The faults that a real engine can have: tokens in `poison`, and row `bad_row` of the next step
    if logits of it are wanted, give contents that are not finite, and so is everything that reads
    them; `fail_next` makes the next step raise.
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
        """Faults that have struck."""

    def forward(self, batch: Batch) -> Floats:
        """Logits [L, vocab] of the wanted tokens."""
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
        wanted = {int(token): index for index, token in enumerate(batch.logit_tokens)}
        logits = np.zeros((len(wanted), self._vocab_size), np.float32)
        for row in range(batch.num_rows):
            self._run_row(batch, row, targets, wanted, logits)
        self.bad_row = None
        return logits

    def _run_row(
        self,
        batch: Batch,
        row: int,
        targets: dict[int, list[int]],
        wanted: dict[int, int],
        logits: Floats,
    ) -> None:
        begin, end = int(batch.row_starts[row]), int(batch.row_starts[row + 1])
        pages = batch.pages[batch.page_starts[row] : batch.page_starts[row + 1]].astype(np.int64)
        readable = int(batch.kv_lens[row])
        bad_row = self.bad_row if end - 1 in wanted else None
        index = np.arange(readable)
        slots = pages[index // self._page_size] * self._page_size + index % self._page_size
        for token in range(begin, end):
            position, value = int(batch.positions[token]), int(batch.tokens[token])
            before = self._slots[slots[position - 1]] if position else _SEED
            spoiled = (
                value in self.poison or row == bad_row or bool(self._bad[slots[:position]].any())
            )
            self._slots[targets[token]] = mix(before, value)
            self._bad[targets[token]] = spoiled
            if token in wanted:
                logits[wanted[token]] = (
                    np.nan
                    if spoiled
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
        """What comes after the tokens so far."""
        return _logits(np.array(self._contents, np.uint64), self._vocab_size)


def reference_logits(tokens: Sequence[int], vocab_size: int) -> Floats:
    """What the fake model says after `tokens`, computed without any page."""
    return Reference(tokens, vocab_size).logits()


def _logits(contents: NDArray[np.uint64], vocab_size: int) -> Floats:
    with np.errstate(over="ignore"):
        weights = (np.arange(1, len(contents) + 1, dtype=np.uint64) * _MIX) | np.uint64(1)
        total = np.uint64((contents * weights).sum(dtype=np.uint64))
        spread = (np.arange(vocab_size, dtype=np.uint64) * _MIX ^ total) * _STEP
        spread ^= spread >> np.uint64(31)
    return ((spread >> np.uint64(40)).astype(np.float64) / 2**22).astype(np.float32)
