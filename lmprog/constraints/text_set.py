"""Sets of texts: intersection, exclusion and bounds on the length, as one node of a net.

Used where a schema combines string constraints with "and" or "not". The automaton over characters
of such a set is explored by the kernel (lmprog_texts.h): characters are divided into classes that
no expression tells apart, a state is a set of partial derivatives per expression, and there is a
limit. Lengths are counted when the automaton is walked. Knows expressions and nets; knows no bytes
and no JSON.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from threading import Lock

import numpy as np

from lmprog.constraints import charset
from lmprog.constraints.charset import CharSet
from lmprog.constraints.constraint import Check
from lmprog.constraints.expression import (
    Alt,
    Anchor,
    Chars,
    Expression,
    Look,
    Repeat,
    Seq,
    alt,
    has_looks,
    lengths,
)
from lmprog.constraints.kernel import INT, LONG, POINTER, free_with, kernel, or_memory
from lmprog.constraints.lower import Lowering, all_but
from lmprog.constraints.net import FAIL, NetBuilder, Node, UnfinishedTable
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


def lower_text_set(texts: TextSet, net: NetBuilder, lowering: Lowering) -> Node:
    """The node of a text set: direct if one expression or a length suffices, else via its
    automaton.
    """
    if texts.high is not None and texts.high < texts.low:
        return FAIL
    if texts.excluded and (texts.within or texts.outside):
        rest = replace(texts, excluded=())
        texts = replace(rest, excluded=tuple(one for one in texts.excluded if contains(rest, one)))
    if not texts.outside:
        is_bounded = texts.low > 0 or texts.high is not None
        if texts.excluded and not texts.within and not is_bounded:
            return all_but(texts.excluded, net)
        if not texts.excluded and not texts.within:
            return lowering.lower(Repeat(Chars(charset.ALL), texts.low, texts.high))
        if not texts.excluded and len(texts.within) == 1 and not has_looks(texts.within[0]):
            direct = _bounded(texts.within[0], texts.low, texts.high)
            if direct is not None:
                return lowering.lower(direct)

    def lower(rest: TextSet) -> Node:
        return lower_text_set(rest, net, lowering)

    automaton = automaton_of(texts, net.check, lower)
    return table_node(automaton, texts.low, texts.high, net, lowering)


def contains(texts: TextSet, value: str) -> bool:
    """Whether the set contains one text."""
    if value in texts.excluded:
        return False
    if len(value) < texts.low or (texts.high is not None and len(value) > texts.high):
        return False
    return all(matches(one, value) for one in texts.within) and not any(
        matches(one, value) for one in texts.outside
    )


def _bounded(expression: Expression, low: int, high: int | None) -> Expression | None:
    """The expression with a length bound applied, if that is simple, else None."""
    shortest, longest = lengths(expression)
    if low <= shortest and (high is None or (longest is not None and longest <= high)):
        return expression
    if isinstance(expression, Repeat) and isinstance(expression.item, Chars):
        highs = [bound for bound in (expression.high, high) if bound is not None]
        first, last = max(expression.low, low), min(highs) if highs else None
        return Repeat(expression.item, first, last) if last is None or first <= last else Alt(())
    return None


# --- automata of sets

Lower = Callable[[TextSet], Node]
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


# --- by the kernel

_STEP = 200_000
"""Units of work, nanoseconds roughly, between two checks."""
_TOO_MANY = -2
_CHARS, _SEQ, _ALT, _REPEAT, _AHEAD, _BEHIND, _TRACKED = range(7)
_MAX_TRACKED = 8
_MAX_PROGRAM = 4_000_000
"""Numbers by which all expressions of a set are told to the kernel, about."""
_MAX_KNOWN = 128
_MAX_MATCHERS = 32


class _CInput(ctypes.Structure):
    _fields_ = [
        ("program", ctypes.c_char_p),
        ("length", LONG),
        ("num_within", INT),
        ("num_outside", INT),
        *((name, ctypes.c_char_p) for name in ("is_word", "child_start", "children")),
        ("num_vertices", INT),
        ("is_bounded", INT),
        ("max_states", LONG),
        ("max_steps", LONG),
    ]


class _CSizes(ctypes.Structure):
    _fields_ = [
        (name, LONG) for name in ("states", "edges", "classes", "ranges", "rests", "rests_length")
    ]


class _COutput(ctypes.Structure):
    _fields_ = [
        (name, POINTER)
        for name in (
            *("final", "starts", "targets", "labels"),
            *("range_starts", "ranges", "rests", "programs"),
        )
    ]


def automaton_of(texts: TextSet, check: Check, lower: Lower) -> TextAutomaton:
    """The automaton of a text set without its bounds on the length. `lower` makes the nodes of
    simpler sets, where nothing more has to be explored.
    """
    core = kernel()
    program = b"".join(map(_program, (*texts.within, *texts.outside)))
    trie = _CharTrie(texts.excluded) if texts.excluded else None
    is_word, starts, children = _trie_arrays(trie)
    given = _CInput(
        program,
        len(program) // 4,
        len(texts.within),
        len(texts.outside),
        is_word,
        starts,
        children,
        len(is_word),
        texts.low > 0 or texts.high is not None,
        MAX_STATES,
        MAX_STEPS,
    )
    handle = or_memory(core.lmprog_texts_new(ctypes.byref(given)))
    try:
        sizes = _CSizes()
        while left := core.lmprog_texts_step(handle, _STEP, ctypes.byref(sizes)):
            if left == _TOO_MANY:
                raise too_many_states()
            if left < 0:
                raise MemoryError("no memory for a set of texts")
            check()
        return _copied(core, handle, sizes, trie, lower)
    finally:
        core.lmprog_texts_free(handle)


class _Matcher:
    """One expression, of which many texts are asked."""

    def __init__(self, expression: Expression) -> None:
        core, program = kernel(), _program(expression)
        self.expression = expression
        self._takes = core.lmprog_matcher_takes
        self._handle = or_memory(core.lmprog_matcher_new(program, len(program) // 4))
        free_with(self, core.lmprog_matcher_free, self._handle)
        self._lock = Lock()  # the kernel remembers what it finds out

    def takes(self, text: str) -> bool:
        characters = text.encode("utf-32-le", "surrogatepass")
        with self._lock:
            found = self._takes(self._handle, characters, len(text), MAX_STEPS)
        if found == _TOO_MANY:
            raise too_many_states()
        if found < 0:
            raise MemoryError("no memory for an expression")
        return bool(found)


_matchers: OrderedDict[int, _Matcher] = OrderedDict()
"""By identity of the expression, like `_known`."""


def matches(expression: Expression, text: str) -> bool:
    """Whether the whole text does. Raises GrammarError where that needs too many steps."""
    found = _matchers.get(id(expression))
    if found is None:
        found = _matchers[id(expression)] = _Matcher(expression)
        while len(_matchers) > _MAX_MATCHERS:
            _matchers.popitem(last=False)
    return found.takes(text)


class _CharTrie:
    """Texts by their characters. Vertex 0 is the empty text."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.children: list[dict[str, int]] = [{}]
        self.is_text: list[bool] = [False]
        for text in texts:
            at = 0
            for char in text:
                after = self.children[at].get(char)
                if after is None:
                    after = self.children[at][char] = len(self.children)
                    self.children.append({})
                    self.is_text.append(False)
                at = after
            self.is_text[at] = True

    def below(self, vertex: int) -> list[str]:
        """How the texts go on that begin with the one of `vertex`."""
        found: list[str] = []
        pending = [(vertex, "")]
        while pending:
            at, text = pending.pop()
            if self.is_text[at]:
                found.append(text)
            pending += [(after, text + char) for char, after in self.children[at].items()]
        return found


