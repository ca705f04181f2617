"""Finishes a net: its arrays, without the parts that cannot reach acceptance (lmprog_nets.h).

Every part gets a cost: an upper bound on the number of tokens needed to complete it. A literal text
is covered by the vocabulary's tokens (the fewest of up to 12 bytes, by dynamic programming);
everything else is counted byte by byte. Costs add up over sequences, and an alternation costs as
much as its cheapest branch. So along the cheapest path each covering token lowers the cost by one,
and a mask near the end of a token budget is never empty.

Bytes without a token of their own are removed from the language. Byte-level and byte-fallback
vocabularies have all 256; any other vocabulary still never reaches a dead end.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from array import array
from collections.abc import Iterable

import numpy as np

from lmprog.constraints.kernel import INT, LONG, POINTER, free_with, kernel, or_memory
from lmprog.constraints.lower import any_text
from lmprog.constraints.net import (
    ALL_BYTES,
    LONGEST_COVER,
    UNREACHABLE,
    Alphabet,
    JsonText,
    Leaf,
    Net,
    NetBuilder,
    NetPart,
    Node,
)
from lmprog.errors import UnsatisfiableConstraint

_STEP = 500_000
"""Units of work, nanoseconds roughly, between two checks."""
_AUTOMATON, _TEXT, _ALL_BUT, _ANY_CHARACTER, _IN_STRING, _JSON_TEXT = range(6)


class _CAutomata(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_char_p) for name in ("edges", "num_edges", "final", "cost")),
        ("num_states", LONG),
    ]


class _CPart(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_char_p) for name in ("kind", "num_args", "args")),
        *((name, ctypes.c_char_p) for name in ("leaf_kind", "leaf_size", "texts")),
        ("automata", _CAutomata),
        ("num_nodes", LONG),
        ("num_leaves", LONG),
        ("root", INT),
        ("is_recursive", INT),
    ]


class _CSizes(ctypes.Structure):
    _fields_ = [(name, LONG) for name in ("nodes", "items", "states", "edges", "root", "root_cost")]


class _Letters:
    """The C view of one alphabet."""

    def __init__(self, alphabet: Alphabet) -> None:
        self.spelled: bytes | None = None
        if not alphabet.single >= ALL_BYTES:
            self.spelled = bytes(byte in alphabet.single for byte in range(256))
        apart = alphabet.outside_strings
        self.cover = self._cover(alphabet.tokens)
        self.in_strings = self._cover(set(alphabet.tokens) - apart) if apart else self.cover

    def _cover(self, tokens: Iterable[bytes]) -> int:
        short = [token for token in tokens if len(token) <= LONGEST_COVER]
        lengths = array("i", map(len, short)).tobytes()
        core = kernel()
        made = or_memory(core.lmprog_cover_new(b"".join(short), lengths, len(short)))
        free_with(self, core.lmprog_cover_free, made)
        return made


_alphabets: weakref.WeakKeyDictionary[Alphabet, _Letters] = weakref.WeakKeyDictionary()


def _letters_of(alphabet: Alphabet) -> _Letters:
    found = _alphabets.get(alphabet)
    if found is None:
        found = _alphabets[alphabet] = _Letters(alphabet)
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
            kinds.append(_JSON_TEXT if isinstance(source, JsonText) else _TEXT)
            sizes.append(len(source))
            texts.append(source)
        elif isinstance(source, Leaf):
            inside = _IN_STRING if source.in_string else _AUTOMATON
            kinds.append(_ANY_CHARACTER if source.is_any_character else inside)
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


def finish(net: NetBuilder, root: Node, alphabet: Alphabet) -> Net:
    """Trims and flattens the net. Raises UnsatisfiableConstraint if it matches nothing."""
    assert not net.holes, "a hole was never filled"
    core = kernel()
    own = _part(net, root)
    others = [_known_part(one) for one in net.parts]
    parts = (POINTER * (1 + len(others)))(*map(ctypes.addressof, [own, *others]))
    letters, any_content = _letters_of(alphabet), _any_text()
    build = or_memory(
        core.lmprog_net_begin(
            *(parts, len(parts), ctypes.byref(any_content)),
            *(letters.cover, letters.in_strings, letters.spelled),
        )
    )
    try:
        sizes = _CSizes()
        while left := core.lmprog_net_step(build, _STEP, ctypes.byref(sizes)):
            if left < 0:
                raise MemoryError("no memory for the net of a constraint")
            net.check()
        if sizes.root_cost >= UNREACHABLE:
            raise UnsatisfiableConstraint("nothing at all would match this constraint")
        return _copied(core, build, sizes)
    finally:
        core.lmprog_net_free(build)


def _copied(core: ctypes.CDLL, build: int, sizes: _CSizes) -> Net:
    nodes, states = sizes.nodes, sizes.states
    longs = 8 * (nodes + states)
    ints = 4 * (3 * nodes + sizes.items + states + 1 + states + 3 * sizes.edges)
    block = np.empty(longs + ints + nodes + states, np.uint8)
    core.lmprog_net_copy(build, block.ctypes.data)
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
