"""Finds matches of a pattern in a growing text, by two tables that are made beforehand.

The table `forward` reads the text: a state says whether a match ends here, and whether one may be
under way. The table `backward` reads the same text from its end and tells where a match that ends
here, or one that is under way, began first. Each is the subset automaton of one nondeterministic
automaton, with counted repetitions written out. All states are made when the pattern is compiled,
within limits, so that a character costs one look-up whatever the pattern and the text are. Beyond
the limits a pattern is refused. Where one of two states accepts all that the other does (an
earlier and a later optional round), `forward` keeps that one only.

Knows characters; knows no tokens and no streams.
"""

from __future__ import annotations

import ctypes
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from lmprog import native
from lmprog.constraints import charset
from lmprog.constraints.charset import CharSet
from lmprog.constraints.constraint import Check, CompileLimits, never_stop
from lmprog.constraints.expression import Alt, Anchor, Chars, Expression, Look, Repeat, Seq
from lmprog.constraints.kernel import INT, POINTER, kernel
from lmprog.constraints.pattern import parse_pattern
from lmprog.constraints.pattern_sets import NotRegular
from lmprog.errors import GrammarError

MAX_STATES = 4096
"""Of the nondeterministic automaton; counted repetitions multiply them."""
MAX_MOVES = 1 << 17
"""Of both tables together, 4 bytes each."""
MAX_WORK = 3_000_000
"""Steps that the making of the tables may take, about a microsecond each at most."""
_ASCII = 128
_FEW = 32
"""Characters that are read here as quickly as by the kernel."""
INSIDE, AFTER_BREAK, AT_START = range(3)
"""What precedes a position: a character, a line break, the start of the text."""

_LIMITS = CompileLimits()
_LINE_BREAK: CharSet = charset.of_text("\n")


class _CSearch(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("moves", "begins", "cuts", "class_behind")),
        *((name, INT) for name in ("num_cuts", "width", "line_break")),
    ]


class _NativeSearch:
    """The table of a search that reads texts from their end, which it borrows."""

    def __init__(self, arrays: Sequence[array[int]], begins: bytes, *of: int) -> None:
        moves, cuts, class_behind = (one.buffer_info()[0] for one in arrays)
        held = ctypes.c_char_p(begins)
        place = ctypes.cast(held, POINTER).value
        self._alive = (arrays, begins)
        self._view = _CSearch(moves, place, cuts, class_behind, *of)
        self._at = ctypes.addressof(self._view)
        self._begin = kernel().lmprog_search_begin

    def first_begin(self, text: str, state: int, before: int) -> int:
        found: int = self._begin(
            self._at, text.encode("utf-32-le", "surrogatepass"), len(text), state, before
        )
        return found