def _trie_arrays(trie: _CharTrie | None) -> tuple[bytes, bytes, bytes]:
    if trie is None:
        return b"", b"", b""
    starts, children = array("i", [0]), array("i")
    for of_vertex in trie.children:
        for char, vertex in of_vertex.items():
            children.extend((ord(char), vertex))
        starts.append(len(children) // 2)
    return bytes(trie.is_text), starts.tobytes(), children.tobytes()


def _copied(
    core: ctypes.CDLL, handle: int, sizes: _CSizes, trie: _CharTrie | None, lower: Lower
) -> TextAutomaton:
    if not sizes.states:
        return TextAutomaton()
    out = TextAutomaton(final=bytearray(sizes.states))
    out.starts = array("i", bytes(4 * (sizes.states + 1)))
    out.targets, out.labels = (array("i", bytes(4 * sizes.edges)) for _ in range(2))
    range_starts, ranges = (
        array("i", bytes(4 * count)) for count in (sizes.classes + 1, 2 * sizes.ranges)
    )
    rests, programs = (
        array("i", bytes(4 * count)) for count in (3 * sizes.rests, sizes.rests_length)
    )
    final = (ctypes.c_uint8 * sizes.states).from_buffer(out.final)
    parts = (out.starts, out.targets, out.labels, range_starts, ranges, rests, programs)
    places = (ctypes.addressof(final), *(one.buffer_info()[0] for one in parts))
    core.lmprog_texts_copy(handle, ctypes.byref(_COutput(*places)))
    pairs = list(zip(ranges[::2], ranges[1::2], strict=True))
    out.classes = [tuple(pairs[first:end]) for first, end in pairwise(range_starts)]
    at = 0
    for state, vertex, length in zip(rests[::3], rests[1::3], rests[2::3], strict=True):
        if length:
            rest = TextSet((_expression(programs[at : at + length]),))
        else:
            rest = TextSet(excluded=() if vertex < 0 or trie is None else tuple(trie.below(vertex)))
        at += length
        out.rests[state] = lower(rest)
    return out


_known: OrderedDict[int, tuple[Expression, bytes]] = OrderedDict()
"""By identity, since equality reads whole expressions. Holds them, so that ids stay theirs."""


def _program(expression: Expression) -> bytes:
    """The expression in postfix order: lmprog_texts.h."""
    found = _known.get(id(expression))
    if found is None:
        out, before = array("i"), dict[Expression, int]()
        try:
            _write(expression, out, before)
            for one in before:
                _write(one, out, None)
            out.extend((_TRACKED, len(before)) if before else ())
        except RecursionError as error:
            raise GrammarError("the pattern nests too deeply", position=None) from error
        found = _known[id(expression)] = (expression, out.tobytes())
        while len(_known) > _MAX_KNOWN:
            _known.popitem(last=False)
    return found[1]


def _write(node: Expression, out: array[int], before: dict[Expression, int] | None) -> None:
    """`before`: what looks behind, numbered; None within one of these."""
    assert not isinstance(node, Anchor), "anchors are resolved before"
    if isinstance(node, Chars):
        if len(out) > _MAX_PROGRAM:
            raise too_many_states()
        out.extend((_CHARS, len(node.ranges)))
        out.extend(chain.from_iterable(node.ranges))
    elif isinstance(node, Repeat):
        _write(node.item, out, before)
        out.extend((_REPEAT, node.low, -1 if node.high is None else node.high))
    elif isinstance(node, Look):
        if before is None:
            raise GrammarError("look-around within look-behind is not supported", position=None)
        if node.is_ahead:
            _write(node.item, out, before)
            out.extend((_AHEAD, node.is_wanted))
        else:
            if node.item not in before and len(before) == _MAX_TRACKED:
                raise GrammarError(
                    f"a pattern looks behind for more than {_MAX_TRACKED} different things",
                    position=None,
                )
            out.extend((_BEHIND, before.setdefault(node.item, len(before)), node.is_wanted))
    else:
        for item in node.items:
            _write(item, out, before)
        out.extend((_SEQ if isinstance(node, Seq) else _ALT, len(node.items)))


def _expression(program: Sequence[int]) -> Expression:
    """The expression of a program. Several ways at its end are joined as `alt` joins them."""
    stack: list[Expression] = []
    at = 0
    while at < len(program):
        kind, count = program[at : at + 2]
        at += 2
        if kind == _CHARS:
            numbers = program[at : at + 2 * count]
            at += 2 * count
            ranges: CharSet = tuple(zip(numbers[::2], numbers[1::2], strict=True))
            stack.append(Chars(ranges))
        elif kind == _REPEAT:
            high = program[at]
            at += 1
            stack.append(Repeat(stack.pop(), count, None if high < 0 else high))
        else:
            items = tuple(stack[len(stack) - count :])
            del stack[len(stack) - count :]
            is_last = at == len(program)
            stack.append(Seq(items) if kind == _SEQ else alt(items) if is_last else Alt(items))
    (made,) = stack
    return made
