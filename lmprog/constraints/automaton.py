"""The lazily determinised automaton of a net, and the masks of its states: the native core's.

A *position* is a leaf's state and its continuation, a chain of *frames* (hash-consed, as the net
may be recursive): the rest of a sequence, or a repetition with its counters. A state is a set of
positions, made when it is first reached, so only visited states cost memory. If two positions
differ only in their counters and one accepts everything that the other does, only that one is kept:
`(\\w+\\s?){1,200}` stays small. Since the net is trimmed, every position, and so every state but 0
(the dead state), can reach acceptance.

Owns the C structures of lmprog_masks.h and keeps every array alive that they point to; does not
know the meaning of a net.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmprog.constraints.constraint import NARROW, CompileLimits, Doubt, MaskRow, too_large
from lmprog.constraints.kernel import INT, LONG, POINTER, free_with, kernel, or_memory
from lmprog.constraints.lower import any_json_character, any_text
from lmprog.constraints.net import UNREACHABLE, Leaf, Net
from lmprog.constraints.vocabulary import NUM_GROUPS, Vocabulary, group_bytes

DEAD = 0
_FULL, _LATER = -2, -3
"""The memory holds as many states as it may; a mask takes more work than it may (LMPROG_MASKS)."""


class MemoryFull(Exception):
    """The automaton has reached its state limit. Caught within this package."""


class RawMask(NamedTuple):
    row: MaskRow | None
    """With end-of-sequence in accepting states; perhaps the row of another mask with the same
    tokens. None where `like` says whose mask it is."""
    worst: int
    """The highest cost after an allowed token, or more."""
    like: int = 0
    """Not 0: this mask was not made, it is that of another state."""


def _doubts(data: bytes) -> Iterator[Doubt]:
    at, numbers = 0, struct.Struct("=iii")
    while at < len(data):
        begin, size, count = numbers.unpack_from(data, at)
        at += numbers.size
        texts = []
        for _ in range(count):
            end = at + 4 + int.from_bytes(data[at : at + 4], sys.byteorder)
            texts.append(data[at + 4 : end])
            at = end
        yield Doubt(begin, size, tuple(texts))


class _CNet(ctypes.Structure):
    _fields_ = [
        *(
            (name, POINTER)
            for name in ("kind", "args", "items", "node_cost", "edge_start", "edges")
        ),
        *((name, POINTER) for name in ("final_state", "state_cost", "string_state")),
        ("root", INT),
        ("max_states", INT),
        ("max_positions", LONG),
        ("max_row_bytes", LONG),
    ]


class _CBucket(ctypes.Structure):
    _fields_ = [
        ("nodes", POINTER),
        ("num_nodes", LONG),
        *((name, POINTER) for name in ("order", "roots", "by_length", "length_start", "bits")),
        ("num_tokens", LONG),
        ("longest", INT),
        ("lead", ctypes.c_uint8),
        ("groups", ctypes.c_uint8),
    ]


class _CVocabulary(ctypes.Structure):
    _fields_ = [
        ("buckets", POINTER),
        *((name, INT) for name in ("num_buckets", "deepest", "num_words", "num_eos")),
        ("eos_ids", POINTER),
        ("group_start", INT * NUM_GROUPS),
        ("edge_start", POINTER),
        ("edges", POINTER),
        ("strings", POINTER * 2),
        ("symbols", POINTER),
        ("symbol_texts", ctypes.c_char_p),
        ("symbol_begins", POINTER),
        ("num_symbols", LONG),
    ]


class _CLeaf(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("edges", "edge_start", "final", "cost")),
        ("num_states", LONG),
    ]


class _CResult(ctypes.Structure):
    _fields_ = [(name, LONG) for name in ("count", "worst", "like", "digest", "work")]


class _CTexts(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char_p), ("begins", POINTER), ("count", LONG), ("longest", LONG)]


class _Tokens:
    """The C view of one vocabulary; owns the arrays that it points to."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        buckets = vocabulary.index.buckets
        eos = np.array(vocabulary.eos_ids, np.int32)
        symbols = np.array(vocabulary.symbols, np.int32)
        spelled = [vocabulary.bytes_of(one) or b"" for one in vocabulary.symbols]
        begins = np.cumsum([0, *map(len, spelled)]).astype(np.int32)
        roots = np.full((len(buckets), 256), -1, np.int32)
        views = (_CBucket * len(buckets))()
        for row, view, bucket in zip(roots, views, buckets, strict=True):
            trie = bucket.trie
            first = np.nonzero(trie.nodes["depth"] == 1)[0]
            row[trie.nodes["byte"][first]] = first
            view.nodes, view.num_nodes = trie.nodes.ctypes.data, len(trie.nodes)
            view.order, view.roots = trie.order.ctypes.data, row.ctypes.data
            view.by_length, view.length_start = (
                bucket.by_length.ctypes.data,
                bucket.length_start.ctypes.data,
            )
            view.bits = bucket.bits.ctypes.data if bucket.bits is not None else None
            view.num_tokens, view.longest = len(bucket.by_length), len(bucket.length_start) - 1
            view.lead, view.groups = bucket.lead, bucket.groups
        group = group_bytes()
        self._alive = (buckets, eos, symbols, begins, roots, views, group)
        self._view = _CVocabulary(
            ctypes.addressof(views),
            len(buckets),
            max((bucket.trie.deepest for bucket in buckets), default=0),
            vocabulary.num_words,
            len(eos),
            eos.ctypes.data,
            (INT * len(group.start))(*group.start),
            group.edge_start.ctypes.data,
            group.edges.ctypes.data,
            symbols=symbols.ctypes.data,
            symbol_texts=b"".join(spelled),
            symbol_begins=begins.ctypes.data,
            num_symbols=len(symbols),
        )
        self.pointer = ctypes.addressof(self._view)
        self._kernel = kernel()
        self._num_words = vocabulary.num_words
        self._vocabulary = weakref.ref(vocabulary)
        self._rows: weakref.WeakValueDictionary[bytes | int, MaskRow] = (
            weakref.WeakValueDictionary()
        )
        """The masks that are held by any constraint, by their ids or their digest: those of
        different states, and of different constraints, are often equal."""
        self._view.strings = (POINTER * 2)(
            *(self._string_tokens(one) for one in (any_text(), any_json_character()))
        )

    @functools.cached_property
    def texts(self) -> int:
        """The C view of the tokens' bytes, made when the first text is forced."""
        vocabulary = self._vocabulary()
        assert vocabulary is not None, "its constraints hold it"
        ordered = vocabulary.ordered
        begins = np.zeros(len(ordered) + 1, np.int32)
        np.cumsum([len(text) for text in ordered], out=begins[1:])
        view = _CTexts(
            b"".join(ordered), begins.ctypes.data, len(ordered), max(map(len, ordered), default=0)
        )
        self._texts = view, begins
        return ctypes.addressof(view)

    def narrow_row(self, ids: bytes) -> MaskRow:
        """The mask of these tokens, 32 bits each."""
        found = self._rows.get(ids)
        if found is None:
            found = MaskRow.narrow(np.frombuffer(ids, np.int32), self._num_words)
            self._rows[ids] = found
        return found

    def wide_row(self, count: int, digest: int) -> MaskRow:
        """The mask that this thread made last, which has more tokens."""
        found = self._rows.get(digest)
        if found is not None and self._kernel.lmprog_mask_is(found.bits.ctypes.data):
            return found
        bits = np.empty(self._num_words, np.uint32)
        self._kernel.lmprog_mask_bits(bits.ctypes.data)
        bits.flags.writeable = False
        made = self._rows[digest] = MaskRow(bits, None, count)
        return made

    def _string_tokens(self, any_content: Leaf) -> int:
        starts = np.concatenate([[0], np.cumsum(any_content.num_edges)]).astype(np.int32)
        arrays = any_content.edges, starts, any_content.final, any_content.cost
        view = _CLeaf(*(one.ctypes.data for one in arrays), any_content.num_states)
        made = or_memory(self._kernel.lmprog_string_tokens_new(self.pointer, ctypes.byref(view)))
        free_with(self, self._kernel.lmprog_string_tokens_free, made)
        return made