@dataclass(frozen=True, slots=True)
class TextSearch:
    """The tables of one pattern; shared, and never changed.

    A state is where its row begins: the state after a character of class c is `moves[state + c]`.
    """

    pattern: str
    ascii_classes: bytes
    cuts: array[int]
    """Where the classes of characters change ..."""
    class_behind: array[int]
    """... and the class from there on."""
    line_break: int
    """The class of the line break."""
    forward: array[int]
    starts: tuple[int, int, int]
    """The state before the first character, by what precedes it."""
    first_final: int
    """From this state on a match ends here."""
    is_under_way: bytearray
    """By the number of the forward row: whether a match may have begun."""
    width: int
    """Classes, so moves of a state."""
    backward: array[int]
    """State 0: no match leads here."""
    begins: bytes
    """By the number of the backward row: bit p where a match may begin here after what p names."""
    of_ends: int
    """The backward state where a match ends ..."""
    of_any: int
    """... and where one may be under way."""
    native: _NativeSearch | None

    @property
    def num_bytes(self) -> int:
        moves = self.forward.itemsize * (len(self.forward) + len(self.backward))
        return moves + 8 * len(self.cuts) + len(self.is_under_way) + len(self.begins) + 2048

    def class_of(self, char: str) -> int:
        code = ord(char)
        if code < _ASCII:
            return self.ascii_classes[code]
        return self.class_behind[bisect_right(self.cuts, code) - 1]

    def first_begin(self, text: str, state: int, before: int) -> int:
        """Where in `text`, which `before` precedes, the first match began that leads to the
        backward `state` at the end of the text; -1 where none did.
        """
        if self.native is not None and len(text) > _FEW:
            return self.native.first_begin(text, state, before)
        moves, width, begins = self.backward, self.width, self.begins
        ascii_classes, class_of, line_break = self.ascii_classes, self.class_of, self.line_break
        found = -1
        classes = [ascii_classes[ord(c)] if c < "\x80" else class_of(c) for c in text]
        for at in range(len(text) - 1, -1, -1):
            state = moves[state + classes[at]]
            if not state:
                break
            begin = begins[state // width]
            if begin:
                behind = before if at == 0 else int(classes[at - 1] == line_break)
                if begin >> behind & 1:
                    found = at
        return found


def text_search(pattern: str, check: Check = never_stop) -> TextSearch:
    """Raises GrammarError for a pattern that is malformed, that matches the empty text, or that
    exceeds the limits; NotRegular for one that looks ahead or behind.
    """
    return _Tables(pattern, check).made()


class _Nfa:
    """The automaton of an expression. Its *readers* are the states that read a character; a set of
    readers is an integer with a bit for each, the last bit for the end of a match.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._ways: list[list[tuple[int, int]]] = []
        """Per state: those that are reached without reading, each with the least that precedes."""
        self.sets: list[CharSet] = []
        """What each reader reads."""
        self.states: list[int] = []
        """Per reader: its state. The state after it is the next one."""
        self.chains: list[tuple[int, int]] = []
        """Rounds of equal size one after the other, of which each may be the last: the readers of
        all but the last round, and their number in a round. What a reader accepts, the same reader
        of an earlier round accepts too.
        """
        self.has_anchors = False

    def state(self) -> int:
        if len(self._ways) >= MAX_STATES:
            raise GrammarError(
                f"the pattern has more than {MAX_STATES:,} states; use smaller counts",
                position=None,
            )
        self._check()
        self._ways.append([])
        return len(self._ways) - 1

    def add(self, node: Expression, state: int) -> int:
        """Adds `node` after `state`; returns the state after it."""
        if isinstance(node, Chars):
            self.states.append(self.after(state))
            self.sets.append(node.ranges)
            return self.state()
        if isinstance(node, Anchor):
            if not node.at_start:
                raise NotRegular(
                    f"the end of the text at position {node.position} of the pattern",
                    position=node.position,
                )
            self.has_anchors = True
            return self.after(state, AFTER_BREAK if node.of_line else AT_START)
        if isinstance(node, Alt):
            return self._joined([self.add(item, self.after(state)) for item in node.items])
        if isinstance(node, Repeat):
            return self._repeat(node, state)
        assert isinstance(node, Seq), "the parser refuses look-around here"
        for item in node.items:
            state = self.add(item, state)
        return state

    def _repeat(self, node: Repeat, state: int) -> int:
        low, high = node.low, node.high
        if high is None:
            for _ in range(low):
                state = self.add(node.item, state)
            loop = self.after(state)
            self._ways[self.add(node.item, loop)].append((loop, INSIDE))
            return self.after(loop)
        for _ in range(low):
            state = self.add(node.item, state)
        ends, first = [state], len(self.sets)
        for _ in range(high - low):
            ends.append(self.add(node.item, ends[-1]))
        rounds = high - low
        size = (len(self.sets) - first) // rounds if rounds else 0
        if rounds > 1 and size:
            self.chains.append((((1 << size * (rounds - 1)) - 1) << first, size))
        return self._joined(ends)

    def after(self, state: int, least: int = INSIDE) -> int:
        new = self.state()
        self._ways[state].append((new, least))
        return new

    def _joined(self, states: list[int]) -> int:
        end = self.state()
        for state in states:
            self._ways[state].append((end, INSIDE))
        return end

    def reached(self, last: int, before: int) -> list[int]:
        """Per state: the readers that are reached from it without reading, and the end."""
        own = [0] * len(self._ways)
        for reader, state in enumerate(self.states):
            own[state] = 1 << reader
        own[last] |= 1 << len(self.states)
        ways = [[to for to, least in ways if before >= least] for ways in self._ways]
        return self._spread(own, ways, range(len(own) - 1, -1, -1))  # most lead forward

    def leading(self, before: int) -> list[int]:
        """Per state: the readers from which it is reached without reading more."""
        own = [0] * len(self._ways)
        for reader, state in enumerate(self.states):
            own[state + 1] = 1 << reader
        sources: list[list[int]] = [[] for _ in self._ways]
        for state, ways in enumerate(self._ways):
            for target, least in ways:
                if before >= least:
                    sources[target].append(state)
        return self._spread(own, sources, range(len(own)))

    def _spread(self, values: list[int], ways: list[list[int]], order: range) -> list[int]:
        """Adds to each state's value those of all that it has a way to."""
        changed = True
        while changed:  # more than twice only where loops stand within loops
            changed = False
            for state in order:
                self._check()
                value = values[state]
                for target in ways[state]:
                    value |= values[target]
                if value != values[state]:
                    values[state], changed = value, True
        return values


@dataclass(slots=True)
class _Explored:
    """The states found so far of one table, by number, and their moves."""

    width: int
    numbers: dict[int, int] = field(default_factory=dict)
    moves: array[int] = field(default_factory=lambda: array("i"))

    def number(self, key: int) -> int:
        return self.numbers.setdefault(key, len(self.numbers))


class _Tables:
    def __init__(self, pattern: str, check: Check) -> None:
        self._pattern, self._check = pattern, check
        expression = parse_pattern(pattern, _LIMITS)
        if _shortest(expression) == 0:
            raise GrammarError("the pattern matches the empty text", position=None)
        nfa = self._nfa = _Nfa(check)
        first = nfa.state()
        last = nfa.add(expression, first)
        self._end = 1 << len(nfa.states)
        self._work = 0
        self._num_moves = 0
        reached = [nfa.reached(last, before) for before in (INSIDE, AFTER_BREAK)]
        leading = [nfa.leading(before) for before in (INSIDE, AFTER_BREAK)]
        self._begin = (
            *(of[first] for of in reached),
            nfa.reached(last, AT_START)[first],
        )
        self._after = [[of[state + 1] for state in nfa.states] for of in reached]
        self._leading = [[*(of[state] for state in nfa.states), of[last]] for of in leading]
        self._divide()

    def _divide(self) -> None:
        """Classes of characters that no reader tells apart; and which readers read each."""
        sets = dict.fromkeys(self._nfa.sets)
        numbers = {one: number for number, one in enumerate(sets)}
        extra = [_LINE_BREAK] if self._nfa.has_anchors else []
        changes: dict[int, int] = {0: 0}
        for number, ranges in enumerate([*sets, *extra]):
            for low, high in ranges:
                self._spend(1)
                changes[low] = changes.get(low, 0) ^ 1 << number
                changes[high + 1] = changes.get(high + 1, 0) ^ 1 << number
        self._cuts = sorted(changes)
        known: dict[int, int] = {}
        self._class_behind: list[int] = []
        inside = 0
        for cut in self._cuts:
            inside ^= changes[cut]
            self._class_behind.append(known.setdefault(inside, len(known)))
        readers = [0] * len(sets)
        for reader, one in enumerate(self._nfa.sets):
            readers[numbers[one]] |= 1 << reader
        self._readers = [
            sum(readers[number] for number in range(len(sets)) if inside >> number & 1)
            for inside in known
        ]
        self._line_break = self._class_behind[bisect_right(self._cuts, 10) - 1]

    def _spend(self, work: int) -> None:
        self._work += work
        self._check()
        if self._work > MAX_WORK:
            raise _too_large("steps", MAX_WORK)

    def _row(self, width: int) -> None:
        self._num_moves += width
        if self._num_moves > MAX_MOVES:
            raise _too_large("transitions", MAX_MOVES)

    def _union(self, members: int, values: list[int]) -> int:
        found = 0
        self._spend(1 + members.bit_count())
        while members:
            lowest = members & -members
            found |= values[lowest.bit_length() - 1]
            members ^= lowest
        return found

    def _undominated(self, readers: int) -> int:
        """Without those that accept nothing that an earlier round of them does not."""
        for rounds, size in self._nfa.chains:
            later = (readers & rounds) << size
            if later:
                self._spend(1)
                shift = size
                while (more := later | later << shift & rounds << size) != later:
                    later, shift = more, 2 * shift
                readers &= ~later
        return readers

    # --- forward

    def _explore_forward(self) -> tuple[_Explored, tuple[int, int, int]]:
        """Keys of states: the readers that may read next, the end where a match has ended, and one
        bit more where one is under way.
        """
        end, under_way = self._end, self._end << 1
        found = _Explored(len(self._readers))
        starts = tuple(found.number(self._undominated(one)) for one in self._begin)
        known: dict[tuple[int, int], int] = {}
        for key in (keys := list(found.numbers)):  # appended to while iterated
            self._row(found.width)
            for number, readers in enumerate(self._readers):
                self._spend(1)
                before = int(number == self._line_break)
                reading = key & readers, before
                after = known.get(reading)
                if after is None:
                    went = self._union(reading[0], self._after[before])
                    after = self._undominated((went | self._begin[before]) & ~end)
                    after |= went & end | (under_way if went else 0)
                    known[reading] = after
                to = found.number(after)
                if to == len(keys):
                    keys.append(after)
                found.moves.append(to)
        return found, (starts[0], starts[1], starts[2])

    def _explore_backward(self) -> _Explored:
        """Keys of states: the readers, of which one read the character behind; first what leads
        nowhere, then the ends, then all.
        """
        found = _Explored(len(self._readers))
        for key in (0, self._end, self._end | (self._end - 1)):
            found.number(key)
        keys = list(found.numbers)
        anchored = self._nfa.has_anchors
        for index, key in enumerate(keys):  # appended to while iterated
            self._row(found.width)
            leading = [self._union(key, self._leading[INSIDE])] * 2
            if anchored:
                leading[AFTER_BREAK] = self._union(key, self._leading[AFTER_BREAK])
            for number, readers in enumerate(self._readers):
                self._spend(1)
                after = leading[int(number == self._line_break)] & readers if index else 0
                to = found.number(after)
                if to == len(keys):
                    keys.append(after)
                found.moves.append(to)
        return found

    def made(self) -> TextSearch:
        width = len(self._readers)
        forward, starts = self._explore_forward()
        backward = self._explore_backward()
        keys = list(forward.numbers)
        order = sorted(range(len(keys)), key=lambda state: bool(keys[state] & self._end))
        row_of = [0] * len(keys)
        for row, state in enumerate(order):
            row_of[state] = row * width
        moves = array("i")
        for state in order:
            self._spend(1)
            moves.extend(row_of[to] for to in forward.moves[state * width : (state + 1) * width])
        num_final = sum(bool(key & self._end) for key in keys)
        cuts, class_behind = array("i", self._cuts), array("i", self._class_behind)
        moves_back = array("i", (to * width for to in backward.moves))
        begins = bytes(
            sum(1 << before for before, begin in enumerate(self._begin) if key & begin)
            for key in backward.numbers
        )
        native_search = None
        if native.library("masks") is not None:
            of = (len(cuts), width, self._line_break)
            native_search = _NativeSearch((moves_back, cuts, class_behind), begins, *of)
        return TextSearch(
            self._pattern,
            bytes(self._class_behind[bisect_right(self._cuts, c) - 1] for c in range(_ASCII)),
            cuts,
            class_behind,
            self._line_break,
            moves,
            (row_of[starts[0]], row_of[starts[1]], row_of[starts[2]]),
            (len(keys) - num_final) * width,
            bytearray(keys[state] > 2 * self._end - 1 for state in order),
            width,
            moves_back,
            begins,
            width,
            backward.numbers[self._end | (self._end - 1)] * width,
            native_search,
        )


def _too_large(what: str, limit: int) -> GrammarError:
    return GrammarError(
        f"the pattern needs more than {limit:,} {what} to be found in linear time; use smaller "
        "counts, or `{0,n}` in place of `{n}` behind a part that may begin anywhere",
        position=None,
    )


def _shortest(node: Expression) -> float:
    """The fewest characters of a match; infinity where there is none."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Anchor | Look):
        return 0
    if isinstance(node, Repeat):
        return node.low * _shortest(node.item) if node.low else 0
    parts = [_shortest(item) for item in node.items]
    return min(parts, default=float("inf")) if isinstance(node, Alt) else sum(parts)
