"""Turns a builder's net into arrays, without the parts that cannot reach acceptance.

Every part gets a cost: an upper bound on the number of tokens needed to complete it. A literal text
is covered by the vocabulary's tokens (the fewest of up to 12 bytes, by dynamic programming);
everything else is counted byte by byte. Costs add up over sequences, and an alternation costs as
much as its cheapest branch. So along the cheapest path each covering token lowers the cost by one,
and a mask near the end of a token budget is never empty.

Bytes without a token of their own are removed from the language. Byte-level and byte-fallback
vocabularies have all 256; any other vocabulary still never reaches a dead end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmprog.constraints.leaves import UNREACHABLE, Leaf, text_leaf
from lmprog.constraints.net import ALT, EMPTY, LEAF, NO_LIMIT, REPEAT, SEQ, NetBuilder, Node
from lmprog.errors import UnsatisfiableConstraint

_LONGEST_COVER = 12
_NODES_PER_CHECK = 64
ALL_BYTES = frozenset(range(256))


@dataclass(frozen=True, slots=True, eq=False)
class Net:
    """A trimmed net as arrays, shared by the native automaton and the plain one.

    Node n is (kind[n], args[n, 0:3]): LEAF (state), SEQ and ALT (offset and length in `items`),
    REPEAT (child, low, high or -1). State q has the edges edge_start[q]..edge_start[q + 1]. Costs
    are in tokens.
    """

    kind: NDArray[np.uint8]
    args: NDArray[np.int32]  # [nodes, 3]
    items: NDArray[np.int32]
    node_cost: NDArray[np.int64]
    edge_start: NDArray[np.int32]
    edges: NDArray[np.int32]  # [edges, 3]: first byte, last byte, target state
    final: NDArray[np.uint8]
    state_cost: NDArray[np.int64]
    root: int


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The bytes that a vocabulary can spell, and all its tokens for covering literal texts."""

    single: frozenset[int]
    tokens: Collection[bytes]


def finish(net: NetBuilder, root: Node, alphabet: Alphabet) -> Net:
    """Trims and flattens the net. Raises UnsatisfiableConstraint if it matches nothing."""
    assert not net.holes, "a hole was never filled"
    leaves = [made for _, made in net.leaves]
    if not alphabet.single >= ALL_BYTES:
        leaves = [made.spelled(alphabet.single) for made in leaves]
    empty = text_leaf(b"")
    joined = _joined(leaves or [empty], [first for first, _ in net.leaves] or [0])
    state_cost = joined.cost.tolist()
    _cover_texts(net, state_cost, alphabet)
    node_cost, nullable = _node_costs(net, state_cost, joined.final.tolist())
    if node_cost[root] >= UNREACHABLE:
        raise UnsatisfiableConstraint("nothing at all would match this constraint")
    kinds, args, items = _flatten(net, node_cost, nullable)
    cost = np.array(state_cost, np.int64)
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
        state_cost=cost,
        root=root,
    )


def _joined(leaves: Sequence[Leaf], firsts: Sequence[int]) -> Leaf:
    """Concatenates all leaves, with targets as global state numbers."""
    edges = np.concatenate([made.edges for made in leaves])
    edges[:, 2] += np.repeat(np.array(firsts, np.int32), [len(made.edges) for made in leaves])
    return Leaf(
        edges,
        np.concatenate([made.num_edges for made in leaves]),
        np.concatenate([made.final for made in leaves]),
        np.concatenate([made.cost for made in leaves]),
    )


def _cover_texts(net: NetBuilder, cost: list[int], alphabet: Alphabet) -> None:
    """Lowers the costs along literal texts to the fewest tokens that spell the rest."""
    tokens = alphabet.tokens
    for value, first in net.texts():
        net.check()
        if cost[first] >= UNREACHABLE:
            continue
        end = len(value)
        for begin in range(end - 2, -1, -1):
            best = cost[first + begin]
            for stop in range(begin + 1, min(end, begin + _LONGEST_COVER) + 1):
                if cost[first + stop] + 1 < best and value[begin:stop] in tokens:
                    best = cost[first + stop] + 1
            cost[first + begin] = best


def _node_costs(
    net: NetBuilder, state_cost: list[int], final: list[int]
) -> tuple[list[int], list[bool]]:
    """Least fixed point over the nodes. Children precede parents except through holes, so it takes
    few passes.
    """
    cost = [UNREACHABLE] * len(net.kinds)
    nullable = [False] * len(net.kinds)
    changed = True
    while changed:
        changed = False
        for node, (kind, args) in enumerate(zip(net.kinds, net.args, strict=True)):
            if node % _NODES_PER_CHECK == 0:
                net.check()
            if kind == LEAF:
                now, empty = state_cost[args[0]], bool(final[args[0]])
            elif kind == SEQ:
                now, empty = sum(cost[item] for item in args), all(nullable[item] for item in args)
            elif kind == ALT:
                now = min((cost[item] for item in args), default=UNREACHABLE)
                empty = any(nullable[item] for item in args)
            else:
                now, empty = cost[args[0]] * args[1], args[1] == 0 or nullable[args[0]]
            now = min(now, UNREACHABLE)
            if now < cost[node] or empty != nullable[node]:
                cost[node], nullable[node] = now, empty
                changed = (
                    net.is_recursive
                )  # without holes, children precede parents: one pass is enough
    return cost, nullable


def _flatten(
    net: NetBuilder, cost: list[int], nullable: list[bool]
) -> tuple[list[int], list[tuple[int, int, int]], list[int]]:
    kinds, out, items = list(net.kinds), [], list[int]()
    for node, (kind, args) in enumerate(zip(net.kinds, net.args, strict=True)):
        if kind == LEAF:
            out.append((args[0], 0, 0))
        elif kind == REPEAT:
            child, low, high = args
            if cost[child] >= UNREACHABLE:
                kinds[node] = SEQ if low == 0 else ALT
                out.append((0, 0, 0))
            else:  # a repetition of something that may be empty can always be shortened
                out.append((child, 0 if nullable[child] else low, high))
        else:
            kept = [item for item in args if kind == SEQ or cost[item] < UNREACHABLE]
            out.append((len(items), len(kept), 0))
            items += kept
    return kinds, out, items


__all__ = [
    "ALT",
    "EMPTY",
    "LEAF",
    "NO_LIMIT",
    "REPEAT",
    "SEQ",
    "UNREACHABLE",
    "Alphabet",
    "Net",
    "finish",
]
