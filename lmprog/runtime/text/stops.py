"""Finds stops in a growing text, one character at a time.

Stop strings are one Aho-Corasick automaton. A stop regex is a simulated nondeterministic automaton,
so that every pattern takes linear time and a match may be of any length. Its syntax is that of `re`
without what depends on text ahead or behind: `$`, `\\b`, lookarounds, back references, possessive
and atomic groups. It must not match the empty text. As a stop ends a text at once, `+` and `*` are
never greedy here. `begin` of a watch is exact: the text from there on could still become a stop.

Knows characters; knows no tokens and no streams.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Protocol

from lmprog.errors import InvalidParameter, NotSupported

_MAX_STATES = 4096
"""Per stop regex; counted repeats multiply states."""


class StopWatch(Protocol):
    """A cursor that finds stops of one kind; compiled automata are shared."""

    begin: int
    """Where the earliest possible stop begins; the text's end where there is none."""

    def take(self, char: str, at: int) -> tuple[int, str] | None:
        """The earliest stop that ends with the character at position `at`: its begin and source."""
        ...

    def skip(self, char: str, at: int) -> None:
        """Reads a character at which no stop may begin; drops matches under way."""
        ...

    def copy(self) -> StopWatch: ...


def watch_strings(stops: tuple[str, ...]) -> StopWatch:
    """A watch for non-empty strings."""
    return _Strings(_string_net(stops))


def watch_regex(pattern: str) -> StopWatch:
    """A watch for one regex. Raises InvalidParameter for an invalid one, NotSupported as said
    above.
    """
    return _Regex(pattern, _regex_net(pattern))


# --- stop strings


@dataclass(frozen=True, slots=True)
class _StringNet:
    """Aho-Corasick: a state is the longest end of the text that begins a stop."""

    moves: list[dict[str, int]]
    falls: list[int]
    depths: list[int]
    ends: list[str | None]
    """The longest stop string that is complete in this state."""


@functools.lru_cache(maxsize=256)
def _string_net(stops: tuple[str, ...]) -> _StringNet:
    net = _StringNet([{}], [0], [0], [None])
    for stop in stops:
        state = 0
        for char in stop:
            if char not in net.moves[state]:
                net.moves[state][char] = len(net.moves)
                net.moves.append({})
                net.falls.append(0)
                net.depths.append(net.depths[state] + 1)
                net.ends.append(None)
            state = net.moves[state][char]
        net.ends[state] = stop
    todo = deque(net.moves[0].values())
    while todo:
        state = todo.popleft()
        net.ends[state] = net.ends[state] or net.ends[net.falls[state]]
        for char, child in net.moves[state].items():
            fall = net.falls[state]
            while fall and char not in net.moves[fall]:
                fall = net.falls[fall]
            net.falls[child] = net.moves[fall].get(char, 0)
            todo.append(child)
    return net


class _Strings:
    """A cursor in a net of stop strings."""

    __slots__ = ("_net", "_state", "begin")

    def __init__(self, net: _StringNet, state: int = 0, begin: int = 0) -> None:
        self._net, self._state = net, state
        self.begin = begin

    def take(self, char: str, at: int) -> tuple[int, str] | None:
        net, state = self._net, self._state
        while state and char not in net.moves[state]:
            state = net.falls[state]
        self._state = state = net.moves[state].get(char, 0)
        self.begin = at + 1 - net.depths[state]
        stop = net.ends[state]
        return None if stop is None else (at + 1 - len(stop), stop)

    def skip(self, char: str, at: int) -> None:
        self._state, self.begin = 0, at + 1

    def copy(self) -> _Strings:
        return _Strings(self._net, self._state, self.begin)


# --- stop regexes

_Test = Callable[[str], bool]
_INSIDE, _AFTER_BREAK, _AT_START = range(3)
"""What precedes a position: a character, a line break, the start of the text."""


