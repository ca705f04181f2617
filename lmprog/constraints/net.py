"""The compact form of a regular language, or of a grammar without left recursion, over bytes.

A net has *leaves*, small deterministic byte automata (a text, one character of a class, a number),
and *nodes* that combine them: sequence, alternation, counted repetition, members of which each
comes at most once, and tables, which are automata over classes of characters (`UnfinishedTable`).
Nodes may refer to themselves through holes, so recursive schemas are nets too. A `NetBuilder`
shares equal parts; `finish` turns it into arrays.

Nothing is expanded: `a{1,1000000}` is one node. Knows no syntax and no JSON. A trimmed net as
arrays knows no builder and no kernel.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NewType, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lmprog.constraints.constraint import Check, CompileLimits, never_stop
from lmprog.errors import GrammarError, UnsupportedSchema

UNREACHABLE = 1 << 40
"""The cost of what can never end."""

_STATES_OF_A_BYTE = 8
"""At most, of a character that may be written with escapes."""


Edge: TypeAlias = tuple[int, int, int]
"""First byte, last byte, target state."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """State 0 is the start. State q has `num_edges[q]` edges; those of all states stand in `edges`
    one after the other."""

    edges: NDArray[np.int32]  # [edges, 3]
    num_edges: NDArray[np.int32]  # [states]
    final: NDArray[np.uint8]  # [states]
    cost: NDArray[np.int64]  # [states] fewest bytes to acceptance
    is_any_character: bool = False
    """Whether this is one character of a JSON string, whichever it is and however it is written."""
    in_string: bool = False
    """Whether this is content of a string. No token that means something else than its text stands
    there."""

    @property
    def num_states(self) -> int:
        return len(self.final)

    def states(self) -> Iterator[tuple[bool, list[Edge]]]:
        """Whether each is final, and its edges."""
        edges = self.edges.tolist()
        at = 0
        for final, count in zip(self.final.tolist(), self.num_edges.tolist(), strict=True):
            yield bool(final), [(low, high, to) for low, high, to in edges[at : at + count]]
            at += count


@dataclass(frozen=True, slots=True)
class AllBut:
    """The contents of all JSON strings that are none of `names`, in UTF-8 but for U+0000, which is
    C0 80."""

    names: tuple[bytes, ...]
    is_plain: bool = True
    """Whether all consist of printable ASCII characters without quotes and backslashes."""

    @property
    def num_states(self) -> int:
        """At most; a few that do not depend on the names are not counted."""
        return sum(map(len, self.names)) * (1 if self.is_plain else _STATES_OF_A_BYTE) + 1


class JsonText(bytes):
    """A part of a JSON text, in which strings stand between quotes."""


LeafSource: TypeAlias = bytes | AllBut | Leaf
"""What a leaf is made of: exactly these bytes, for instance."""


@functools.lru_cache(maxsize=4096)
def text_leaf(value: bytes) -> Leaf:
    """Exactly these bytes."""
    size = len(value)
    edges = np.empty((size, 3), np.int32)
    edges[:, 0] = edges[:, 1] = np.frombuffer(value, np.uint8)
    edges[:, 2] = np.arange(1, size + 1)
    counts, final = np.ones(size + 1, np.int32), np.zeros(size + 1, np.uint8)
    counts[size], final[size] = 0, 1
    return Leaf(edges, counts, final, np.arange(size, -1, -1))


# --- nodes

ALL_BYTES = frozenset(range(256))
LONGEST_COVER = 12
"""The longest tokens, in bytes, that count where a text is covered."""


@dataclass(frozen=True, slots=True, eq=False)
class Net:
    """A trimmed net as arrays, as the native automaton reads it.

    Node n is (kind[n], args[n, 0:3]): LEAF (state), SEQ, ALT and TABLE (offset and length in
    `items`), REPEAT (child, low, high or -1), ONCE (offset in `items`, number of members, how many
    of them are required). Of a ONCE, `items` has low, high or -1, the member that may come again or
    -1, the separator, and the members: the required ones, then the others from the cheapest on.
    State q has the edges edge_start[q]..edge_start[q + 1]. Costs are in tokens.

    From some states of leaves every content of a JSON string goes on. Their `string_state` is a
    state of the same leaf: a final one in which any content may follow, or one that is not final,
    where any character of it begins. It is -2 for other states inside of strings, else -1.
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
    """The bytes that a vocabulary can spell, and all its tokens for covering literal texts, but for
    those that do not cover strings."""

    single: frozenset[int]
    tokens: Collection[bytes]
    outside_strings: frozenset[bytes] = frozenset()


EVERY_BYTE = Alphabet(ALL_BYTES, frozenset())
"""Where only bytes matter: every text costs its length."""


Node = NewType("Node", int)

