"""Reads calls of tools out of a text that comes in pieces: content to pass on, and whole calls.

What could still become a call is held back. A call is what the answer begins in the exact form,
with the name of a tool; everything else is content, and so is a call that the answer quotes
(`quoting.py`), or that a line of its text goes on behind.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from lmprog import wire
from lmprog.tool_calls.lexemes import is_tag, lexemes
from lmprog.tool_calls.quoting import QuotedPlaces
from lmprog.tool_calls.reading import (
    MALFORMED,
    Parameters,
    ParsedCall,
    begins_call,
    match_literal,
    read_any_call,
)


class CallStream:
    """One answer. `opening` was written before it began; `thought` is the tag of a thought that the
    prompt has left open. With `tells_wrong`, calls of other tools are given, too, and so is what
    was begun as a call and cannot be read, with its problem; else both are content. Where the tag
    that begins calls is one of `special`, the token is what begins a call, however it is quoted,
    but in a thought; spelled in other tokens it is text. `is_held`: a constraint lets nothing else
    than calls of these tools begin so, however it is spelled or quoted, but in a thought where one
    was open.
    """

    def __init__(
        self,
        form: wire.CallForm,
        tools: Parameters,
        opening: str = "",
        thought: str = "",
        tells_wrong: bool = False,
        special: Sequence[str] = (),
        is_held: bool = False,
    ) -> None:
        self._form = form
        self._is_held = is_held
        self._has_thoughts = bool(thought) or not is_held
        self._tools = tools
        self._mark = mark_of(form)
        self._tells_wrong = tells_wrong
        further = [one for one in lexemes(form.between + form.literals[0]) if is_tag(one)][:1]
        self._further = further[0] if further and further[0] in special else ""
        """The special tag that begins a further call."""
        self._is_token = self._mark.text in special
        self._has_tokens = bool(special)
        self._last_tag = _last_tag(form.end.strip() or form.literals[-1])
        """What a call, or the section of them, ends with, where that is a tag."""
        self._is_last_token = self._last_tag in special
        self._num_told = 0
        """Characters before the held text."""
        self._tags = {
            found.start() for tag in special for found in re.finditer(re.escape(tag), opening)
        }
        """Where special tokens begin."""
        self._places = QuotedPlaces(thought)
        self._unread: list[str] = []
        """Content that `_places` has not read."""
        self._num_read = 0
        """Characters of the held text that it has read."""
        self._is_quoted: bool | None = None
        """Whether the mark behind these is quoted; None: not looked at."""
        self._held = opening
        """Text that may be, or is, a call, and is not decided yet."""
        self._num_calls = 0
        self._is_open = False
        """Within the section of calls, behind a call."""
        self._is_behind = False
        """White space behind a call is no content."""
        self._is_over = False
        """No call can begin any more."""
        self._is_waiting = False
        """A call has begun: nothing is certain before one of `_closers` comes."""
        closing = (form.literals[-1].rstrip() or "}", form.end.rstrip())
        self._closers = frozenset(text[-1] for text in closing if text)
        self._may_lack = False
        """Further arguments may be missing at the end of the text."""
        self.is_cut = False
        """At the end: whether that came within what was begun as a call."""

    def feed(self, text: str, tags: Sequence[int] = ()) -> list[str | ParsedCall]:
        """What is certain now. `tags`: where in `text` special tokens begin."""
        if tags:
            begin = self._num_told + len(self._held)
            self._tags.update(begin + at for at in tags)
        self._held += text
        if self._is_waiting and self._closers.isdisjoint(text):
            return []
        return self._settled(is_end=False)

    def finish(self, output: wire.Output | None = None) -> list[str | ParsedCall]:
        """The text has ended: what is held is a call, or it is content after all. `output` says how
        it ended; None: where the model wanted.
        """
        self._may_lack = output is not None and _is_cut_short(self._form, output)
        found = self._settled(is_end=True)
        held, self._held = self._held, ""
        return [*found, held] if held and not (self._num_calls and not held.strip()) else found

    def _settled(self, is_end: bool) -> list[str | ParsedCall]:
        found: list[str | ParsedCall] = []
        while self._held and not self._is_over:
            if self._is_behind:
                self._drop(len(self._held) - len(self._held.lstrip()), is_content=False)
                self._is_behind = not self._held
                continue
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
        is_quoted = self._quotes(begin)
        if self._is_token or self._is_held:
            is_quoted = self._has_thoughts and self._places.is_thought
        if is_quoted:
            return self._passed_on(begin + max(1, len(self._mark.text)))
        place = match_literal(self._form.begin, self._held, begin)
        read = None if place is None else self._read(place, is_end)
        if read is not None:
            return self._begun(begin, *read, is_end)
        other = None if place is None else self._any(self._held, place)
        if other is not None:  # of a tool that may not be called
            return self._passed_on(other[1])
        given_up = self._given_up(begin)
        if given_up is not None or is_end:
            wrong = self._wrong(begin, place, given_up)
            if wrong is not None:
                return wrong
        if given_up is not None:
            return self._passed_on(given_up)
        self.is_cut = is_end
        self._is_waiting = not self._held[:begin].strip() and self._has_begun()
        return self._content(begin)

    def _begun(self, begin: int, call: ParsedCall, end: int, is_end: bool) -> _Step:
        """A section of calls begins with `call`, unless a line of text goes on behind it."""
        before = self._held[:begin]
        if not (self._is_token or self._is_held):
            goes_on = self._line_goes_on(end, is_end)
            if goes_on is None:
                return self._content(begin)
            if goes_on:
                return self._passed_on(end)
        self._drop(end, is_content=False)
        self._is_open, self._num_calls = True, self._num_calls + 1
        return _Step([before.rstrip(), call] if before.strip() else [call], True)

    def _line_goes_on(self, end: int, is_end: bool) -> bool | None:
        """Whether text follows the section of calls, the first of which ends at `end`, on its
        line: then it is part of a sentence. None: not known yet.
        """
        form, held = self._form, self._held
        has_end = bool(form.end.strip())
        while has_end or not self._ends_line(end):
            following = match_literal(form.between, held, end)
            read = None if following is None else self._read(following, is_end)
            if read is None:
                break
            end = read[1]
        closed = match_literal(form.end, held, end) if has_end else None
        end = end if closed is None else closed
        rest, likely = held[end:], [form.between + form.literals[0]]
        likely = [form.end, *likely] if has_end and closed is None else likely
        may_become = any(_may_become(rest, one) for one in likely if one.strip())
        if is_end:
            return bool(rest.strip()) and not may_become
        if self._ends_line(end) and (closed is not None or not has_end):
            return False
        begins = any(_begins(rest, one) for one in likely if one.strip())
        return None if not rest.strip() or may_become or begins else not self._ends_line(end)

    def _ends_line(self, end: int) -> bool:
        """Whether a line ends in the white space before `end`."""
        before = self._held[:end]
        return "\n" in before[len(before.rstrip()) :]

    def _wrong(self, begin: int, place: int | None, given_up: int | None) -> _Step | None:
        """The call that was begun and cannot be read, if such calls are reported. No later call
        counts, since nothing says where its values end.
        """
        if place is None or not begins_call(self._form, self._held, place):
            return None
        if not self._tells_wrong:
            self._is_over = given_up is not None
            return None
        before, text = self._held[:begin], self._held[begin:given_up]
        self._drop(begin + len(text), is_content=False)
        self._is_over, self.is_cut, self._num_calls = True, given_up is None, self._num_calls + 1
        call = ParsedCall("", text, problem=MALFORMED)
        return _Step([before.rstrip(), call] if before.strip() else [call], True)

    def _inside(self, is_end: bool) -> _Step:
        """Behind a call: another one, the end of the section, or, without an end, anything."""
        form = self._form
        between = match_literal(form.between, self._held, 0)
        if self._further and not self._is_begun_by_token(self._held.find(self._further)):
            between = None
        read = None if between is None else self._read(between, is_end)
        if read is not None:
            call, end = read
            self._drop(end, is_content=False)
            self._num_calls += 1
            return _Step([call], True)
        end_at = match_literal(form.end, self._held, 0) if form.end.strip() else None
        if end_at is not None:
            self._drop(end_at, is_content=False)
            self._is_open = False
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
        literal: a stop text, or the end of an answer that had no room left. Arguments with keys go
        on until that literal begins; such a call of an answer that was cut must have so much of it
        that no further argument can follow.
        """
        held, last = self._held, self._form.literals[-1]
        read = self._known(held, at)
        if read is not None or not is_end:
            return read
        keyed = self._form.keyed if self._may_lack else None
        further = [] if keyed is None else _further_openings(keyed)
        for size in range(len(last)):
            if any(_may_become(last[:size], one) for one in further):
                continue
            if held.rstrip().endswith(last[:size].rstrip()):
                cut = self._known(held.rstrip() + last[size:], at)
                if cut is not None:
                    return cut[0], len(held)
        return None

    def _known(self, text: str, at: int) -> tuple[ParsedCall, int] | None:
        """Of a tool that may be called, unless the others are to be told, too."""
        read = self._any(text, at)
        is_given = read is not None and (self._tells_wrong or read[0].name in self._tools)
        return read if is_given else None

    def _any(self, text: str, at: int) -> tuple[ParsedCall, int] | None:
        """The same for any tool. A value does not extend past a tag that is a token; where tags are
        not tokens, it does not extend past the end of one call and the beginning of the next, since
        the value of the next call would then end it.
        """
        told = self._num_told
        if self._is_held:
            tags = []
        elif self._has_tokens:
            tags = [tag - told for tag in self._tags if tag >= told]
        else:
            border = _border_of_calls(self._form)
            tags = [] if border is None else [found.start() for found in border.finditer(text)]
        return read_any_call(self._form, text, at, self._tools, tags)

    def _next_mark(self) -> tuple[int | None, int]:
        """Where calls may begin, or how much of the held text is certainly none."""
        mark, held = self._mark, self._held
        if not mark.only_at_start:
            begin = held.find(mark.text)
            while self._is_token and begin >= 0 and not self._is_begun_by_token(begin):
                begin = held.find(mark.text, begin + 1)
            return (begin, 0) if begin >= 0 else (None, len(held) - _overlap(held, mark.text))
        openings = self._openings()
        may_be = any(_may_become(held, one) or _begins(held, one) for one in openings)
        if may_be and not self._num_calls:
            return len(held) - len(held.lstrip()), 0
        self._is_over = True
        return None, len(held)

    def _is_begun_by_token(self, place: int) -> bool:
        return self._num_told + place in self._tags

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
        if self._is_held:
            return None
        at = self._held.find(self._last_tag, begin) if self._last_tag else -1
        while self._is_last_token and at >= 0 and not self._is_begun_by_token(at):
            at = self._held.find(self._last_tag, at + 1)
        return at + len(self._last_tag) if at >= 0 else None

    # --- content

    def _quotes(self, begin: int) -> bool:
        """Whether the answer quotes what begins there."""
        if self._is_quoted is None or begin != self._num_read:
            text = "".join(self._unread) + self._held[self._num_read : begin]
            self._is_quoted = self._places.read(text)
            self._unread, self._num_read = [], begin
        return self._is_quoted

    def _drop(self, size: int, is_content: bool) -> str:
        """Drops the beginning of the held text, which has been passed on."""
        dropped, self._held = self._held[:size], self._held[size:]
        self._is_behind |= not is_content
        self._num_told += size
        if is_content and size > self._num_read:
            self._unread.append(dropped[self._num_read :])
        elif not is_content and dropped.endswith("\n"):
            self._unread.append("\n")
        self._num_read = max(0, self._num_read - size)
        if self._unread or not is_content:
            self._is_quoted = None
        return dropped

    def _passed_on(self, size: int) -> _Step:
        """Content, up to behind what is no call."""
        self._is_over |= self._mark.only_at_start
        return self._content(size, goes_on=True)

    def _content(self, size: int, goes_on: bool = False) -> _Step:
        """The white space at its end waits: before a call it is no content."""
        certain = self._held[:size].rstrip()
        if not certain:
            return _Step([], False)
        return _Step([self._drop(len(certain), is_content=True)], goes_on)


