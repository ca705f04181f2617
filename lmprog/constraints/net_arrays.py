"""A trimmed net as arrays, and what its costs depend on. Knows no builder and no kernel."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALL_BYTES = frozenset(range(256))
LONGEST_COVER = 12
"""The longest tokens, in bytes, that count where a text is covered."""


@dataclass(frozen=True, slots=True, eq=False)
class Net:
    """A trimmed net as arrays, shared by the native automaton and the plain one.

    Node n is (kind[n], args[n, 0:3]): LEAF (state), SEQ, ALT and TABLE (offset and length in
    `items`), REPEAT (child, low, high or -1), ONCE (offset in `items`, number of members, how many
    of them are required). Of a ONCE, `items` has low, high or -1, the member that may come again or
    -1, the separator, and the members: the required ones, then the others from the cheapest on.
    State q has the edges edge_start[q]..edge_start[q + 1]. Costs are in tokens.

    From some states of leaves every content of a JSON string goes on. Their `string_state` is a
    state of the same leaf: a final one in which any content may follow, or one that is not final,
    where any character of it begins. It is -1 for all other states.
    """

    kind: NDArray[np.uint8]
    args: NDArray[np.int32]  # [nodes, 3]
    items: NDArray[np.int32]
    node_cost: NDArray[np.int64]
    edge_start: NDArray[np.int32]
    edges: NDArray[np.int32]  # [edges, 3]: first byte, last byte, target state
    final: NDArray[np.uint8]
    state_cost: NDArray[np.int64]
    string_state: NDArray[np.int32]
    root: int


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Alphabet:
    """The bytes that a vocabulary can spell, and all its tokens for covering literal texts."""

    single: frozenset[int]
    tokens: Collection[bytes]


EVERY_BYTE = Alphabet(ALL_BYTES, frozenset())
"""Where only bytes matter: every text costs its length."""
