"""A constraint with arrays of strings and numbers that have to differ, however many there may be.

The automaton takes such arrays with any items, each in the one spelling that equal ones have.
Within an array, a state remembers the items so far and the text of the one that is being written:
tokens that would write an item again, or from where nothing else could be written, are barred. So
such states are not shared, and live as long as somebody holds them. Arrays are told by the leaf of
their opening bracket. Knows how JSON writes strings, and what ends a number, `true`, `false` or
`null` (a *bare* item), and which tokens may be these, found once per vocabulary; knows no schemas.

Where an array may be of several alternatives of a schema, and one of them wants its items to
differ, they differ.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from lmprog.constraints.constraint import Doubts, MaskRow, MaskWork, State, one_by_one
from lmprog.constraints.net import UNREACHABLE, UniqueArray
from lmprog.constraints.regular import RegularConstraint
from lmprog.constraints.seam import Pieces, without
from lmprog.constraints.vocabulary import Vocabulary

_END = ord("]")
_BLANKS = b", \t\r\n"
_END_OF_BARE = re.compile(rb"[],\s]")
_BETWEEN = 200
"""Bytes that may stand there, at most, with what ends the array."""
_PROBES = tuple(bytes([byte]) for byte in b"eaA0-x")
_MAX_LOOKS = 20_000
"""States that are looked at for one distance; then the end is taken to be out of reach."""


class ItemMemory(NamedTuple):
    """Where in such an array a text is."""

    array: UniqueArray
    seen: tuple[bytes, ...]
    """The items, with their quotes, sorted."""
    item: bytes | None
    """What there is of the item that is being written; None between two."""

    @property
    def may_repeat(self) -> bool:
        """Whether the item may still become one of those before."""
        if self.item is None:
            return bool(self.seen)
        at = bisect_left(self.seen, self.item)
        return at < len(self.seen) and self.seen[at].startswith(self.item)

    @property
    def spare(self) -> int:
        """How many more tokens the items behind this one take because they have to differ."""
        return self.array.spare * max(0, self.array.low - len(self.seen) - 1)


class RememberingState(State):
    """A state of the automaton, and what was written before it."""

    __slots__ = ("base", "cost", "memory", "plain_row")

    def __init__(self, base: State, memory: ItemMemory) -> None:
        super().__init__(base.number)
        self.base = base
        self.memory = memory
        self.cost: int | None = None
        self.plain_row: MaskRow | None = None
        """The mask of the automaton that `row` was made of."""


class UniqueItemsConstraint:
    engine = "lmprog"

    def __init__(
        self,
        base: RegularConstraint,
        arrays: Mapping[int, UniqueArray],
        vocabulary: Vocabulary,
    ) -> None:
        """`arrays`: by the leaf state of their opening bracket."""
        self._base = base
        self._arrays = arrays
        self._has_bare = any(one.has_bare for one in arrays.values())
        self._most_spare = _BETWEEN + max(one.spare * one.low for one in arrays.values())
        self._tokens = vocabulary.tokens
        self._quotes = quoted_tokens(vocabulary)
        self.left_out = base.left_out
        self._states: WeakValueDictionary[tuple[State, ItemMemory], RememberingState] = (
            WeakValueDictionary()
        )

    @property
    def start(self) -> State:
        return self._base.start

    @property
    def num_states(self) -> int:
        return self._base.num_states

    @property
    def num_bytes(self) -> int:
        """Of what all generations share; an estimate."""
        return self._base.num_bytes

    def is_final(self, state: State) -> bool:
        return not isinstance(state, RememberingState) and self._base.is_final(state)

    def is_done(self, state: State) -> bool:
        return not isinstance(state, RememberingState) and self._base.is_done(state)

    def forced(self, state: State) -> bytes:
        """What the automaton forces; where items before force more, that is not seen."""
        return self._base.forced(state.base if isinstance(state, RememberingState) else state)

    def doubts(self, state: State) -> Doubts:
        return self._base.doubts(state.base if isinstance(state, RememberingState) else state)

    def follow(self, state: State, tokens: Sequence[int], left: int) -> tuple[int, State]:
        return one_by_one(self, state, tokens, left)

    def distance(self, state: State) -> int:
        if not isinstance(state, RememberingState):
            return self._base.distance(state)
        if state.cost is None:
            state.cost = self._cost(state) + state.memory.spare
        return state.cost

    def advance(self, state: State, token: int) -> State:
        text = self._tokens[token] if 0 <= token < len(self._tokens) else None
        after = None if text is None else self.advance_bytes(state, text)
        if after is None:
            raise ValueError(f"token {token} ({text!r}) is not allowed in state {state.number}")
        return after

    def advance_bytes(self, state: State, text: bytes) -> State | None:
        after = self._moved(state, text)
        if isinstance(after, RememberingState) and not self._may_end(after):
            return None
        return after

    def _may_end(self, state: RememberingState) -> bool:
        """Whether there is a way to the end on which no item comes again: plainly so where the
        array may end here, or some letter leads away from all items before.
        """
        memory, base = state.memory, state.base
        if not memory.may_repeat:
            return True
        ways: list[tuple[bytes, tuple[bytes, ...]]] = [(memory.item or b'"', (b"",))]
        if memory.item is None:
            if self._base.advance_bytes(base, b"]") is not None:
                return True
            ways = [(b'"', (b'"', b' "'))]
            ways += [(b"", (b"", b" "))] if memory.array.has_bare else []
        for begun, between in ways:
            for letter in _PROBES:
                if not memory._replace(item=begun + letter).may_repeat:
                    for before in between:
                        if self._base.advance_bytes(base, before + letter) is not None:
                            return True
        return self.distance(state) < UNREACHABLE

    def mask(self, state: State, budget: int | None = None) -> MaskRow:
        if not isinstance(state, RememberingState):
            return self._entering(state, budget)
        left = None if budget is None else budget - state.memory.spare
        plain = self._base.mask(state.base, left)
        seen = state.memory.seen
        # Whatever was written, so much is enough to write another item and to end.
        enough = state.base.worst + state.memory.spare + max(map(len, seen), default=0) + _BETWEEN
        is_tight = budget is not None and budget <= enough
        if not is_tight and plain is state.plain_row and state.row is not None:
            return state.row
        doubtful = self._doubtful(state, plain, is_tight)
        row = without(plain, self._barred(state, plain, doubtful, budget if is_tight else None))
        if not is_tight:
            state.row, state.plain_row = row, plain
        return row

    @property
    def work(self) -> MaskWork | None:
        return self._base.work

    @work.setter
    def work(self, work: MaskWork | None) -> None:
        self._base.work = work

    def is_ready(self, state: State, budget: int | None = None) -> bool:
        if not isinstance(state, RememberingState):
            return self._base.is_ready(state, budget)
        left = None if budget is None else budget - state.memory.spare
        return self._base.is_ready(state.base, left)

    def _entering(self, state: State, budget: int | None) -> MaskRow:
        """Outside of such arrays, where a token may begin one."""
        plain = self._base.mask(state, budget)
        if budget is None or budget > state.worst + self._most_spare:
            arrays = self._quotes.bare_arrays if self._has_bare else self._quotes.arrays
            return without(plain, self._barred(state, plain, arrays, None))
        return without(plain, self._barred(state, plain, self._quotes.brackets, budget))

    def _barred(
        self, state: State, plain: MaskRow, tokens: NDArray[np.int32], budget: int | None
    ) -> list[int]:
        """Which of some tokens may not be, though the automaton takes them."""
        barred = []
        for token in within(plain, tokens):
            after = self.advance_bytes(state, self._bytes(token))
            if after is None or (budget is not None and self.distance(after) > budget - 1):
                barred.append(token)
        return barred

    def _doubtful(self, state: RememberingState, plain: MaskRow, tight: bool) -> NDArray[np.int32]:
        """The tokens that may write an item again, or its beginning, or need more than is left."""
        memory, quotes = state.memory, self._quotes
        has_bare = memory.array.has_bare
        if memory.item is not None:
            may_run_out = tight or not memory.array.has_many
            found = [quotes.commas if may_run_out else quotes.several]
            if has_bare:
                found.append(quotes.bare_behind if memory.item[0] == QUOTE else quotes.ends)
            at = bisect_left(memory.seen, memory.item)
            while at < len(memory.seen) and memory.seen[at].startswith(memory.item):
                found.append(quotes.pieces.along(memory.seen[at][len(memory.item) :]).tokens)
                at += 1
            return np.unique(np.concatenate(found))
        again = []
        first = np.union1d(quotes.first, quotes.bare) if has_bare else quotes.first
        for token in within(plain, first) if memory.seen else ():
            text = self._bytes(token)
            end = _end_of_string(text, 1) if text[0] == QUOTE else 0
            if memory._replace(item=text[:end] if end else text).may_repeat:
                again.append(token)
        found = [quotes.between, quotes.several, int_array(again)]
        return np.unique(np.concatenate([*found, *([quotes.bare_behind] if has_bare else [])]))

    def _moved(self, state: State, text: bytes) -> State | None:
        """The state behind the text, wherever that leads."""
        memory = state.memory if isinstance(state, RememberingState) else None
        base: State | None = state.base if isinstance(state, RememberingState) else state
        at = 0
        while at < len(text) and base is not None:
            if memory is None:
                end = text.find(b"[", at)
                end = len(text) if end < 0 else end
                base = self._base.advance_bytes(base, text[at:end])
                if base is not None and end < len(text):
                    memory = self._begun(base)
                    base = self._base.advance_bytes(base, b"[")
                at = end + 1
            elif memory.item is None:
                base = self._base.advance_bytes(base, text[at : at + 1])
                if text[at] == QUOTE:
                    memory = memory._replace(item=b'"')
                elif text[at] == _END:
                    memory = None
                elif text[at] not in _BLANKS:
                    memory = memory._replace(item=text[at : at + 1])
                at += 1
            else:
                item, is_whole = _item_within(memory.item + text[at:], len(memory.item))
                rest = item[len(memory.item) :]
                base = self._base.advance_bytes(base, rest)
                at += len(rest)
                memory = _with_item(memory, item) if is_whole else memory._replace(item=item)
                if memory is None:
                    return None
        return base if base is None or memory is None else self._state(base, memory)

    def _begun(self, base: State) -> ItemMemory | None:
        """The memory of the array that an opening bracket begins here."""
        for leaf_state, array in self._arrays.items():
            if self._base.stands_at(base, leaf_state):
                return ItemMemory(array, (), None)
        return None

    def _state(self, base: State, memory: ItemMemory) -> RememberingState:
        found = self._states.get((base, memory))
        if found is None:
            found = self._states[base, memory] = RememberingState(base, memory)
        return found

    def _cost(self, state: RememberingState) -> int:
        """To the end by the shortest way on which no item comes again: byte by byte as long as one
        may, then as the automaton has it.
        """
        if not state.memory.may_repeat:
            return self._base.distance(state.base)
        order = count()
        waiting: list[tuple[int, int, int, State]] = [
            (self._base.distance(state.base), next(order), 0, state)
        ]
        looked_at: set[State] = set()
        while waiting and len(looked_at) < _MAX_LOOKS:
            far, _, bytes_before, at = heapq.heappop(waiting)
            if not isinstance(at, RememberingState) or not at.memory.may_repeat:
                return far
            if at in looked_at:
                continue
            looked_at.add(at)
            for after in self._after_a_byte(at):
                base = after.base if isinstance(after, RememberingState) else after
                least = bytes_before + 1 + self._base.distance(base)
                heapq.heappush(waiting, (least, next(order), bytes_before + 1, after))
        return UNREACHABLE

    def _after_a_byte(self, state: RememberingState) -> Iterator[State]:
        """One state for each way to go on; of bytes after which no item comes again, the best."""
        row = self._base.row(state.base)
        some = [byte for byte, number in enumerate(row) if number]
        if state.memory.item is not None:
            special = {QUOTE, _END, *_BLANKS, *_next_bytes(state.memory)}
            others = {row[byte]: byte for byte in some if byte not in special}
            ways = [self._moved(state, bytes([byte])) for byte in others.values()]
            bases = [one.base for one in ways if isinstance(one, RememberingState)]
            if bases:
                yield min(bases, key=self._base.distance)
            some = [byte for byte in some if byte in special]
        for byte in some:
            after = self._moved(state, bytes([byte]))
            if after is not None:
                yield after

    def _bytes(self, token: int) -> bytes:
        text = self._tokens[token]
        assert text, "only tokens with bytes are looked at"
        return text


def _with_item(memory: ItemMemory, item: bytes) -> ItemMemory | None:
    """After the item; None where it was there before."""
    at = bisect_left(memory.seen, item)
    if at < len(memory.seen) and memory.seen[at] == item:
        return None
    seen = list(memory.seen)
    insort(seen, item)
    return ItemMemory(memory.array, tuple(seen), None)


def _next_bytes(memory: ItemMemory) -> Iterator[int]:
    """The bytes with which the item goes on as one of those before, and the quote."""
    assert memory.item is not None
    yield QUOTE
    at = bisect_left(memory.seen, memory.item)
    while at < len(memory.seen) and memory.seen[at].startswith(memory.item):
        yield from memory.seen[at][len(memory.item) :][:1]  # a bare item may be one of those before
        at += 1


def _item_within(text: bytes, begin: int) -> tuple[bytes, bool]:
    """The item that the text begins with, and whether that ends there; its first `begin` bytes are
    known to be of it.
    """
    if text[0] == QUOTE:
        end = _end_of_string(text, begin)
        return (text[:end], True) if end else (text, False)
    ends = _END_OF_BARE.search(text, begin)
    return (text[: ends.start()], True) if ends else (text, False)


def _end_of_string(text: bytes, begin: int) -> int:
    """Behind the quote that ends the string which `text` begins with, looked for from `begin` on;
    0 where there is none.
    """
    at = begin
    while (at := text.find(b'"', at)) >= 0:
        escapes = at - len(text[:at].rstrip(b"\\"))
        if escapes % 2 == 0:
            return at + 1
        at += 1
    return 0


# --- tokens as parts of a list of scalars

QUOTE = ord('"')
_ONLY_BETWEEN = re.compile(rb"[ \t\r\n,]+").fullmatch
"""What may stand between two items."""
_BARE = rb"[-0-9tfn]"
"""How a number, `true`, `false` or `null` begins."""
_IS_BARE = re.compile(_BARE + rb"[^\],\s]*").fullmatch
_BEGINS_BARE = re.compile(rb"(?:^|[\[\],\"\s])\s*" + _BARE).search
_ENDS_BARE = re.compile(rb"[],\s]").search


class QuotedTokens:
    """A vocabulary's tokens by the quotes and commas in them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.pieces = Pieces(vocabulary.tokens, vocabulary.index.in_order)
        tokens = [(i, one) for i, one in enumerate(vocabulary.tokens) if one]
        quoted = [(i, one) for i, one in tokens if b'"' in one]
        self.first = int_array([i for i, one in quoted if one[0] == QUOTE])
        self.several = int_array([i for i, one in quoted if one.count(b'"') > 2])
        """A token with a whole item behind the end of another has so many."""
        self.commas = int_array([i for i, one in quoted if one.count(b'"') > 2 or b"," in one])
        self.between = int_array(
            [i for i, one in tokens if one[0] != QUOTE and (b'"' in one or _ONLY_BETWEEN(one))]
        )
        self.brackets = int_array([i for i, one in tokens if b"[" in one])
        self.arrays = int_array([i for i, one in quoted if b"[" in one and one.count(b'"') > 1])
        self.ends = int_array([i for i, one in tokens if _ENDS_BARE(one)])
        """What may end a bare item."""
        self.bare = int_array([i for i, one in tokens if _IS_BARE(one)])
        bare = [(i, one) for i, one in tokens if _BEGINS_BARE(one) and not _IS_BARE(one)]
        self.bare_behind = int_array([i for i, _ in bare])
        """One that begins behind something else, or that something else follows."""
        arrays = [i for i, one in bare if b"[" in one]
        self.bare_arrays = np.union1d(self.arrays, int_array(arrays))


def within(row: MaskRow, tokens: NDArray[np.int32]) -> list[int]:
    """Those of `tokens` that the mask allows."""
    if row.ids is not None:
        found: list[int] = np.intersect1d(row.ids, tokens).tolist()
        return found
    bits = row.bits[tokens >> 5] >> (tokens & 31).astype(np.uint32) & np.uint32(1)
    kept: list[int] = tokens[bits.astype(bool)].tolist()
    return kept


def int_array(tokens: list[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


_known: WeakKeyDictionary[Vocabulary, QuotedTokens] = WeakKeyDictionary()


def quoted_tokens(vocabulary: Vocabulary) -> QuotedTokens:
    found = _known.get(vocabulary)
    if found is None:
        found = _known[vocabulary] = QuotedTokens(vocabulary)
    return found
