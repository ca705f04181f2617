"""A fake model whose keys and values are rolling hashes, read through the page tables; computed at
once, or as a device computes; with drafts of what it would say next, a store for its pages, and a
tokenizer in which one letter is one token, so that an oracle needs only text or tokens.

The contents of the slot of position i are a hash of all tokens up to i, and the logits of a
position come from a sum over *all* slots that the position may read. So any wrongly shared or
stale page, any slot written twice and any late copy changes the text. With a window the same
contents are kept in frames, too, and what lies in it is read from both. With recurrent states the
hash of all tokens before comes from a state's slot instead, so that a wrong state changes it too.
`reference_logits` computes the same from the token list alone: no pages, no batch, no cache. Each
adapter hashes tokens in its own way. Integers and numpy only.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmprog.radix.frames import WindowPool
from lmprog.runtime.scheduling.batch import Batch, RowStates
from lmprog.runtime.scheduling.drafting import Guess
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest, StepResults
from lmprog.runtime.text.tokenizer import ByteStream
from lmprog.runtime.tier.page_store import KnownPage, LoadEnd, PageCosts, PageKey
from lmprog.simulation.plain_sampler import PlainSampler

ALPHABET = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.,:;!?"
"""Token i is letter i; the token after the last letter ends a text."""
_TOKENS = {letter: token for token, letter in enumerate(ALPHABET)}
_OTHER = _TOKENS["?"]
_PIECES = [*(letter.encode() for letter in ALPHABET), None]


class LetterTokenizer:
    """See `runtime.tokenizer.Tokenizer`. Other characters become question marks."""

    vocab_size = len(ALPHABET) + 1
    eos_ids = (len(ALPHABET),)
    prefix: tuple[int, ...] = ()

    def encode(self, text: str, start: bool = True) -> list[int]:
        return [_TOKENS.get(letter, _OTHER) for letter in text]

    def encode_quoting(
        self, text: str, quoted: Sequence[tuple[int, int]], start: bool = True
    ) -> list[int]:
        return self.encode(text, start)

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        return "".join(
            self.token_text(token)
            for token in tokens
            if token not in self.eos_ids or not skip_special
        )

    def token_text(self, token: int) -> str:
        return ALPHABET[token] if token < len(ALPHABET) else "<end>"

    def token_bytes(self, token: int) -> bytes | None:
        return _PIECES[token] if token < len(_PIECES) else None

    def is_special(self, token: int) -> bool:
        return self.token_bytes(token) is None

    def stream(self) -> ByteStream:
        return ByteStream(_PIECES)


_MASK = 2**64 - 1
_MIX, _STEP, _SEED = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 7
_UINT_MIX, _UINT_STEP = np.uint64(_MIX), np.uint64(_STEP)
_WEIGHTS = (np.arange(1, 1 << 16, dtype=np.uint64) * _UINT_MIX) | np.uint64(1)
"""What the contents of each position count in the logits."""

Floats = NDArray[np.float32]
PageContents = tuple[NDArray[np.uint64], NDArray[np.bool_]]
"""Of each slot of a page: its hash, and whether it is not finite; or one number of half a state."""
PARTS_OF_STATE = 2
_PART_BITS = 32
_PART_MASK = (1 << _PART_BITS) - 1


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
    states: StateRow | None = None
    apart: NDArray[np.intp] | None = None
    """As `slots`, of frames."""


class StateRow(NamedTuple):
    """Where a row's recurrent state comes from and goes."""

    source: int
    targets: dict[int, list[int]]
    """After how many of the row's tokens it is written to which slots; -1: after all of them."""


