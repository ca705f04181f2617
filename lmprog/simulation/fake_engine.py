"""A fake model whose keys and values are rolling hashes, read through the page tables.

The contents of the slot of position i are a hash of all tokens up to i, and the logits of a
position come from a sum over *all* slots that the position may read. So any wrongly shared or stale
page, any slot written twice and any late copy changes the text. `reference_logits` computes the
same from the token list alone: no pages, no batch, no cache. Each adapter hashes tokens in its own
way. Integers and numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.scheduling.batch import Batch

_MASK = 2**64 - 1
_MIX, _STEP, _SEED = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 7
_UINT_MIX, _UINT_STEP = np.uint64(_MIX), np.uint64(_STEP)
_WEIGHTS = (np.arange(1, 1 << 16, dtype=np.uint64) * _UINT_MIX) | np.uint64(1)
"""What the contents of each position count in the logits."""

Floats = NDArray[np.float32]
PageContents = tuple[NDArray[np.uint64], NDArray[np.bool_]]
"""Of each slot of a page: its hash, and whether it is not finite."""


class FakeRow(NamedTuple):
    """One row of a batch."""

    begin: int
    """Number of its first token in the batch."""
    tokens: list[int]
    first: int
    """Position of the first one."""
    slots: NDArray[np.intp]
    """Of its page table, by position."""
    adapter: int
    is_bad: bool


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
        num_slots = num_pages * page_size
        self._slots = np.arange(num_slots, dtype=np.uint64) * _UINT_STEP + np.uint64(12345)
        self._bad = np.zeros(num_slots, bool)
        self._is_any_bad = False
        """Whether a slot was ever bad."""
        self._slots_of_page = np.arange(num_slots).reshape(num_pages, page_size)
        self.poison: set[int] = set()
        self.bad_row: int | None = None
        self.fail_next = False
        self.before_access: Callable[[], None] = lambda: None
        """Called before pages are read or written from outside."""
        self.num_faults = 0
        """Number of faults so far."""

    def read_page(self, page: int) -> PageContents:
        """A copy of what is in the slots of `page`."""
        self.before_access()
        where = slice(page * self._page_size, (page + 1) * self._page_size)
        return self._slots[where].copy(), self._bad[where].copy()

    def write_page(self, page: int, contents: PageContents) -> None:
        self.before_access()
        where = slice(page * self._page_size, (page + 1) * self._page_size)
        self._slots[where], self._bad[where] = contents
        self._is_any_bad = True

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
        tokens, write_slots = batch.tokens.tolist(), batch.write_slots.tolist()
        targets = [[slot] for slot in write_slots[: len(tokens)]]
        mirrors = zip(batch.write_tokens.tolist(), write_slots, strict=True)
        for token, slot in islice(mirrors, len(targets), None):
            targets[token].append(slot)
        wanted = set(batch.logit_tokens.tolist())
        totals: list[int | None] = []  # in the order of tokens, which is that of the wanted logits
        starts, slots = batch.row_starts.tolist(), self._slots_of_page[batch.pages].ravel()
        slot_starts = (batch.page_starts * self._page_size).tolist()
        adapters = None if batch.adapters is None else batch.adapters.tolist()
        for row, begin in enumerate(starts[:-1]):
            end = starts[row + 1]
            written = FakeRow(
                begin,
                tokens[begin:end],
                batch.positions.item(begin),
                slots[slot_starts[row] : slot_starts[row + 1]],
                0 if adapters is None else adapters[row],
                row == self.bad_row and end - 1 in wanted,
            )
            self._run_row(written, targets, wanted, totals)
        self.bad_row = None
        logits = _logits([total or 0 for total in totals], self._vocab_size)
        for index, total in enumerate(totals):
            if total is None:
                logits[index] = np.nan
        return logits

    def _run_row(
        self,
        row: FakeRow,
        targets: list[list[int]],
        wanted: set[int],
        totals: list[int | None],
    ) -> None:
        """Writes the row's slots, and appends to `totals` for each of its tokens whose logits are
        wanted; None: they are not finite.
        """
        slots, position = row.slots, row.first
        not_finite = row.is_bad or (self._is_any_bad and bool(self._bad[slots[:position]].any()))
        for token, value in enumerate(row.tokens, row.begin):
            if position:
                last = slots.item(position - 1)
                before = self._slots.item(last)
                not_finite = not_finite or self._bad.item(last)
            else:
                before = _SEED
            not_finite = not_finite or value in self.poison
            self._is_any_bad |= not_finite
            contents = mix(before, adapted(value, row.adapter))
            for slot in targets[token]:
                self._slots[slot], self._bad[slot] = contents, not_finite
            position += 1
            if token in wanted:
                read = self._slots[slots[:position]]
                totals.append(None if not_finite else read.dot(_WEIGHTS[:position]).item())


def adapted(token: int, adapter: int) -> int:
    """What the adapter of that number takes a token for; 0, the base, for itself."""
    return token + (adapter << 24)


def mix(before: int, token: int) -> int:
    """The contents of a slot: a hash of everything before it and its token."""
    mixed = ((before ^ ((token + 1) * _MIX & _MASK)) * _STEP) & _MASK
    return mixed ^ (mixed >> 29)


class Reference:
    """The fake model on one token list, without any page."""

    def __init__(self, tokens: Iterable[int], vocab_size: int, adapter: int = 0) -> None:
        self._vocab_size = vocab_size
        self._adapter = adapter
        self._last, self._total, self._length = _SEED, 0, 0
        self.extend(tokens)

    def append(self, token: int) -> None:
        self.extend((token,))

    def extend(self, tokens: Iterable[int]) -> None:
        last, total, length = self._last, self._total, self._length
        for token in tokens:
            last = mix(last, adapted(token, self._adapter))
            length += 1
            total += last * (length * _MIX | 1)
        self._last, self._total, self._length = last, total & _MASK, length

    def copy(self) -> Reference:
        """Another one with the same tokens."""
        other = Reference((), self._vocab_size, self._adapter)
        other._last, other._total, other._length = self._last, self._total, self._length
        return other

    def logits(self) -> Floats:
        """The logits after the tokens so far."""
        row: Floats = _logits([self._total], self._vocab_size)[0]
        return row


def reference_logits(tokens: Iterable[int], vocab_size: int, adapter: int = 0) -> Floats:
    """The fake model's logits after `tokens`, computed without any page."""
    return Reference(tokens, vocab_size, adapter).logits()


def _logits(totals: list[int], vocab_size: int) -> Floats:
    """A row for each weighted sum of contents."""
    spread = (_columns(vocab_size) ^ np.array(totals, np.uint64)[:, None]) * _UINT_STEP
    spread ^= spread >> np.uint64(31)
    # 24 bits, so that 32-bit floats are exact
    return (spread >> np.uint64(40)).astype(np.float32) * np.float32(2**-22)


@cache
def _columns(vocab_size: int) -> NDArray[np.uint64]:
    return np.arange(vocab_size, dtype=np.uint64) * _UINT_MIX