class _Step(NamedTuple):
    parts: list[str | ParsedCall]
    goes_on: bool
    """Whether another pass over the held text may decide more of it."""


class CallMark(NamedTuple):
    """The text by which the beginning of a call is recognised."""

    text: str
    only_at_start: bool
    """Whether it is ordinary text and not a tag; then it counts only at the beginning of an answer.
    """


@functools.lru_cache(maxsize=64)
def mark_of(form: wire.CallForm) -> CallMark:
    opening = (form.begin + form.literals[0]).lstrip()
    first = next(iter(lexemes(opening)), "")
    if is_tag(first):
        return CallMark(first, False)
    if len(opening.strip()) >= 6 and opening[0] not in "{[":
        return CallMark(opening.strip(), False)
    return CallMark(opening, True)


def _last_tag(text: str) -> str:
    tags = [lexeme for lexeme in lexemes(text) if is_tag(lexeme)]
    return tags[-1] if tags else ""


@functools.lru_cache(maxsize=64)
def _border_of_calls(form: wire.CallForm) -> re.Pattern[str] | None:
    """What stands between two calls or sections of them, where values are written as they are: a
    last tag and a first one."""
    firsts = [next(iter(lexemes(one.strip())), "") for one in (form.literals[0], form.begin)]
    lasts = [_last_tag(one) for one in (form.literals[-1], form.end)]
    first = "|".join(re.escape(one) for one in firsts if is_tag(one))
    last = "|".join(re.escape(one) for one in lasts if one)
    if form.keyed is None or form.keyed.quoted or not (first and last):
        return None
    return re.compile(rf"(?:{last})\s*(?:{first})")


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _may_become(held: str, literal: str) -> bool:
    """Whether the held text may grow into the literal, whatever its white space."""
    return _squeezed(literal).startswith(_squeezed(held))


def _begins(held: str, literal: str) -> bool:
    return _squeezed(held).startswith(_squeezed(literal))


def _is_cut_short(form: wire.CallForm, output: wire.Output) -> bool:
    """Whether something else ended the text than the model, or the stop text that ends a call."""
    stop = output.stopped_by
    is_foreign = isinstance(stop, str) and not form.literals[-1].rstrip().endswith(stop)
    return output.finish == "length" or is_foreign


def _further_openings(keyed: wire.KeyedArguments) -> list[str]:
    """What an argument behind others, or the first one, begins with."""
    return [
        between + one.before_key
        for between in (keyed.between, "")
        for one in (keyed.string, keyed.other)
    ]


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