def _state_rows(states: RowStates) -> list[StateRow]:
    """By row. What is written must be read behind the row that writes it, and nothing twice."""
    made = [
        StateRow(source, {-1: [target]})
        for source, target in zip(states.sources.tolist(), states.targets.tolist(), strict=True)
    ]
    writers = {row.targets[-1][0]: index for index, row in enumerate(made)}
    for index, count, slot in states.snapshots.tolist():
        made[index].targets.setdefault(count, []).append(slot)
        assert slot not in writers, "a state's slot is written twice"
        writers[slot] = index
    assert len(writers) == len(made) + len(states.snapshots), "a state's slot is written twice"
    for index, row in enumerate(made):
        behind = writers.get(row.source, -1)
        assert behind <= index, "a state is read before it is written"
    return made


class FakeEngine:
    """Runs batches on hashes, with the faults of real engines.

    Tokens in `poison` give contents that are not finite, and so does row `bad_row` of the next step
    if it gives logits; everything that reads them is not finite either. `fail_next` makes the next
    step raise.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        vocab_size: int,
        num_states: int = 0,
        windows: WindowPool | None = None,
    ) -> None:
        """`num_states`: slots for recurrent states. `windows`: its pages and frames, if any."""
        self._window = 0 if windows is None else windows.window
        self._parts_of_frame = 1 if windows is None else windows.num_parts
        num_frames = 0 if windows is None else windows.num_frames
        num_pages = num_pages if windows is None else windows.num_numbers
        self._slots_of_frame = np.arange(num_frames * page_size).reshape(num_frames, page_size)
        self._states = [12345 * (slot + 1) for slot in range(num_states)]
        self._bad_states: set[int] = set()
        self._page_size = page_size
        self._vocab_size = vocab_size
        # Unwritten slots hold junk, so that reading one shows.
        num_slots = num_pages * page_size
        self._slots = np.arange(num_slots + num_frames * page_size, dtype=np.uint64) * _UINT_STEP
        self._slots += np.uint64(12345)
        self._apart = self._slots[num_slots:]
        self._bad = np.zeros(len(self._slots), bool)
        self._is_any_bad = False
        self._slots_of_page = np.arange(num_slots).reshape(num_pages, page_size)
        self.poison: set[int] = set()
        self.bad_row: int | None = None
        self.fail_next = False
        self.before_access: Callable[[], None] = lambda: None
        """Called before pages are read or written from outside."""
        self.num_faults = 0

    def read_page(self, page: int) -> PageContents:
        """A copy of what is in the slots of `page`; behind the pages are states, or frames."""
        self.before_access()
        slot, part = divmod(page - len(self._slots_of_page), PARTS_OF_STATE)
        if slot >= 0 and not self._window:
            half = self._states[slot] >> part * _PART_BITS & _PART_MASK
            return np.array([half], np.uint64), np.array([slot in self._bad_states])
        where = self._where(page)
        return self._slots[where].copy(), self._bad[where].copy()

    def _where(self, page: int) -> slice:
        """The slots of a page, or of a part of a frame."""
        size, part, each = self._page_size, 0, 1
        if (behind := page - len(self._slots_of_page)) >= 0:
            each = self._parts_of_frame
            page, part = page - behind + behind // each, behind % each
        return slice(size * page + size * part // each, size * page + size * (part + 1) // each)

    def write_page(self, page: int, contents: PageContents) -> None:
        self.before_access()
        slot, part = divmod(page - len(self._slots_of_page), PARTS_OF_STATE)
        if slot >= 0 and not self._window:
            shift = part * _PART_BITS
            kept = self._states[slot] & ~(_PART_MASK << shift)
            self._states[slot] = kept | contents[0].item(0) << shift
            is_bad = bool(contents[1].item(0))
            (self._bad_states.add if is_bad else self._bad_states.discard)(slot)
            return
        where = self._where(page)
        self._slots[where], self._bad[where] = contents[0][: where.stop - where.start], contents[1]
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
        apart_slots = self._slots_of_frame[:0].ravel()
        if (apart := batch.apart) is not None:
            assert self._window, "it has no frames"
            self._apart[apart.copies[:, 1]] = self._apart[apart.copies[:, 0]]
            apart_slots = self._slots_of_frame[apart.pages].ravel()
        tokens, write_slots = batch.tokens.tolist(), batch.write_slots.tolist()
        targets = [[slot] for slot in write_slots[: len(tokens)]]
        apart_targets: list[list[int]] = [[] for _ in tokens]
        if apart is not None:
            for token, slot in zip(batch.write_tokens.tolist(), apart.write_slots, strict=True):
                apart_targets[token].append(slot)
        mirrors = zip(batch.write_tokens.tolist(), write_slots, strict=True)
        for token, slot in islice(mirrors, len(targets), None):
            targets[token].append(slot)
        wanted = set(batch.logit_tokens.tolist())
        totals: list[int | None] = []  # in the order of tokens, which is that of the wanted logits
        starts, slots = batch.row_starts.tolist(), self._slots_of_page[batch.pages].ravel()
        slot_starts = (batch.page_starts * self._page_size).tolist()
        adapters = None if batch.adapters is None else batch.adapters.tolist()
        states = None if batch.states is None else _state_rows(batch.states)
        assert states is None or len(self._states), "it has no recurrent states"
        for row, begin in enumerate(starts[:-1]):
            end = starts[row + 1]
            written = FakeRow(
                begin,
                tokens[begin:end],
                batch.positions.item(begin),
                slots[(where := slice(slot_starts[row], slot_starts[row + 1]))],
                0 if adapters is None else adapters[row],
                row == self.bad_row and end - 1 in wanted,
                None if states is None else states[row],
                None if apart is None else apart_slots[where],
            )
            self._run_row(written, (targets, apart_targets), wanted, totals)
        self.bad_row = None
        logits = _logits([total or 0 for total in totals], self._vocab_size)
        for index, total in enumerate(totals):
            if total is None:
                logits[index] = np.nan
        return logits

    def _run_row(
        self,
        row: FakeRow,
        all_targets: tuple[list[list[int]], list[list[int]]],
        wanted: set[int],
        totals: list[int | None],
    ) -> None:
        """Writes the row's slots, in frames too, and appends to `totals` for each of its tokens
        whose logits are wanted; None: they are not finite.
        """
        slots, position, states = row.slots, row.first, row.states
        targets, apart_targets = all_targets
        state = _SEED if states is None or states.source < 0 else self._states[states.source]
        is_bad_state = states is not None and states.source in self._bad_states
        not_finite = row.is_bad or (self._is_any_bad and bool(self._bad[slots[:position]].any()))
        for token, value in enumerate(row.tokens, row.begin):
            if position:
                last = slots.item(position - 1)
                before = self._slots.item(last)
                not_finite = not_finite or self._bad.item(last)
            else:
                before = _SEED
            not_finite = not_finite or value in self.poison or is_bad_state
            self._is_any_bad |= not_finite
            contents = mix(before if states is None else state, adapted(value, row.adapter))
            state = contents
            for slot in targets[token]:
                self._slots[slot], self._bad[slot] = contents, not_finite
            self._apart[apart_targets[token]] = contents
            position += 1
            if states is not None:
                self._keep(states, token + 1 - row.begin, len(row.tokens), (state, not_finite))
            if token in wanted:
                read = self._slots[slots[:position]]
                if row.apart is not None:
                    seen = slice(max(0, position - self._window), position)
                    # twice as much as those of pages count: nothing, where both are the same
                    read[seen] += (self._apart[row.apart[seen]] - read[seen]) * np.uint64(2)
                totals.append(None if not_finite else read.dot(_WEIGHTS[:position]).item())

    def _keep(self, row: StateRow, done: int, count: int, state: tuple[int, bool]) -> None:
        """The state after `done` of the row's `count` tokens, and whether it is not finite."""
        for slot in [*row.targets.get(done, ()), *(row.targets[-1] if done == count else ())]:
            self._states[slot] = state[0]
            (self._bad_states.add if state[1] else self._bad_states.discard)(slot)


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