class _RegexNet:
    """A nondeterministic automaton over characters, built from `re`'s own parse of the pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.tests: list[_Test | None] = []
        self._ways: list[list[tuple[int, int]]] = []
        """Per state: states reached without reading, each with the least context it needs."""
        try:
            re.compile(pattern)
            parsed = _parser.parse(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidParameter(
                f"the stop regex {pattern!r} is not a regular expression: {error}.",
                name="stop_regex",
                value=pattern,
            ) from error
        if parsed.getwidth()[0] == 0:
            raise InvalidParameter(
                f"the stop regex {pattern!r} matches the empty text, so every text would "
                "stop at once.",
                name="stop_regex",
                value=pattern,
                allowed="patterns that match at least one character",
            )
        first = self._state()
        self.last = self._sequence(parsed, first, parsed.state.flags)
        self.first = first
        self.closure = functools.lru_cache(maxsize=None)(self._closure)

    def _state(self, test: _Test | None = None) -> int:
        if len(self.tests) >= _MAX_STATES:
            raise InvalidParameter(
                f"the stop regex {self._pattern!r} has more than {_MAX_STATES} states; use smaller "
                "counts.",
                name="stop_regex",
                value=self._pattern,
            )
        self.tests.append(test)
        self._ways.append([])
        return len(self.tests) - 1

    def _closure(self, state: int, before: int) -> tuple[int, ...]:
        """The reading states, and the last one, reachable from `state` without reading."""
        seen, todo = {state}, [state]
        while todo:
            for target, least in self._ways[todo.pop()]:
                if before >= least and target not in seen:
                    seen.add(target)
                    todo.append(target)
        return tuple(one for one in sorted(seen) if self.tests[one] is not None or one == self.last)

    def _sequence(self, items: Iterable[tuple[Any, Any]], state: int, flags: int) -> int:
        """Adds `items` after `state`; returns the state after them. A reading state leads to the
        state of the next number.
        """
        for op, value in items:
            state = self._item(str(op), value, state, flags)
        return state

    def _item(self, op: str, value: Any, state: int, flags: int) -> int:
        if op in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            reading = self._state(_test_of(op, value, flags))
            self._ways[state].append((reading, _INSIDE))
            return self._state()
        if op == "SUBPATTERN":
            _, added, removed, items = value
            return self._sequence(items, state, (flags | added) & ~removed)
        if op == "BRANCH":
            ends = [self._sequence(items, self._after(state), flags) for items in value[1]]
            return self._joined(ends)
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._repeat(value, state, flags)
        if op == "AT" and str(value) in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
            is_line = flags & re.MULTILINE and str(value) == "AT_BEGINNING"
            return self._after(state, _AFTER_BREAK if is_line else _AT_START)
        raise NotSupported(
            f"the stop regex {self._pattern!r} uses "
            f"{str(value if op == 'AT' else op).lower()}, which depends on text behind or "
            "ahead; a stop "
            "is found while the text still grows."
        )

    def _repeat(self, value: tuple[int, Any, Any], state: int, flags: int) -> int:
        low, high, items = value
        for _ in range(low):
            state = self._sequence(items, state, flags)
        if high == _parser.MAXREPEAT:
            loop = self._after(state)
            self._ways[self._sequence(items, loop, flags)].append((loop, _INSIDE))
            return self._after(loop)
        ends = [state]
        for _ in range(high - low):
            ends.append(self._sequence(items, ends[-1], flags))
        return self._joined(ends)

    def _after(self, state: int, least: int = _INSIDE) -> int:
        new = self._state()
        self._ways[state].append((new, least))
        return new

    def _joined(self, states: list[int]) -> int:
        end = self._state()
        for state in states:
            self._ways[state].append((end, _INSIDE))
        return end


def _test_of(op: str, value: Any, flags: int) -> _Test:
    """The test of whether one item of a parsed pattern reads a character."""
    if op == "ANY":
        return (lambda char: True) if flags & re.DOTALL else (lambda char: char != "\n")
    items = [(str(kind), what) for kind, what in value] if op == "IN" else [("LITERAL", value)]
    singles = {what for kind, what in items if kind == "LITERAL"}
    ranges = [what for kind, what in items if kind == "RANGE"]
    classes = [
        re.compile(_CLASSES[str(what)], flags & re.ASCII).match
        for kind, what in items
        if kind == "CATEGORY"
    ]
    wanted = not (op == "NOT_LITERAL" or ("NEGATE", None) in items)

    def is_in(char: str) -> bool:
        code = ord(char)
        return (
            code in singles
            or any(low <= code <= high for low, high in ranges)
            or any(match(char) is not None for match in classes)
        )

    if flags & re.IGNORECASE:
        return lambda char: (
            any(is_in(one) for one in {char, char.lower(), char.upper()} if len(one) == 1) is wanted
        )
    return lambda char: is_in(char) is wanted


_CLASSES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


@functools.lru_cache(maxsize=256)
def _regex_net(pattern: str) -> _RegexNet:
    return _RegexNet(pattern)


class _Regex:
    """The possible matches of one stop regex."""

    __slots__ = ("_before", "_net", "_pattern", "_threads", "begin")

    def __init__(self, pattern: str, net: _RegexNet) -> None:
        self._pattern, self._net = pattern, net
        self._threads: dict[int, int] = {}
        """Per reading state: where the earliest match in it begins."""
        self._before = _AT_START
        self.begin = 0

    def take(self, char: str, at: int) -> tuple[int, str] | None:
        net = self._net
        for state in net.closure(net.first, self._before):
            self._threads.setdefault(state, at)
        self._before = _AFTER_BREAK if char == "\n" else _INSIDE
        threads: dict[int, int] = {}
        for state, begin in self._threads.items():
            test = net.tests[state]
            if test is not None and test(char):
                for target in net.closure(state + 1, self._before):
                    threads[target] = min(begin, threads.get(target, begin))
        self._threads = threads
        self.begin = min(threads.values(), default=at + 1)
        done = threads.get(net.last)
        return None if done is None else (done, self._pattern)

    def skip(self, char: str, at: int) -> None:
        self._before = _AFTER_BREAK if char == "\n" else _INSIDE
        self._threads, self.begin = {}, at + 1

    def copy(self) -> _Regex:
        other = _Regex(self._pattern, self._net)
        other._threads, other._before, other.begin = dict(self._threads), self._before, self.begin
        return other