LEAF, SEQ, ALT, REPEAT, ONCE, PART, TABLE = range(7)
"""Finished nets have no PART: the root of another part stands in its place."""
NO_LIMIT = NO_NODE = -1
EMPTY, FAIL = Node(0), Node(1)
_NODES_PER_CHECK = 8


class NetBuilder:
    """Builds one net. Nodes and states are numbered from 0; equal ones are created once."""

    def __init__(self, limits: CompileLimits | None = None, check: Check = never_stop) -> None:
        """`check` is called regularly while the net is built."""
        self.limits = limits or CompileLimits()
        self._max_nodes = self.limits.max_nodes
        self.check = check
        self.kinds = bytearray()
        self.num_args = array("i")
        self.args = array("i")
        """The arguments of all nodes, consecutive; `num_args` says how many each has."""
        self.leaves: list[LeafSource] = []
        self.num_states = 0
        """At most; without those of other parts."""
        self.parts: list[NetPart] = []
        """What nodes of kind PART refer to, counted from 1."""
        self._part_nodes = self._part_states = 0
        self.left_out: dict[str, UnsupportedSchema] = {}
        """What of a schema the net does not take, though it should, by the reason."""
        self.unique_arrays: dict[Node, UniqueArray] = {}
        """By the leaf of their opening bracket, which is no other's."""
        self.holes: dict[Node, int] = {}
        """By node, where its argument is."""
        self.is_recursive = False
        """Whether some node may come before its parts."""
        self.is_json = False
        """Whether texts are parts of JSON texts."""
        self._known: dict[tuple[int, tuple[int, ...]], Node] = {}
        self._texts: dict[tuple[bytes, bool], Node] = {}
        self._leaves: dict[Leaf, Node] = {}
        self._known_parts: dict[NetPart, Node] = {}
        assert self._node(SEQ, ()) == EMPTY
        assert self._node(ALT, ()) == FAIL

    def _node(self, kind: int, args: tuple[int, ...]) -> Node:
        key = (kind, args)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._new_node(kind, args)
        return found

    def _new_node(self, kind: int, args: Sequence[int]) -> Node:
        number = len(self.kinds)
        self.kinds.append(kind)
        self.num_args.append(len(args))
        self.args.extend(args)
        if number % _NODES_PER_CHECK == 0:
            self.check()
        self._count_nodes(number)
        return Node(number)

    def _count_nodes(self, last: int) -> None:
        if last + self._part_nodes >= self._max_nodes:
            raise GrammarError(
                f"the constraint needs more than {self._max_nodes} nodes", position=None
            )

    def adopt(self, made: NewNodes) -> None:
        """Nodes and leaves that were made elsewhere, numbered on from those that are here."""
        self._count_nodes(len(self.kinds) + len(made.kinds) - 1)
        self._count_states(sum(map(_num_states, made.leaves)))
        self.kinds += made.kinds
        self.num_args += made.num_args
        self.args += made.args
        self.leaves += made.leaves
        self.is_recursive |= made.is_recursive
        self.check()

    def part(self, one: NetPart) -> Node:
        """The root of another part, which is complete."""
        if one.root == EMPTY or one.root == FAIL:
            return one.root
        found = self._known_parts.get(one)
        if found is None:
            self.parts.append(one)
            self._part_nodes += len(one.net.kinds)
            self._part_states += one.net.num_states
            self._count_states(0)
            found = self._known_parts[one] = self._node(PART, (len(self.parts),))
        return found

    def sealed(self, root: Node) -> NetPart:
        """This net as a part of others. Nothing is added to it any more."""
        assert not self.holes, "a hole was never filled"
        assert not self.parts, "a part has no parts"
        assert not self.unique_arrays, "a part has no array that must be looked at"
        self._known, self._texts, self._leaves = {}, {}, {}
        self.check = never_stop
        return NetPart(self, root)

    def leave_out(self, why: UnsupportedSchema) -> None:
        self.left_out.setdefault(why.message, why.with_traceback(None))

    def _count_states(self, more: int) -> None:
        self.num_states += more
        if self.num_states + self._part_states > 4 * self._max_nodes:
            raise GrammarError(
                f"the constraint needs more than {4 * self._max_nodes} byte states", position=None
            )

    def leaf(self, made: LeafSource) -> Node:
        self._count_states(_num_states(made))
        self.leaves.append(made)
        return self._new_node(LEAF, (len(self.leaves) - 1,))

    def text(self, value: bytes) -> Node:
        """Exactly these bytes."""
        if not value:
            return EMPTY
        key = value, self.is_json
        found = self._texts.get(key)
        if found is None:
            found = self._texts[key] = self.leaf(JsonText(value) if self.is_json else value)
        return found

    def same_leaf(self, made: Leaf) -> Node:
        """A leaf that others hold too: its node is made once."""
        found = self._leaves.get(made)
        if found is None:
            found = self._leaves[made] = self.leaf(made)
        return found

    def seq(self, items: Iterable[Node]) -> Node:
        found = tuple([item for item in items if item])  # but EMPTY
        if FAIL in found:
            return FAIL
        return found[0] if len(found) == 1 else self._node(SEQ, found)

    def alt(self, items: Iterable[Node]) -> Node:
        found = tuple(dict.fromkeys([item for item in items if item != FAIL]))
        return found[0] if len(found) == 1 else self._node(ALT, found)

    def repeat(self, item: Node, low: int, high: int | None) -> Node:
        if high == 0 or item == EMPTY:
            return EMPTY
        if item == FAIL:
            return EMPTY if low == 0 else FAIL
        if low == high == 1:
            return item
        return self._node(REPEAT, (item, low, NO_LIMIT if high is None else high))

    def once(self, of: EachOnce) -> Node:
        """See lmprog_once.h for what may follow."""
        optional = [item for item in of.optional if item != FAIL]
        low = max(of.low, len(of.required), 1)
        most = len(of.required) + len(optional) + (of.again != FAIL)
        if FAIL in of.required or low > most or (of.high is not None and of.high < low):
            return FAIL
        high = NO_LIMIT if of.high is None else of.high
        again = NO_NODE if of.again == FAIL else of.again
        head = (low, high, len(of.required), again, of.separator)
        return self._node(ONCE, (*head, *of.required, *optional))

    def table(self, made: UnfinishedTable) -> Node:
        self._count_states(len(made.final) * (made.low + 1))
        return self._new_node(TABLE, made.args())

    def optional(self, item: Node) -> Node:
        return self.alt([item, EMPTY])

    def hole(self) -> Node:
        """A node to be defined later by `fill`; others may refer to it before that."""
        hole = self._node(ALT, (-1 - len(self.kinds),))
        self.holes[hole] = len(self.args) - 1
        return hole

    def fill(self, hole: Node, with_node: Node) -> None:
        self.args[self.holes.pop(hole)] = with_node
        self.is_recursive = True

    def nodes(self) -> list[tuple[int, list[int]]]:
        """Each node's kind and arguments."""
        args = iter(self.args)
        return [
            (kind, list(islice(args, count)))
            for kind, count in zip(self.kinds, self.num_args, strict=True)
        ]


