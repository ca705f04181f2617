"""A set of texts as a value, its automaton over characters, and the node of that, optionally with
bounds of length; how one is explored is in `textset.py`. Knows nets.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lmprog.constraints.charset import CharSet
from lmprog.constraints.expression import Expression
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import FAIL, NetBuilder, Node
from lmprog.constraints.text_table import UnfinishedTable
from lmprog.errors import GrammarError

MAX_STEPS = 3_000_000
"""Derivatives that are asked for in one exploration; more are refused."""


@dataclass(frozen=True, slots=True)
class TextSet:
    """The texts that match all of `within`, none of `outside`, are not in `excluded`, and have
    `low` to `high` characters (None: unbounded).
    """

    within: tuple[Expression, ...] = ()
    outside: tuple[Expression, ...] = ()
    low: int = 0
    high: int | None = None
    excluded: tuple[str, ...] = ()

    def and_also(self, other: TextSet) -> TextSet:
        highs = [high for high in (self.high, other.high) if high is not None]
        return TextSet(
            self.within + other.within,
            self.outside + other.outside,
            max(self.low, other.low),
            min(highs) if highs else None,
            tuple(dict.fromkeys(self.excluded + other.excluded)),
        )


Lower = Callable[[TextSet], Node]


# --- automata of sets

MAX_STATES = 60_000
_MAX_COUNTED = 4_000_000
"""States of an automaton times the characters that a text has to have."""


@dataclass(slots=True)
class TextAutomaton:
    """State 0 is the start state, and from every state a final one or a rest can be reached. Edges
    are labelled with classes of characters; those of each state follow each other."""

    final: bytearray = field(default_factory=bytearray)
    starts: array[int] = field(default_factory=lambda: array("i", [0]))
    targets: array[int] = field(default_factory=lambda: array("i"))
    labels: array[int] = field(default_factory=lambda: array("i"))
    classes: list[CharSet] = field(default_factory=list)
    rests: dict[int, Node] = field(default_factory=dict)
    """States without edges, whose node is known."""


def too_many_states() -> GrammarError:
    return GrammarError(
        f"the conjunction of patterns needs more than {MAX_STATES:,} states, or too many steps to "
        "find them",
        position=None,
    )


def table_node(
    automaton: TextAutomaton, low: int, high: int | None, net: NetBuilder, lowering: Lowering
) -> Node:
    """The texts of an automaton that have between `low` and `high` characters."""
    size = len(automaton.final)
    if not size:
        return FAIL
    if size * low > _MAX_COUNTED:
        raise too_many_states()
    if 0 in automaton.rests:
        return automaton.rests[0]
    letters = [lowering.chars(one) for one in automaton.classes]
    nodes = array("i", map(letters.__getitem__, automaton.labels))
    final, starts, targets = (
        np.frombuffer(one, kind)
        for one, kind in (
            (automaton.final, np.uint8),
            (automaton.starts, np.int32),
            (automaton.targets, np.int32),
        )
    )
    loops = array("i", [-1]) * size
    alone = np.nonzero((final == 1) & (np.diff(starts) == 1))[0]
    for state in alone[targets[starts[alone]] == alone].tolist():
        loops[state] = net.repeat(Node(nodes[automaton.starts[state]]), 0, None)
    made = UnfinishedTable(
        low, high, automaton.final, loops, automaton.starts, automaton.targets, nodes
    )
    return net.table(_with_rests(made, automaton.rests) if automaton.rests else made)


def _with_rests(table: UnfinishedTable, rests: dict[int, Node]) -> UnfinishedTable:
    """The table with an edge for each state that goes on behind it."""
    starts, targets, nodes = array("i", [0]), array("i"), array("i")
    for state in range(len(table.final)):
        rest = rests.get(state)
        if rest is not None:
            targets.append(-1)
            nodes.append(rest)
        else:
            first, end = table.starts[state], table.starts[state + 1]
            targets.extend(table.targets[first:end])
            nodes.extend(table.nodes[first:end])
        starts.append(len(targets))
    return UnfinishedTable(table.low, table.high, table.final, table.loops, starts, targets, nodes)
