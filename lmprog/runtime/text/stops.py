"""Finds stops in a growing text, which is read a piece at a time.

Stop strings are one Aho-Corasick automaton; a stop regex is two tables (`constraints.search`), so
that a character costs the same whatever the pattern is, and a match may be of any length. Its
syntax is that of `re` without what depends on text ahead or behind: `$`, `\\b`, lookarounds, back
references, possessive and atomic groups. It must not match the empty text. As a stop ends a text
at once, `+` and `*` are never greedy here.

Knows characters; knows no tokens and no streams.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lmprog.constraints.constraint import Check, CompileTooLong, never_stop
from lmprog.constraints.pattern_sets import NotRegular
from lmprog.constraints.search import AFTER_BREAK, AT_START, INSIDE, TextSearch, text_search
from lmprog.errors import GrammarError, InvalidParameter, NotSupported

_MAX_STRING_NETS = 16
"""Nets of stop strings that are kept; of 16 strings of 256 characters one takes a megabyte."""
_LOOKED_AT = 64
"""Characters back to which a possible match is looked for after every piece. Where one began
earlier, this is done so seldom that the whole costs `_LOOKS` look-ups a character."""
_LOOKS = 16

Stop: TypeAlias = tuple[int, int, str]
"""Where it ends, where it begins, and its string or pattern. The least of several counts."""
Counts: TypeAlias = Callable[[int], bool]
"""Whether a stop that begins at a position ends the text."""


class StopWatch(Protocol):
    """A cursor that finds stops of one kind; compiled automata are shared."""

    begin: int
    """No possible stop begins before; the text's end where there is none. Of strings it is where
    the earliest possible one begins, of a regex too unless that is far back."""

    def read(self, new: str, at: int, counts: Counts) -> Stop | None:
        """Reads `new`, which begins at position `at`, up to the first stop that counts. Of those
        that end at one character, the one that began first is asked for."""
        ...

    def skip(self, new: str, at: int) -> None:
        """Reads a piece in which no stop may begin; drops matches under way."""
        ...

    def copy(self) -> StopWatch: ...


def watch_strings(stops: tuple[str, ...]) -> StopWatch:
    """A watch for non-empty strings."""
    return _Strings(_string_net(stops))


def stop_search(pattern: str, check: Check = never_stop) -> TextSearch:
    """The tables of one regex. Raises InvalidParameter for an invalid one, or one beyond the
    limits, NotSupported as said above, and what `check` raises.
    """
    try:
        return text_search(pattern, check)
    except NotRegular as error:
        raise NotSupported(
            f"the stop regex {pattern!r} depends on text behind or ahead; a stop is found while "
            f"the text still grows: {error.message}."
        ) from error
    except CompileTooLong:
        raise
    except GrammarError as error:
        raise InvalidParameter(
            f"the stop regex {pattern!r} is refused: {error.message}.",
            name="stop_regex",
            value=pattern,
            allowed="regular expressions of at least one character that take few states",
        ) from error


def watch_search(search: TextSearch) -> StopWatch:
    """A watch for one regex."""
    return _Searching(search)


# --- stop strings


@dataclass(frozen=True, slots=True)
class _StringNet:
    """Aho-Corasick: a state is the longest end of the text that begins a stop."""

    moves: list[dict[str, int]]
    falls: list[int]
    depths: list[int]
    ends: list[str | None]
    """The longest stop string that is complete in this state."""


@functools.lru_cache(maxsize=_MAX_STRING_NETS)
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

    def read(self, new: str, at: int, counts: Counts) -> Stop | None:
        moves, falls, ends, state = self._net.moves, self._net.falls, self._net.ends, self._state
        for end, char in enumerate(new, at + 1):
            while state and char not in moves[state]:
                state = falls[state]
            state = moves[state].get(char, 0)
            stop = ends[state]
            if stop is not None and counts(end - len(stop)):
                return end, end - len(stop), stop
        self._state = state
        self.begin = at + len(new) - self._net.depths[state]
        return None

    def skip(self, new: str, at: int) -> None:
        self._state, self.begin = 0, at + len(new)

    def copy(self) -> _Strings:
        return _Strings(self._net, self._state, self.begin)


# --- stop regexes


class _Searching:
    """The possible matches of one stop regex."""

    __slots__ = ("_before", "_looks", "_search", "_state", "_text", "begin")

    def __init__(self, search: TextSearch) -> None:
        self._search = search
        self._state = search.starts[AT_START]
        self._text = ""
        """From `begin` on."""
        self._before = AT_START
        """What precedes it."""
        self._looks = 0
        """Look-ups that were allowed and not made."""
        self.begin = 0

    def read(self, new: str, at: int, counts: Counts) -> Stop | None:
        search, state = self._search, self._state
        moves, ascii_classes, class_of = search.forward, search.ascii_classes, search.class_of
        first_final = search.first_final
        if not self._text:
            self.begin = at
        for index, char in enumerate(new, 1):
            state = moves[state + (ascii_classes[ord(char)] if char < "\x80" else class_of(char))]
            if state >= first_final:
                text = self._text + new[:index]
                begin = self.begin + search.first_begin(text, search.of_ends, self._before)
                if counts(begin):
                    return at + index, begin, search.pattern
        self._state = state
        self._text += new
        self._looks += _LOOKS * len(new)
        if not search.is_under_way[state // search.width]:
            self._forget(len(self._text))
        elif len(self._text) <= max(_LOOKED_AT, self._looks):
            self._looks = 0
            self._forget(search.first_begin(self._text, search.of_any, self._before))
        return None

    def _forget(self, count: int) -> None:
        """No match under way begins in the first `count` characters."""
        if count:
            self._before = AFTER_BREAK if self._text[count - 1] == "\n" else INSIDE
            self._text = self._text[count:]
            self.begin += count

    def skip(self, new: str, at: int) -> None:
        if new:
            self._before = AFTER_BREAK if new[-1] == "\n" else INSIDE
            self._state, self._text = self._search.starts[self._before], ""
            self.begin = at + len(new)

    def copy(self) -> _Searching:
        other = _Searching(self._search)
        other._state, other._text, other._before = self._state, self._text, self._before
        other._looks, other.begin = self._looks, self.begin
        return other