MOST = 5


class GuessingSource:
    """A `DraftSource`. `right` is the chance that a token is what the model finds likeliest.

    With mistakes. The fake model never repeats itself, so that nothing could be looked up.
    """

    def __init__(self, vocab_size: int, dice: random.Random, right: float) -> None:
        self._vocab_size = vocab_size
        self._dice = dice
        self._right = right

    def __call__(self, tokens: array[int], most: int, evidence: int) -> Guess:
        dice, reference = self._dice, Reference(tokens, self._vocab_size)
        guessed: list[int] = []
        for _ in range(min(most, dice.randint(0, MOST))):
            token = dice.randrange(self._vocab_size)
            if dice.random() < self._right:
                token = int(reference.logits().argmax())
            guessed.append(token)
            reference.append(token)
        return Guess(guessed)


HANGS = 1000
"""Turns of a load that the tier abandons before it ends."""


@dataclass(slots=True)
class KeptPage:
    """What a handle has. `contents` is None where they were damaged or never arrived."""

    key: PageKey
    contents: PageContents | None
    age: int


@dataclass(slots=True)
class PendingLoad:
    ticket: int
    turns_left: int
    pages: list[int]
    contents: list[PageContents]


class FakeStore:
    """See `PageStore`; slow, full and torn. `faults` is the chance that a page is refused, or lost
    or damaged without a word: like a file with checksums, it then gives nothing back rather than
    something wrong. It keeps contents in a dictionary and gives them back some turns later.
    """

    is_shared = False

    def __init__(
        self, engine: FakeEngine, num_handles: int, rng: random.Random, faults: float
    ) -> None:
        self._engine = engine
        self._rng = rng
        self._faults = faults
        self.num_handles = num_handles
        seconds = rng.choice([0.0, 0.01, 1.0])
        self.costs = PageCosts(seconds / 2, seconds / 2)
        self.kept: dict[int, KeptPage] = {}
        self._pending: list[PendingLoad] = []
        self._num_loads = self._num_stored = 0
        self.most_staged: int | None = None
        """Pages that it takes between two turns; None: any number."""
        self._num_staged = 0

    def known(self) -> list[KnownPage]:
        return [
            KnownPage(handle, one.key, one.age)
            for handle, one in self.kept.items()
            if one.contents is not None or self._rng.random() < 0.5
        ]

    def store(self, handle: int, page: int, key: PageKey, wait: float = 0.0) -> bool:
        if self._num_staged == self.most_staged or self._rng.random() < self._faults:
            return False
        self._num_staged += 1
        lost = self._rng.random() < self._faults
        self._num_stored += 1
        contents = None if lost else self._engine.read_page(page)
        self.kept[handle] = KeptPage(key, contents, self._num_stored)
        return True

    def load(self, handles: Sequence[int], pages: Sequence[int], keys: Sequence[PageKey]) -> int:
        self._num_loads += 1
        found: list[PageContents] = []
        for handle, key in zip(handles, keys, strict=True):
            one = self.kept.get(handle)
            if one is None or one.contents is None or not key.is_served_by(one.key):
                break
            found.append(one.contents)
        turns = self._rng.choice([0, 0, 1, 5, HANGS if self._rng.random() < self._faults else 0])
        self._pending.append(PendingLoad(self._num_loads, turns, list(pages), found))
        return self._num_loads

    def finished(self) -> list[LoadEnd]:
        self._num_staged = 0
        if not self._pending:
            return []
        for one in self._pending:
            for page in one.pages:
                self._engine.spoil_page(page)  # whoever reads it before the load has ended shows
        ended = [one for one in self._pending if not one.turns_left]
        self._pending = [one for one in self._pending if one.turns_left]
        for one in self._pending:
            one.turns_left -= 1
        for one in ended:
            for page, contents in zip(one.pages, one.contents, strict=False):
                self._engine.write_page(page, contents)
        return [LoadEnd(one.ticket, len(one.contents)) for one in ended]

    def abandon(self, ticket: int, *, is_patient: bool = False) -> bool:
        for one in self._pending:
            if one.ticket == ticket:
                one.pages.clear()
        return True

    def find(self, keys: Sequence[PageKey], states: Sequence[PageKey] = ()) -> int | None:
        return None

    def forget(self, handles: Sequence[int], keys: Sequence[PageKey]) -> None:
        for handle in handles:
            self.kept.pop(handle, None)

    def close(self) -> None:
        """Everything is written at once."""