def _num_states(made: LeafSource) -> int:
    return len(made) + 1 if isinstance(made, bytes) else made.num_states


@dataclass(frozen=True, slots=True)
class NewNodes:
    """What a builder has of its nodes and leaves, of some that are new to it."""

    kinds: bytes
    num_args: array[int]
    args: array[int]
    leaves: Sequence[LeafSource]
    is_recursive: bool


@dataclass(frozen=True, slots=True)
class EachOnce:
    """Of these each at most once, in any order, with separators between; none of them is empty."""

    separator: Node
    required: Sequence[Node]
    optional: Sequence[Node]
    low: int
    """Fewest members; at least one."""
    high: int | None = None
    again: Node = FAIL
    """May come many times, and counts towards `low` once."""


@dataclass(frozen=True, slots=True)
class UniqueArray:
    """An array of items that have to differ, which no net says: see `unique_items.py`."""

    low: int
    """Fewest items."""
    spare: int
    """How many tokens more than the net knows another of so many different items may take."""
    has_many: bool
    """Whether there are more different items than any array will have."""
    has_bare: bool = False
    """Whether items may be others than strings: numbers, `true`, `false` and `null`."""


@dataclass(frozen=True, slots=True)
class UnfinishedTable:
    """An automaton over classes of characters as one node, with bounds on the length.

    Its states are never multiplied with lengths: a position of the byte automaton holds a state and
    the number of characters so far, and is made when it is met. A target of -1 is behind the table:
    the node is all that follows. How the finished one lies in `items`: lmprog_text_table.h.
    """

    low: int
    high: int | None
    final: Sequence[int]
    loops: Sequence[int]
    """By state: a state that is final and leads to itself alone is a repetition, whose node this
    is; else -1."""
    starts: Sequence[int]
    """The first edge of each state, and the end of the last."""
    targets: Sequence[int]
    nodes: Sequence[int]

    def args(self) -> array[int]:
        out = array("i", (self.low, -1 if self.high is None else self.high))
        out.extend((len(self.final), len(self.targets)))
        for part in (self.final, self.loops, self.starts, self.targets, self.nodes):
            out.extend(part)
        return out


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class NetPart:
    """A complete net that others can refer to. Shared and read-only."""

    net: NetBuilder
    root: Node

    @property
    def num_bytes(self) -> int:
        """An estimate, its copy for the kernel included."""
        return 1000 + 50 * len(self.net.kinds) + 100 * self.net.num_states
