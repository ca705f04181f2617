"""Reads calls of tools out of a text that comes in pieces: content to pass on, and whole calls.

What could still become a call is held back. Only the exact form, with the name of a tool, is a
call; everything else is content.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from lmprog import wire
from lmprog.calls.lexemes import is_tag, lexemes
from lmprog.calls.reading import Parameters, ParsedCall, match_literal, read_call


class CallStream:
    """One answer. `opening` was written before it began."""

    def __init__(self, form: wire.CallForm, tools: Parameters, opening: str = "") -> None:
        self._form = form
        self._tools = tools
        self._mark = mark_of(form)
        self._held = opening
        """Text that may be, or is, a call, and is not decided yet."""
        self._num_calls = 0
        self._is_open = False
        """Within the section of calls, behind a call."""
        self._is_over = False
        """No call can begin any more."""
        self._is_waiting = False
        """A call has begun: nothing is certain before one of `_closers` comes."""
        closing = (form.literals[-1].rstrip() or "}", form.end.rstrip())
        self._closers = frozenset(text[-1] for text in closing if text)

    def feed(self, text: str) -> list[str | ParsedCall]:
        """What is certain now."""
        self._held += text
        if self._is_waiting and self._closers.isdisjoint(text):
            return []
        return self._settled(is_end=False)

    def finish(self) -> list[str | ParsedCall]:
        """The text has ended: what is held is a call, or it is content after all."""
        found = self._settled(is_end=True)
        held, self._held = self._held, ""
        return [*found, held] if held and not (self._num_calls and not held.strip()) else found

    def _settled(self, is_end: bool) -> list[str | ParsedCall]:
        found: list[str | ParsedCall] = []
        while self._held and not self._is_over:
            step = self._inside(is_end) if self._is_open else self._outside(is_end)
            found += step.parts
            if not step.goes_on:
                return found
        if self._is_over:
            held, self._held = self._held, ""
            found += [held] if held else []
        return found

    def _outside(self, is_end: bool) -> _Step:
        """Before a section of calls."""
        begin, certain = self._next_mark()
        self._is_waiting = False
        if begin is None:
            return self._content(certain)
        before = self._held[:begin]
        place = match_literal(self._form.begin, self._held, begin)
        read = None if place is None else self._read(place, is_end)
        if read is not None:
            call, end = read
            self._held, self._is_open, self._num_calls = self._held[end:], True, self._num_calls + 1
            return _Step([before.rstrip(), call] if before.strip() else [call], True)
        given_up = self._given_up(begin)
        if given_up is not None:
            return self._content(given_up, goes_on=True)
        self._is_waiting = begin == 0 and self._has_begun()
        return self._content(begin)

    def _inside(self, is_end: bool) -> _Step:
        """Behind a call: another one, the end of the section, or, without an end, anything."""
        form = self._form
        between = match_literal(form.between, self._held, 0)
        read = None if between is None else self._read(between, is_end)
        if read is not None:
            call, end = read
            self._held, self._num_calls = self._held[end:], self._num_calls + 1
            return _Step([call], True)
        end_at = match_literal(form.end, self._held, 0) if form.end.strip() else None
        if end_at is not None:
            self._held, self._is_open = self._held[end_at:], False
            return _Step([], True)
        following = form.between + form.literals[0]
        self._is_waiting = bool(following.strip()) and _begins(self._held, following)
        may_go_on = self._is_waiting or any(
            _may_become(self._held, one) for one in (following, form.end) if one.strip()
        )
        if may_go_on and not is_end:
            return _Step([], False)
        self._is_open = False
        if is_end and form.end.strip() and _may_become(self._held, form.end):
            self._held = ""
        return _Step([], True)

    def _read(self, at: int, is_end: bool) -> tuple[ParsedCall, int] | None:
        """The call at `at`. Where the text has ended, the call may lack the end of its last
        literal: a stop text, or the end of an answer that had no room left.
        """
        form, held, last = self._form, self._held, self._form.literals[-1]
        read = read_call(form, held, at, self._tools)
        if read is not None or not is_end:
            return read
        for size in range(len(last)):
            if held.rstrip().endswith(last[:size].rstrip()):
                cut = read_call(form, held.rstrip() + last[size:], at, self._tools)
                if cut is not None:
                    return cut[0], len(held)
        return None

    def _next_mark(self) -> tuple[int | None, int]:
        """Where calls may begin, or how much of the held text is certainly none."""
        mark, held = self._mark, self._held
        if not mark.only_at_start:
            begin = held.find(mark.text)
            return (begin, 0) if begin >= 0 else (None, len(held) - _overlap(held, mark.text))
        openings = self._openings()
        may_be = any(_may_become(held, one) or _begins(held, one) for one in openings)
        if may_be and not self._num_calls:
            return 0, 0
        self._is_over = True
        return None, len(held)

    def _openings(self) -> list[str]:
        """What a text that can only begin with a call begins with."""
        if self._mark.text:
            return [self._mark.text]
        return [name + self._form.literals[1] for name in self._tools]

    def _has_begun(self) -> bool:
        """Whether the held text has all of a call's opening."""
        openings = self._openings() if self._mark.only_at_start else [self._mark.text]
        return any(_begins(self._held, one) for one in openings)

    def _given_up(self, begin: int) -> int | None:
        """Up to where the text behind a mark is no call, since its last tag came."""
        closing = self._form.end.strip() or self._form.literals[-1].strip()
        tags = [lexeme for lexeme in lexemes(closing) if is_tag(lexeme)]
        if not tags:
            return None
        at = self._held.find(tags[-1], begin)
        return at + len(tags[-1]) if at >= 0 else None

    def _content(self, size: int, goes_on: bool = False) -> _Step:
        """The white space at its end waits: before a call it is no content."""
        certain = self._held[:size].rstrip()
        if not certain:
            return _Step([], False)
        self._held = self._held[len(certain) :]
        return _Step([certain], goes_on)


class _Step(NamedTuple):
    parts: list[str | ParsedCall]
    goes_on: bool
    """Whether the held text may have more to settle."""


class CallMark(NamedTuple):
    """By what a text shows that a call begins."""

    text: str
    only_at_start: bool
    """It is no tag, so that it counts at the beginning of an answer only."""


@functools.lru_cache(maxsize=64)
def mark_of(form: wire.CallForm) -> CallMark:
    opening = (form.begin + form.literals[0]).lstrip()
    first = next(iter(lexemes(opening)), "")
    if is_tag(first):
        return CallMark(first, False)
    if len(opening.strip()) >= 6 and opening[0] not in "{[":
        return CallMark(opening.strip(), False)
    return CallMark(opening, True)


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _may_become(held: str, literal: str) -> bool:
    """Whether the held text may grow into the literal, whatever its white space."""
    return _squeezed(literal).startswith(_squeezed(held))


def _begins(held: str, literal: str) -> bool:
    return _squeezed(held).startswith(_squeezed(literal))


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    return next(
        (
            size
            for size in range(min(len(text), len(mark) - 1), 0, -1)
            if text.endswith(mark[:size])
        ),
        0,
    )