class FakeResults:
    """See `AwaitedResults`."""

    def __init__(self, device: FakeDevice, number: int) -> None:
        self._device = device
        self._number = number
        self.found: StepResults | None = None

    def wait(self) -> StepResults:
        self._device.run_upto(self._number)
        assert self.found is not None, "what was begun before it ended in a fault"
        return self.found


class FakeDevice:
    """See `AheadEngine` and `AheadSampler`. `dice` decide how far it is ahead of who waits.

    What is begun is done later, in order, when its results are awaited, or any time before. There
    is one place for logits and one for sampled tokens, as on a device, so whatever is begun in
    the wrong order reads what it should not. A fault ends all that was begun.
    """

    def __init__(
        self, forward: Callable[[Batch], Floats], sampler: PlainSampler, dice: random.Random
    ) -> None:
        self._forward = forward
        self._dice = dice
        self._sampler = sampler
        self._logits = np.zeros((0, 0), np.float32)
        self._chosen: list[int] = []
        self._todo: list[Callable[[], None]] = []
        self._num_done = 0
        self._fault: Exception | None = None
        self.num_fed = 0
        """Tokens that went from one step to the next."""

    def forward(self, batch: Batch) -> None:
        self._todo.append(lambda: self._run(batch))

    def forward_after(self, batch: Batch, before: FakeResults, picks: Sequence[int]) -> None:
        def run() -> None:
            tokens = batch.tokens.copy()
            for start, pick in zip(batch.row_starts.tolist(), picks, strict=False):
                if pick >= 0:
                    tokens[start] = self._chosen[pick]
                    self.num_fed += 1
            self._run(replace(batch, tokens=tokens))

        self._todo.append(run)

    def sample(
        self, logits: None, picks: tuple[SampleRequest, ...], scores: tuple[ScoreRequest, ...]
    ) -> StepResults:
        return self.begin(logits, picks, scores).wait()

    def begin(
        self, logits: None, picks: tuple[SampleRequest, ...], scores: tuple[ScoreRequest, ...]
    ) -> FakeResults:
        results = FakeResults(self, self._num_done + len(self._todo) + 1)

        def run() -> None:
            found = self._sampler.sample(self._logits, picks, scores)
            self._chosen = [0 if one is None else one.token for one in found.samples]
            results.found = found

        self._todo.append(run)
        return results

    def run_upto(self, number: int) -> None:
        """Does so many pieces of work since the beginning, or all."""
        if self._dice.random() < 0.5:
            number = self._num_done + len(self._todo)
        while self._num_done < number and self._todo and self._fault is None:
            self._num_done += 1
            try:
                self._todo.pop(0)()
            except Exception as error:  # noqa: BLE001 - raised where somebody waits
                self._fault = error
        if self._fault is not None:
            fault, self._fault = self._fault, None
            self._num_done += len(self._todo)
            self._todo.clear()
            raise fault

    @property
    def has_untold_fault(self) -> bool:
        """Whether there was a fault that nobody has been told of yet."""
        return self._fault is not None

    def drain(self) -> None:
        """Does all; a fault is told to whoever waits next."""
        try:
            self.run_upto(self._num_done + len(self._todo))
        except Exception as error:  # noqa: BLE001 - raised where somebody waits
            self._fault = error

    def _run(self, batch: Batch) -> None:
        self._logits = self._forward(batch)
