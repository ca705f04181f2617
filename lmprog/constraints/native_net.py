"""Calls the native kernel that finishes nets; unused if there is no compiler.

Knows the C interface of lmprog_nets.h; the meaning of costs and of trimming is in `costs.py`.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from array import array
from typing import Any

import numpy as np

from lmprog import native
from lmprog.constraints.exclusion import any_text
from lmprog.constraints.leaves import Leaf
from lmprog.constraints.net import NetBuilder, NetPart, Node
from lmprog.constraints.net_arrays import ALL_BYTES, LONGEST_COVER, Alphabet, Net

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_STEP = 500_000
"""Units of work, nanoseconds roughly, between two checks."""
_AUTOMATON, _TEXT, _ALL_BUT, _ANY_CHARACTER = range(4)


class _CAutomata(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_char_p) for name in ("edges", "num_edges", "final", "cost")),
        ("num_states", _LONG),
    ]


class _CPart(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_char_p) for name in ("kind", "num_args", "args")),
        *((name, ctypes.c_char_p) for name in ("leaf_kind", "leaf_size", "texts")),
        ("automata", _CAutomata),
        ("num_nodes", _LONG),
        ("num_leaves", _LONG),
        ("root", _INT),
        ("is_recursive", _INT),
    ]


class _CSizes(ctypes.Structure):
    _fields_ = [
        (name, _LONG) for name in ("nodes", "items", "states", "edges", "root", "root_cost")
    ]


@functools.cache
def _kernel() -> ctypes.CDLL | None:
    found = native.library("masks")
    if found is None:
        return None
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "lmprog_cover_new": (_POINTER, [ctypes.c_char_p, ctypes.c_char_p, _LONG]),
        "lmprog_cover_free": (None, [_POINTER]),
        "lmprog_net_begin": (_POINTER, [_POINTER, _INT, _POINTER, _POINTER, ctypes.c_char_p]),
        "lmprog_net_step": (_LONG, [_POINTER, _LONG, _POINTER]),
        "lmprog_net_copy": (None, [_POINTER, _POINTER]),
        "lmprog_net_free": (None, [_POINTER]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


class _NativeAlphabet:
    """The C view of one alphabet."""

    def __init__(self, kernel: ctypes.CDLL, alphabet: Alphabet) -> None:
        self.spelled: bytes | None = None
        if not alphabet.single >= ALL_BYTES:
            self.spelled = bytes(byte in alphabet.single for byte in range(256))
        short = [token for token in alphabet.tokens if len(token) <= LONGEST_COVER]
        lengths = array("i", map(len, short)).tobytes()
        self.cover: int | None = kernel.lmprog_cover_new(b"".join(short), lengths, len(short))
        if self.cover is None:
            raise MemoryError("no memory for the vocabulary's tokens")
        weakref.finalize(self, kernel.lmprog_cover_free, self.cover)


_alphabets: weakref.WeakKeyDictionary[Alphabet, _NativeAlphabet] = weakref.WeakKeyDictionary()


def _native_alphabet(kernel: ctypes.CDLL, alphabet: Alphabet) -> _NativeAlphabet:
    found = _alphabets.get(alphabet)
    if found is None:
        found = _alphabets[alphabet] = _NativeAlphabet(kernel, alphabet)
    return found


def _automata(leaves: list[Leaf]) -> _CAutomata:
    return _CAutomata(
        b"".join([made.edges.data for made in leaves]),
        b"".join([made.num_edges.data for made in leaves]),
        b"".join([made.final.data for made in leaves]),
        b"".join([made.cost.data for made in leaves]),
        sum([len(made.final) for made in leaves]),
    )


@functools.cache
def _any_text() -> _CAutomata:
    return _automata([any_text()])


def _part(net: NetBuilder, root: Node) -> _CPart:
    kinds, sizes = bytearray(), array("i")
    texts: list[bytes] = []
    automata: list[Leaf] = []
    for source in net.leaves:
        if isinstance(source, bytes):
            kinds.append(_TEXT)
            sizes.append(len(source))
            texts.append(source)
        elif isinstance(source, Leaf):
            kinds.append(_ANY_CHARACTER if source.is_any_character else _AUTOMATON)
            sizes.append(len(source.final))
            automata.append(source)
        else:
            kinds.append(_ALL_BUT)
            sizes.append(len(source.names))
            texts += [name + b"\0" for name in source.names]
    return _CPart(
        bytes(net.kinds),
        net.num_args.tobytes(),
        net.args.tobytes(),
        bytes(kinds),
        sizes.tobytes(),
        b"".join(texts),
        _automata(automata),
        len(net.kinds),
        len(kinds),
        root,
        net.is_recursive,
    )


_known_parts: weakref.WeakKeyDictionary[NetPart, _CPart] = weakref.WeakKeyDictionary()


def _known_part(one: NetPart) -> _CPart:
    found = _known_parts.get(one)
    if found is None:
        found = _known_parts[one] = _part(one.net, one.root)
    return found


def native_net(net: NetBuilder, root: Node, alphabet: Alphabet) -> Net | None:
    """Trims and flattens the net; None if the kernel cannot be built."""
    kernel = _kernel()
    if kernel is None:
        return None
    own = _part(net, root)
    others = [_known_part(one) for one in net.parts]
    parts = (_POINTER * (1 + len(others)))(*map(ctypes.addressof, [own, *others]))
    letters = _native_alphabet(kernel, alphabet)
    any_text = _any_text()
    build = kernel.lmprog_net_begin(
        parts, len(parts), ctypes.byref(any_text), letters.cover, letters.spelled
    )
    if not build:
        raise MemoryError("no memory for the net of a constraint")
    try:
        sizes = _CSizes()
        while left := kernel.lmprog_net_step(build, _STEP, ctypes.byref(sizes)):
            if left < 0:
                raise MemoryError("no memory for the net of a constraint")
            net.check()
        return _copied(kernel, build, sizes)
    finally:
        kernel.lmprog_net_free(build)


def _copied(kernel: ctypes.CDLL, build: int, sizes: _CSizes) -> Net:
    nodes, states = sizes.nodes, sizes.states
    longs = 8 * (nodes + states)
    ints = 4 * (3 * nodes + sizes.items + states + 1 + states + 3 * sizes.edges)
    block = np.empty(longs + ints + nodes + states, np.uint8)
    kernel.lmprog_net_copy(build, block.ctypes.data)
    costs = block[:longs].view(np.int64)
    numbers = block[longs : longs + ints].view(np.int32)
    begin_starts = 3 * nodes + sizes.items
    begin_strings = begin_starts + states + 1
    begin_edges = begin_strings + states
    return Net(
        kind=block[longs + ints : longs + ints + nodes],
        args=numbers[: 3 * nodes].reshape(-1, 3),
        items=numbers[3 * nodes : begin_starts],
        node_cost=costs[:nodes],
        edge_start=numbers[begin_starts:begin_strings],
        string_state=numbers[begin_strings:begin_edges],
        edges=numbers[begin_edges:].reshape(-1, 3),
        final=block[longs + ints + nodes :],
        state_cost=costs[nodes:],
        root=sizes.root,
    )
