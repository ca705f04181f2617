"""The judge of stop patterns: the nondeterministic automaton of `re`'s own parse, simulated with the
begin of each thread. Slow and plain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from re import _parser  # type: ignore[attr-defined]
from typing import Any

_INSIDE, _AFTER_BREAK, _AT_START = range(3)


class Simulation:
    """The possible matches of one pattern in a text that is read character by character."""

    def __init__(self, pattern: str) -> None:
        parsed = _parser.parse(pattern)
        self.tests: list[Callable[[str], bool] | None] = []
        self._ways: list[list[tuple[int, int]]] = []
        self._first = self._state()
        self._last = self._sequence(parsed, self._first, parsed.state.flags)
        self._threads: dict[int, int] = {}
        self._before = _AT_START

    def take(self, char: str, at: int) -> int | None:
        """The begin of the first match that ends with the character at `at`."""
        for state in self._closure(self._first):
            self._threads.setdefault(state, at)
        self._before = _AFTER_BREAK if char == "\n" else _INSIDE
        threads: dict[int, int] = {}
        for state, begin in self._threads.items():
            test = self.tests[state]
            if test is not None and test(char):
                for target in self._closure(state + 1):
                    threads[target] = min(begin, threads.get(target, begin))
        self._threads = threads
        return threads.get(self._last)

    @property
    def begin(self) -> int | None:
        """Where the first match that is under way began."""
        return min(self._threads.values(), default=None)

    def _state(self, test: Callable[[str], bool] | None = None) -> int:
        self.tests.append(test)
        self._ways.append([])
        return len(self.tests) - 1

    def _closure(self, state: int) -> list[int]:
        seen, todo = {state}, [state]
        while todo:
            for target, least in self._ways[todo.pop()]:
                if self._before >= least and target not in seen:
                    seen.add(target)
                    todo.append(target)
        return [one for one in sorted(seen) if self.tests[one] is not None or one == self._last]

    def _sequence(self, items: Iterable[tuple[Any, Any]], state: int, flags: int) -> int:
        for op, value in items:
            state = self._item(str(op), value, state, flags)
        return state

    def _item(self, op: str, value: Any, state: int, flags: int) -> int:
        if op in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            self._ways[state].append((self._state(_test_of(op, value, flags)), _INSIDE))
            return self._state()
        if op == "SUBPATTERN":
            _, added, removed, items = value
            return self._sequence(items, state, (flags | added) & ~removed)
        if op == "BRANCH":
            return self._joined(
                [self._sequence(one, self._after(state), flags) for one in value[1]]
            )
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
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
        assert op == "AT"
        assert str(value) in ("AT_BEGINNING", "AT_BEGINNING_STRING")
        is_line = flags & re.MULTILINE and str(value) == "AT_BEGINNING"
        return self._after(state, _AFTER_BREAK if is_line else _AT_START)

    def _after(self, state: int, least: int = _INSIDE) -> int:
        new = self._state()
        self._ways[state].append((new, least))
        return new

    def _joined(self, states: list[int]) -> int:
        end = self._state()
        for state in states:
            self._ways[state].append((end, _INSIDE))
        return end


def _test_of(op: str, value: Any, flags: int) -> Callable[[str], bool]:
    """One item of a parsed pattern, asked of `re` as a pattern of its own."""
    if op == "ANY":
        return lambda char: bool(flags & re.DOTALL) or char != "\n"
    kept = re.compile("x", flags & (re.IGNORECASE | re.ASCII)).flags & ~re.UNICODE
    items = [(str(kind), what) for kind, what in value] if op == "IN" else [("LITERAL", value)]
    negated = op == "NOT_LITERAL" or ("NEGATE", None) in items
    parts = []
    for kind, what in items:
        if kind == "LITERAL":
            parts.append(re.escape(chr(what)))
        elif kind == "RANGE":
            parts.append(f"{re.escape(chr(what[0]))}-{re.escape(chr(what[1]))}")
        elif kind == "CATEGORY":
            parts.append(_CLASSES[str(what)])
    one = re.compile(f"[{'^' if negated else ''}{''.join(parts)}]", kept)
    return lambda char: one.match(char) is not None


_CLASSES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}
