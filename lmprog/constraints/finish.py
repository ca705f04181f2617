"""Finishes a net: its arrays, without the parts that cannot reach acceptance. By the kernel where
there is one (the C interface of lmprog_nets.h), else by the plain twin of `kernels/cpu/nets.cpp`.

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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmprog import native
from lmprog.constraints.constraint import Check
from lmprog.constraints.exclusion import all_but_leaf, any_text
from lmprog.constraints.leaves import UNREACHABLE, AllBut, Leaf, LeafSource, leaf, text_leaf
from lmprog.constraints.net import (
    ALL_BYTES,
    ALT,
    LEAF,
    LONGEST_COVER,
    NO_NODE,
    ONCE,
    PART,
    REPEAT,
    SEQ,
    TABLE,
    Alphabet,
    Net,
    NetBuilder,
    NetPart,
    Node,
)
from lmprog.constraints.text_table import TextTable, finished_table, moved_table
from lmprog.errors import UnsatisfiableConstraint


def finish(net: NetBuilder, root: Node, alphabet: Alphabet) -> Net:
    """Trims and flattens the net. Raises UnsatisfiableConstraint if it matches nothing."""
    assert not net.holes, "a hole was never filled"
    made = native_net(net, root, alphabet) or plain_net(net, root, alphabet)
    if made.node_cost[made.root] >= UNREACHABLE:
        raise UnsatisfiableConstraint("nothing at all would match this constraint")
    return made


# --- by the kernel

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


# --- the plain twin

_NODES_PER_CHECK = 64


@dataclass(frozen=True, slots=True)
class _Joined:
    """The nodes and leaves of a net and of its parts, numbered one after the other."""

    nodes: list[tuple[int, list[int]]]
    """Kind and arguments. No argument is a node of kind PART."""
    leaves: list[LeafSource]
    order: list[int]
    """The nodes of parts precede those of the net that has them."""
    root: int
    is_recursive: bool


def _with_parts(net: NetBuilder, root: Node) -> _Joined:
    whole = [NetPart(net, root), *net.parts]
    first_node = [0, *accumulate(len(one.net.kinds) for one in whole)]
    first_leaf = [0, *accumulate(len(one.net.leaves) for one in whole)]
    nodes: list[tuple[int, list[int]]] = []
    for number, one in enumerate(whole):
        nodes += _moved(one.net, whole, first_node, number, first_leaf[number])
    num_own = first_node[1]
    return _Joined(
        nodes,
        [source for one in whole for source in one.net.leaves],
        [*range(num_own, len(nodes)), *range(num_own)],
        root if nodes[root][0] != PART else nodes[root][1][0],
        any(one.net.is_recursive for one in whole),
    )


def _moved(
    net: NetBuilder,
    whole: Sequence[NetPart],
    first_node: Sequence[int],
    number: int,
    first_leaf: int,
) -> list[tuple[int, list[int]]]:
    """The nodes of one part, with the numbers that nodes and leaves have in the whole."""
    nodes = net.nodes()

    def moved(node: int) -> int:
        kind, args = nodes[node]
        if kind == PART:
            return first_node[args[0]] + whole[args[0]].root
        return first_node[number] + node

    out: list[tuple[int, list[int]]] = []
    for node, (kind, args) in enumerate(nodes):
        if kind == LEAF:
            args = [first_leaf + args[0]]
        elif kind == REPEAT:
            args = [moved(args[0]), *args[1:]]
        elif kind == ONCE:
            again = [one if one == NO_NODE else moved(one) for one in args[3:4]]
            args = [*args[:3], *again, *map(moved, args[4:])]
        elif kind == PART:
            args = [moved(node)]
        elif kind == TABLE:
            args = moved_table(args, moved)
        else:
            args = list(map(moved, args))
        out.append((kind, args))
    return out


def plain_net(builder: NetBuilder, root: Node, alphabet: Alphabet) -> Net:
    """Trims and flattens the net. The cost of its root says whether it matches anything."""
    net = _with_parts(builder, root)
    leaves = [_made(source) for source in net.leaves]
    if not alphabet.single >= ALL_BYTES:
        leaves = [made.spelled(alphabet.single) for made in leaves]
    first = np.cumsum([0, *(made.num_states for made in leaves)]).tolist()
    joined = _joined(leaves, first[:-1])
    state_cost = joined.cost.tolist()
    _cover_texts(net.leaves, first, state_cost, alphabet, builder.check)
    node_cost, nullable = _node_costs(
        net, [state_cost[q] for q in first[:-1]], joined.final[first[:-1]].tolist(), builder.check
    )
    kinds, args, items = _flatten(net, first, node_cost, nullable)
    edges, num_edges = joined.edges, joined.num_edges
    is_live = joined.cost[edges[:, 2]] < UNREACHABLE
    if not is_live.all():
        source = np.repeat(np.arange(len(num_edges)), num_edges)
        edges = np.ascontiguousarray(edges[is_live])
        num_edges = np.bincount(source[is_live], minlength=len(num_edges)).astype(np.int32)
    starts = np.zeros(len(num_edges) + 1, np.int32)
    np.cumsum(num_edges, out=starts[1:])
    return Net(
        kind=np.array(kinds, np.uint8),
        args=np.array(args, np.int32).reshape(-1, 3),
        items=np.array(items, np.int32),
        node_cost=np.array(node_cost, np.int64),
        edge_start=starts,
        edges=edges,
        final=joined.final,
        state_cost=np.array(state_cost, np.int64),
        string_state=_string_states(net.leaves, first, alphabet),
        root=net.root,
    )


def _made(source: LeafSource) -> Leaf:
    if isinstance(source, bytes):
        return text_leaf(source)
    return all_but_leaf(source) if isinstance(source, AllBut) else source


def _string_states(
    leaves: Sequence[LeafSource], firsts: Sequence[int], alphabet: Alphabet
) -> NDArray[np.int32]:
    out = np.full(firsts[-1], -1, np.int32)
    if not alphabet.single >= ALL_BYTES:
        return out
    for number, source in enumerate(leaves):
        first = firsts[number]
        if isinstance(source, AllBut):
            behind = firsts[number + 1] - any_text().num_states
            out[first : behind + 1] = behind
        elif isinstance(source, Leaf) and source.is_any_character:
            out[first] = first
    return out


def _joined(leaves: Sequence[Leaf], firsts: Sequence[int]) -> Leaf:
    """Concatenates all leaves, with targets as global state numbers."""
    if not leaves:
        return leaf(())
    edges = np.concatenate([made.edges for made in leaves])
    edges[:, 2] += np.repeat(np.array(firsts, np.int32), [len(made.edges) for made in leaves])
    return Leaf(
        edges,
        np.concatenate([made.num_edges for made in leaves]),
        np.concatenate([made.final for made in leaves]),
        np.concatenate([made.cost for made in leaves]),
    )


def _cover_texts(
    leaves: Sequence[LeafSource],
    firsts: Sequence[int],
    cost: list[int],
    alphabet: Alphabet,
    check: Check,
) -> None:
    """Lowers the costs along literal texts to the fewest tokens that spell the rest."""
    tokens = alphabet.tokens
    for value, first in zip(leaves, firsts, strict=False):
        check()
        if not isinstance(value, bytes) or cost[first] >= UNREACHABLE:
            continue
        end = len(value)
        for begin in range(end - 2, -1, -1):
            best = cost[first + begin]
            for stop in range(begin + 1, min(end, begin + LONGEST_COVER) + 1):
                if cost[first + stop] + 1 < best and value[begin:stop] in tokens:
                    best = cost[first + stop] + 1
            cost[first + begin] = best


def _node_costs(
    net: _Joined, leaf_cost: Sequence[int], leaf_final: Sequence[int], check: Check
) -> tuple[list[int], list[bool]]:
    """Least fixed point over the nodes. Children precede parents except through holes, so it takes
    few passes.
    """
    cost = [UNREACHABLE] * len(net.nodes)
    nullable = [False] * len(net.nodes)
    changed = True
    while changed:
        changed = False
        for node in net.order:
            kind, args = net.nodes[node]
            if node % _NODES_PER_CHECK == 0:
                check()
            if kind == LEAF:
                now, empty = leaf_cost[args[0]], bool(leaf_final[args[0]])
            elif kind == SEQ:
                now, empty = sum(cost[item] for item in args), all(nullable[item] for item in args)
            elif kind == ALT:
                now = min((cost[item] for item in args), default=UNREACHABLE)
                empty = any(nullable[item] for item in args)
            elif kind == REPEAT:
                now, empty = cost[args[0]] * args[1], args[1] == 0 or nullable[args[0]]
            elif kind == ONCE:
                now, empty = _cost_of_members(args, cost), False
            elif kind == TABLE:
                made, now = finished_table(args, cost)
                empty = now < UNREACHABLE and _is_nullable(TextTable(made, 0), nullable)
            else:
                now, empty = cost[args[0]], nullable[args[0]]
            now = min(now, UNREACHABLE)
            if now < cost[node] or empty != nullable[node]:
                cost[node], nullable[node] = now, empty
                changed = (
                    net.is_recursive
                )  # without holes, children precede parents: one pass is enough
    return cost, nullable


def _cost_of_members(args: Sequence[int], cost: Sequence[int]) -> int:
    """The required ones, and as many of the cheapest others as are needed."""
    low, _, num_required, again, separator = args[:5]
    others = sorted(cost[one] for one in [*args[5 + num_required :], again] if one != NO_NODE)
    needed = [*(cost[one] for one in args[5 : 5 + num_required]), *others[: low - num_required]]
    between = cost[separator] * (low - 1)
    return sum(needed) + between if len(needed) == low else UNREACHABLE


def _members(args: Sequence[int], cost: Sequence[int]) -> list[int]:
    """Fewest and most of them, the one that may come again, the separator, and the members: the
    required ones, then the others from the cheapest on.
    """
    low, high, num_required, again, separator, *members = args
    others = [one for one in members[num_required:] if cost[one] < UNREACHABLE]
    if again != NO_NODE and cost[again] >= UNREACHABLE:
        again = NO_NODE
    if cost[separator] >= UNREACHABLE:
        high = 1
    others.sort(key=cost.__getitem__)
    return [low, high, again, separator, *members[:num_required], *others]


def _is_nullable(table: TextTable, nullable: Sequence[bool]) -> bool:
    ends = table.is_final(0) or any(to < 0 and nullable[node] for to, node in table.edges(0))
    return ends and table.low == 0


def _flatten(
    net: _Joined, firsts: Sequence[int], cost: list[int], nullable: list[bool]
) -> tuple[list[int], list[tuple[int, int, int]], list[int]]:
    kinds, out, items = [kind for kind, _ in net.nodes], [], list[int]()
    for node, (kind, args) in enumerate(net.nodes):
        if kind == LEAF:
            out.append((firsts[args[0]], 0, 0))
        elif kind == PART:  # nothing refers to it
            kinds[node] = ALT
            out.append((0, 0, 0))
        elif kind == TABLE:
            table, _ = finished_table(args, cost)
            out.append((len(items), len(table), 0))
            items += table
        elif kind == REPEAT:
            child, low, high = args
            if cost[child] >= UNREACHABLE:
                kinds[node] = SEQ if low == 0 else ALT
                out.append((0, 0, 0))
            else:  # a repetition of something that may be empty can always be shortened
                out.append((child, 0 if nullable[child] else low, high))
        elif kind == ONCE:
            members = _members(args, cost)
            out.append((len(items), len(members) - 4, args[2]))
            items += members
        else:
            kept = [item for item in args if kind == SEQ or cost[item] < UNREACHABLE]
            out.append((len(items), len(kept), 0))
            items += kept
    return kinds, out, items
