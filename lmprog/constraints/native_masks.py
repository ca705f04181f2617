"""The only module that calls the native mask kernel; unused if there is no compiler.

Owns the C structures and keeps every array alive that they point to. Knows the C interface of
lmprog_masks.h; does not know the meaning of a net.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from lmprog import native
from lmprog.constraints.automaton import MemoryFull
from lmprog.constraints.constraint import NARROW, CompileLimits, MaskRow, too_large
from lmprog.constraints.exclusion import any_text
from lmprog.constraints.leaves import UNREACHABLE, Leaf
from lmprog.constraints.lower import any_json_character
from lmprog.constraints.net import Net
from lmprog.constraints.vocabulary import NUM_GROUPS, Vocabulary, group_bytes
from lmprog.constraints.walk import RawMask

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_FULL = -2
"""The memory holds as many states as it may (LMPROG_MASKS_FULL)."""


class _CNet(ctypes.Structure):
    _fields_ = [
        *(
            (name, _POINTER)
            for name in ("kind", "args", "items", "node_cost", "edge_start", "edges")
        ),
        *((name, _POINTER) for name in ("final_state", "state_cost", "string_state")),
        ("root", _INT),
        ("max_states", _INT),
        ("max_positions", _LONG),
        ("max_row_bytes", _LONG),
    ]


class _CBucket(ctypes.Structure):
    _fields_ = [
        ("nodes", _POINTER),
        ("num_nodes", _LONG),
        *((name, _POINTER) for name in ("order", "roots", "by_length", "length_start", "bits")),
        ("num_tokens", _LONG),
        ("longest", _INT),
        ("lead", ctypes.c_uint8),
        ("groups", ctypes.c_uint8),
    ]


class _CVocabulary(ctypes.Structure):
    _fields_ = [
        ("buckets", _POINTER),
        *((name, _INT) for name in ("num_buckets", "deepest", "num_words", "num_eos")),
        ("eos_ids", _POINTER),
        ("group_start", _INT * NUM_GROUPS),
        ("edge_start", _POINTER),
        ("edges", _POINTER),
        ("strings", _POINTER * 2),
    ]


class _CLeaf(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("edges", "edge_start", "final", "cost")),
        ("num_states", _LONG),
    ]


class _CResult(ctypes.Structure):
    _fields_ = [(name, _LONG) for name in ("count", "worst", "like", "digest")]


@functools.cache
def _kernel() -> ctypes.CDLL | None:
    found = native.library("masks")
    if found is None:
        return None
    state = ctypes.c_uint32
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "new": (_POINTER, [_POINTER, _POINTER]),
        "free": (None, [_POINTER]),
        "start": (_LONG, [_POINTER]),
        "run": (_LONG, [_POINTER, state, ctypes.c_char_p, _LONG]),
        "row": (_LONG, [_POINTER, state, _POINTER]),
        "forced": (_LONG, [_POINTER, state, _POINTER, _LONG]),
        "cost": (_LONG, [_POINTER, state]),
        "final": (_INT, [_POINTER, state]),
        "stands_at": (_INT, [_POINTER, state, _INT]),
        "states": (_LONG, [_POINTER]),
        "bytes": (_LONG, [_POINTER]),
        "collect": (_LONG, [_POINTER, _POINTER, _LONG, _LONG, _POINTER]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(found, f"lmprog_automaton_{name}")
        function.restype, function.argtypes = result, arguments
    found.lmprog_mask.restype = _LONG
    found.lmprog_mask.argtypes = [_POINTER, state, _LONG, _POINTER, _LONG, _POINTER]
    found.lmprog_string_tokens_new.restype = _POINTER
    found.lmprog_string_tokens_new.argtypes = [_POINTER, _POINTER]
    found.lmprog_string_tokens_free.restype = None
    found.lmprog_string_tokens_free.argtypes = [_POINTER]
    found.lmprog_mask_bits.restype, found.lmprog_mask_bits.argtypes = None, [_POINTER]
    found.lmprog_mask_is.restype, found.lmprog_mask_is.argtypes = _INT, [_POINTER]
    return found


class _NativeVocabulary:
    """The C view of one vocabulary; owns the arrays that it points to."""

    def __init__(self, kernel: ctypes.CDLL, vocabulary: Vocabulary) -> None:
        buckets = vocabulary.index.buckets
        eos = np.array(vocabulary.eos_ids, np.int32)
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
        self._alive = (buckets, eos, roots, views, group)
        self._view = _CVocabulary(
            ctypes.addressof(views),
            len(buckets),
            max((bucket.trie.deepest for bucket in buckets), default=0),
            vocabulary.num_words,
            len(eos),
            eos.ctypes.data,
            (_INT * len(group.start))(*group.start),
            group.edge_start.ctypes.data,
            group.edges.ctypes.data,
        )
        self.pointer = ctypes.addressof(self._view)
        self._kernel = kernel
        self._num_words = vocabulary.num_words
        self._rows: weakref.WeakValueDictionary[bytes | int, MaskRow] = (
            weakref.WeakValueDictionary()
        )
        """The masks that are held by any constraint, by their ids or their digest: those of
        different states, and of different constraints, are often equal."""
        self._view.strings = (_POINTER * 2)(
            *(self._string_tokens(kernel, one) for one in (any_text(), any_json_character()))
        )

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

    def _string_tokens(self, kernel: ctypes.CDLL, any_content: Leaf) -> int:
        starts = np.concatenate([[0], np.cumsum(any_content.num_edges)]).astype(np.int32)
        arrays = any_content.edges, starts, any_content.final, any_content.cost
        view = _CLeaf(*(one.ctypes.data for one in arrays), any_content.num_states)
        made: int | None = kernel.lmprog_string_tokens_new(self.pointer, ctypes.byref(view))
        if made is None:
            raise MemoryError("no memory for the vocabulary's tokens")
        weakref.finalize(self, kernel.lmprog_string_tokens_free, made)
        return made


_vocabularies: weakref.WeakKeyDictionary[Vocabulary, _NativeVocabulary] = (
    weakref.WeakKeyDictionary()
)


def _native_vocabulary(kernel: ctypes.CDLL, vocabulary: Vocabulary) -> _NativeVocabulary:
    found = _vocabularies.get(vocabulary)
    if found is None:
        found = _vocabularies[vocabulary] = _NativeVocabulary(kernel, vocabulary)
    return found


class NativeMaskEngine:
    """One net's automaton in native memory."""

    def __init__(
        self, kernel: ctypes.CDLL, net: Net, vocabulary: Vocabulary, limits: CompileLimits
    ) -> None:
        self._kernel = kernel
        self._run, self._mask = kernel.lmprog_automaton_run, kernel.lmprog_mask
        self._net = net
        self._vocabulary = _native_vocabulary(kernel, vocabulary)
        self._limits = limits
        view = _CNet(
            *(
                array.ctypes.data
                for array in (
                    net.kind,
                    net.args,
                    net.items,
                    net.node_cost,
                    net.edge_start,
                    net.edges,
                )
            ),
            net.final.ctypes.data,
            net.state_cost.ctypes.data,
            net.string_state.ctypes.data,
            net.root,
            limits.max_states,
            limits.max_positions,
            limits.max_row_bytes,
        )
        self._handle: int = kernel.lmprog_automaton_new(
            ctypes.byref(view), self._vocabulary.pointer
        )
        if not self._handle:
            raise too_large(limits)
        weakref.finalize(self, kernel.lmprog_automaton_free, self._handle)
        self._result = _CResult()
        self._result_at = ctypes.addressof(self._result)
        self._ids = np.zeros(NARROW, np.int32)
        self._ids_at = self._ids.ctypes.data
        self.start: int = kernel.lmprog_automaton_start(self._handle)

    def _failure(self, code: int) -> Exception:
        if code == _FULL:
            return MemoryFull()
        return too_large(self._limits)

    @property
    def num_states(self) -> int:
        return int(self._kernel.lmprog_automaton_states(self._handle))

    @property
    def num_bytes(self) -> int:
        return int(self._kernel.lmprog_automaton_bytes(self._handle)) + sum(
            array.nbytes for array in (self._net.args, self._net.items, self._net.edges)
        )

    def run(self, state: int, text: bytes) -> int:
        after: int = self._run(self._handle, state, text, len(text))
        if after < 0:
            raise self._failure(after)
        return after

    def row(self, state: int) -> list[int]:
        out = np.empty(256, np.uint32)
        done = self._kernel.lmprog_automaton_row(self._handle, state, out.ctypes.data)
        if done < 0:
            raise self._failure(done)
        return out.tolist()

    def forced(self, state: int, most: int) -> bytes:
        out = np.empty(most, np.uint8)
        length = self._kernel.lmprog_automaton_forced(self._handle, state, out.ctypes.data, most)
        if length < 0:
            raise self._failure(length)
        return out[:length].tobytes()

    def collect(self, needed: Sequence[int], wanted: Sequence[int]) -> list[int]:
        states = np.array([*needed, *wanted], np.uint32)
        moved = np.zeros(len(states), np.uint32)
        done = self._kernel.lmprog_automaton_collect(
            self._handle, states.ctypes.data, len(states), len(needed), moved.ctypes.data
        )
        if done < 0:
            raise self._failure(done)
        return moved.tolist()

    def is_final(self, state: int) -> bool:
        return bool(self._kernel.lmprog_automaton_final(self._handle, state))

    def stands_at(self, state: int, leaf_state: int) -> bool:
        return bool(self._kernel.lmprog_automaton_stands_at(self._handle, state, leaf_state))

    def cost(self, state: int) -> int:
        return int(self._kernel.lmprog_automaton_cost(self._handle, state))

    def raw_mask(self, state: int, most: int = UNREACHABLE) -> RawMask:
        done = self._mask(self._handle, state, most, self._ids_at, NARROW, self._result_at)
        if done < 0:
            raise self._failure(done)
        result = self._result
        if result.like:
            return RawMask(None, 0, result.like)
        count: int = result.count
        if count <= NARROW:
            row = self._vocabulary.narrow_row(ctypes.string_at(self._ids_at, 4 * count))
        else:
            row = self._vocabulary.wide_row(count, result.digest)
        return RawMask(row, result.worst)


def native_engine(
    net: Net, vocabulary: Vocabulary, limits: CompileLimits
) -> NativeMaskEngine | None:
    """None if the kernel cannot be built."""
    kernel = _kernel()
    return None if kernel is None else NativeMaskEngine(kernel, net, vocabulary, limits)