_vocabularies: weakref.WeakKeyDictionary[Vocabulary, _Tokens] = weakref.WeakKeyDictionary()


def _tokens_of(vocabulary: Vocabulary) -> _Tokens:
    found = _vocabularies.get(vocabulary)
    if found is None:
        found = _vocabularies[vocabulary] = _Tokens(vocabulary)
    return found


class Automaton:
    """One net's automaton. States are small integers; 0 is the dead state.

    Methods that make states raise `MemoryFull` at the state limit; `collect` then frees memory.
    """

    def __init__(self, net: Net, vocabulary: Vocabulary, limits: CompileLimits) -> None:
        self._kernel = core = kernel()
        self._run, self._mask = core.lmprog_automaton_run, core.lmprog_mask
        self._net = net
        self._vocabulary = _tokens_of(vocabulary)
        self._limits = limits
        view = _CNet(
            *(
                array.ctypes.data
                for array in (
                    *(net.kind, net.args, net.items, net.node_cost, net.edge_start, net.edges),
                    *(net.final, net.state_cost, net.string_state),
                )
            ),
            net.root,
            limits.max_states,
            limits.max_positions,
            limits.max_row_bytes,
        )
        self._handle: int = core.lmprog_automaton_new(ctypes.byref(view), self._vocabulary.pointer)
        if not self._handle:
            raise too_large(limits)
        free_with(self, core.lmprog_automaton_free, self._handle)
        self._result = _CResult()
        self._ids = np.zeros(NARROW, np.int32)
        self.start: int = core.lmprog_automaton_start(self._handle)

    def _failure(self, code: int) -> Exception:
        if code == _FULL:
            return MemoryFull()
        return too_large(self._limits)

    @property
    def num_states(self) -> int:
        return int(self._kernel.lmprog_automaton_states(self._handle))

    @property
    def num_bytes(self) -> int:
        """An estimate of the automaton's memory."""
        return int(self._kernel.lmprog_automaton_bytes(self._handle)) + sum(
            array.nbytes for array in (self._net.args, self._net.items, self._net.edges)
        )

    def run(self, state: int, text: bytes) -> int:
        after: int = self._run(self._handle, state, text, len(text))
        if after < 0:
            raise self._failure(after)
        return after

    def row(self, state: int) -> list[int]:
        """The next state for each of the 256 bytes."""
        out = np.empty(256, np.uint32)
        done = self._kernel.lmprog_automaton_row(self._handle, state, out.ctypes.data)
        if done < 0:
            raise self._failure(done)
        return out.tolist()

    def forced(self, state: int, most: int) -> bytes:
        """The common prefix, at most `most` bytes, of all continuations; b"" in a final state."""
        out = np.empty(most, np.uint8)
        length = self._kernel.lmprog_automaton_forced(self._handle, state, out.ctypes.data, most)
        if length < 0:
            raise self._failure(length)
        return out[:length].tobytes()

    def doubts(self, state: int, forced: bytes) -> tuple[Doubt, ...]:
        """What may stand across the end of the forced bytes; the last one has what may follow."""
        core, texts = self._kernel, self._vocabulary.texts
        size = core.lmprog_automaton_doubts(self._handle, state, forced, len(forced), texts)
        if size < 0:
            raise self._failure(size)
        found = np.empty(size, np.uint8)
        core.lmprog_doubts_copy(found.ctypes.data)
        return tuple(_doubts(found.tobytes()))

    def follow(self, state: int, texts: Sequence[bytes], left: int) -> tuple[int, int]:
        """How many of the texts are taken while the state behind each, number i, costs less than
        `left` - i, and the state behind them.
        """
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        at = ctypes.c_uint32(state)
        taken = self._kernel.lmprog_automaton_follow(
            self._handle, ctypes.byref(at), b"".join(texts), ends.ctypes.data, len(texts), left
        )
        if taken < 0:
            raise self._failure(taken)
        return taken, at.value

    def collect(self, needed: Sequence[int], wanted: Sequence[int]) -> list[int]:
        """Discards states, except for the start, the `needed` ones, and as many of the `wanted`
        ones as leave half of the memory free (the first take precedence). Returns the new numbers
        of both, in order; DEAD for those discarded.
        """
        states = np.array([*needed, *wanted], np.uint32)
        moved = np.zeros(len(states), np.uint32)
        done = self._kernel.lmprog_automaton_collect(
            self._handle, states.ctypes.data, len(states), len(needed), moved.ctypes.data
        )
        if done < 0:
            raise self._failure(done)
        return moved.tolist()

    def num_positions(self, state: int) -> int:
        return int(self._kernel.lmprog_automaton_positions(self._handle, state))

    def is_final(self, state: int) -> bool:
        return bool(self._kernel.lmprog_automaton_final(self._handle, state))

    def stands_at(self, state: int, leaf_state: int) -> bool:
        """Whether one of the state's positions is there."""
        return bool(self._kernel.lmprog_automaton_stands_at(self._handle, state, leaf_state))

    def cost(self, state: int) -> int:
        """An upper bound on the tokens to acceptance."""
        return int(self._kernel.lmprog_automaton_cost(self._handle, state))

    def raw_mask(self, state: int, most: int = UNREACHABLE) -> RawMask:
        """The tokens after which at most `most` more suffice, and end-of-sequence in accepting
        states.
        """
        made, _ = self._made((state, most), 0, False, self._result, self._ids)
        assert made is not None, "only where work is bounded there is none"
        return made

    def mask_within(self, state: int, most: int, work: int) -> tuple[RawMask | None, int]:
        """The same, and the work that it took; None where it takes more than `work`."""
        return self._made((state, most), max(1, work), False, self._result, self._ids)

    def mask_apart(self, state: int, most: int) -> RawMask:
        """The same in a thread of its own: other calls are let in meanwhile, but for masks and
        `collect`.
        """
        made, _ = self._made((state, most), 0, True, _CResult(), np.zeros(NARROW, np.int32))
        assert made is not None, "only where work is bounded there is none"
        return made

    def _made(
        self, of: tuple[int, int], work: int, apart: bool, result: _CResult, ids: NDArray[np.int32]
    ) -> tuple[RawMask | None, int]:
        at, ids_at = ctypes.addressof(result), ids.ctypes.data
        done = self._mask(self._handle, *of, ids_at, NARROW, work, apart, at)
        if done == _LATER:
            return None, result.work
        if done < 0:
            raise self._failure(done)
        if result.like:
            return RawMask(None, 0, result.like), result.work
        count: int = result.count
        if count <= NARROW:
            row = self._vocabulary.narrow_row(ctypes.string_at(ids_at, 4 * count))
        else:
            row = self._vocabulary.wide_row(count, result.digest)
        return RawMask(row, result.worst), result.work
