r"""Parses regular expressions.

The dialect is Python's `re` (3.11) with the semantics of `re.fullmatch`: every regular pattern that
`re` accepts denotes the same set of texts here. Supported are groups (also named), alternation, all
quantifiers (`*? +? {m,n}?` included, since laziness does not change the set), classes, escapes, `\d
\w \s` over all of Unicode, the flags `i s x a m u` at the start or scoped, and comments.
Look-around, `\b` and `\B` are taken where `looks` says so, and anchors in the middle then are looks
too. Rejected with their position: back-references, conditionals, atomic groups and possessive
quantifiers (they discard matches).

With `PatternDialect.ECMA` (the `pattern` keyword of JSON schemas) `\d \w \s .` are those of
ECMA-262; where `re` and ECMA-262 differ, a class has only the characters that both allow. Knows
syntax only; character sets are in `charset.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from lmprog.constraints import charset
from lmprog.constraints.constraint import Check, CompileLimits, CompileTooLong, never_stop
from lmprog.constraints.expression import (
    EMPTY,
    Alt,
    Anchor,
    Chars,
    Expression,
    Repeat,
    ahead,
    alt,
    behind,
    has_looks,
    lengths,
    seq,
    word_edge,
)
from lmprog.constraints.pattern_sets import NotRegular, PatternDialect, SetReader
from lmprog.errors import GrammarError

_FLAGS = "aiLmsux"
_SPACE = " \t\n\r\v\f"
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_KEY_LENGTH, _MAX_ALIKE, _LONGEST_KNOWN = 12, 4, 1000
"""Groups that are known by their text: how much of it they are found by, how many of the same
beginning, and of how many characters at most.
"""
_LOOKS = {"=": (ahead, True), "!": (ahead, False), "<=": (behind, True), "<!": (behind, False)}
_MOST_EMPTY_ROUNDS = 8
_REFUSED_GROUPS = {
    ">": "an atomic group",
    "(": "a conditional group",
}


class _Item(enum.Enum):
    """What the last parsed item is, which decides whether a quantifier may follow."""

    NONE = enum.auto()
    ATOM = enum.auto()
    REPEATED = enum.auto()


@dataclass(frozen=True, slots=True)
class _Flags:
    ignore_case: bool = False
    dot_all: bool = False
    verbose: bool = False
    ascii_only: bool = False
    multi_line: bool = False

    def changed(self, letters: str, to: bool) -> _Flags:
        names = {"i": "ignore_case", "s": "dot_all", "x": "verbose", "a": "ascii_only"}
        names["m"] = "multi_line"
        return replace(self, **{names[letter]: to for letter in letters if letter in names})


class Looks(enum.Enum):
    """Whether a pattern may look around, and whether its anchors do so as well."""

    REFUSED = enum.auto()
    TAKEN = enum.auto()
    ANCHORS_TOO = enum.auto()


class _KnownGroup(NamedTuple):
    text: str
    expression: Expression
    height: int
    """How many groups it has within each other, itself included."""


def parse_pattern(
    pattern: str,
    limits: CompileLimits,
    dialect: PatternDialect = PatternDialect.PYTHON,
    looks: Looks = Looks.REFUSED,
    check: Check = never_stop,
) -> Expression:
    """The expression of `pattern`, with its anchors. Raises GrammarError with the error's
    position.
    """
    if len(pattern) > limits.max_pattern_len:
        raise GrammarError(
            f"the pattern has {len(pattern)} characters; the limit is {limits.max_pattern_len}",
            position=limits.max_pattern_len,
        )
    return _Parser(pattern, limits, dialect, looks, check).parse()


def with_looks(
    resolve: Callable[[Expression], Expression],
    pattern: str,
    limits: CompileLimits,
    dialect: PatternDialect = PatternDialect.PYTHON,
    check: Check = never_stop,
) -> Expression:
    """What `resolve` makes of a pattern's expression, which may look around. Where it refuses an
    anchor, all anchors look around. Raises GrammarError.
    """
    try:
        return resolve(parse_pattern(pattern, limits, dialect, Looks.TAKEN, check))
    except CompileTooLong:
        raise
    except GrammarError as refused:
        try:
            return resolve(parse_pattern(pattern, limits, dialect, Looks.ANCHORS_TOO, check))
        except GrammarError:
            raise refused from None


class _Parser:
    """Recursive descent over one pattern."""

    def __init__(
        self,
        pattern: str,
        limits: CompileLimits,
        dialect: PatternDialect,
        looks: Looks,
        check: Check,
    ) -> None:
        self._text = pattern
        self._check = check
        self._looks = looks
        self._num_looks = 0
        """Those around the current place."""
        self._edges: dict[tuple[str, bool], Expression] = {}
        """Of words, by how they are written and the flag `a`: each is made once."""
        self._at = 0
        self._limits = limits
        self._sets = SetReader(pattern, dialect)
        self._dialect = dialect
        self._depth = self._deepest = 0
        self._group_names: set[str] = set()
        self._num_anchors = 0
        self._known_groups: dict[tuple[str, _Flags], list[_KnownGroup]] = {}
        """By their first characters."""

    def parse(self) -> Expression:
        flags = self._global_flags(_Flags())
        found = self._alternation(flags)
        if self._at < len(self._text):
            raise self._error("unbalanced parenthesis", self._at)
        return found

    def _error(self, message: str, position: int) -> GrammarError:
        return GrammarError(f"{message} at position {position} of the pattern", position=position)

    def _not_regular(self, message: str, position: int) -> NotRegular:
        return NotRegular(f"{message} at position {position} of the pattern", position=position)

    def _peek(self, what: str) -> bool:
        return self._text.startswith(what, self._at)

    def _global_flags(self, flags: _Flags) -> _Flags:
        """All `(?flags)` groups at the very start."""
        while True:
            if flags.verbose:
                self._skip_verbose()
            end = self._at + 2
            while end < len(self._text) and self._text[end] in _FLAGS:
                end += 1
            if not (self._peek("(?") and end > self._at + 2 and self._text.startswith(")", end)):
                return flags
            letters = self._text[self._at + 2 : end]
            self._check_flags(letters, self._at)
            flags = flags.changed(letters, True)
            self._at = end + 1

    def _check_flags(self, letters: str, position: int) -> None:
        if self._dialect is PatternDialect.ECMA:
            raise self._error("inline flags are not part of this dialect", position)
        if "L" in letters:
            raise self._error("the flag L is for byte patterns only", position)
        if "a" in letters and "u" in letters:
            raise self._error("the flags a and u exclude each other", position)

    def _skip_verbose(self) -> None:
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in _SPACE:
                self._at += 1
            elif char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end + 1
            else:
                return

    def _alternation(self, flags: _Flags) -> Expression:
        self._depth += 1
        self._deepest = max(self._deepest, self._depth)
        if self._depth > self._limits.max_nesting:
            raise self._error(f"groups nest deeper than {self._limits.max_nesting}", self._at)
        branches = [self._sequence(flags)]
        while self._peek("|"):
            self._at += 1
            branches.append(self._sequence(flags))
        self._depth -= 1
        return alt(branches)

    def _sequence(self, flags: _Flags) -> Expression:
        items: list[Expression] = []
        last = _Item.NONE
        while True:
            self._check()
            if flags.verbose:
                self._skip_verbose()
            if self._at >= len(self._text) or self._text[self._at] in "|)":
                return seq(items)
            bounds = self._quantifier(last)
            if bounds is not None:
                items[-1] = self._repeated(items[-1], *bounds)
                last = _Item.REPEATED
                continue
            atom = self._atom(flags)
            if atom is None:
                continue
            items.append(atom)
            last = _Item.NONE if isinstance(atom, Anchor) else _Item.ATOM

    def _repeated(self, item: Expression, low: int, high: int | None) -> Expression:
        if low == 0 or not has_looks(item) or lengths(item)[0]:
            return Repeat(item, low, high)
        if low > _MOST_EMPTY_ROUNDS:
            raise self._not_regular(
                f"a part that looks around, and may be empty, comes {low} times", self._at
            )
        return seq([*[item] * low, Repeat(item, 0, None if high is None else high - low)])

    def _quantifier(self, last: _Item) -> tuple[int, int | None] | None:
        """The bounds of the quantifier that starts here, or None (`{` may be a literal)."""
        begin = self._at
        bounds = _QUANTIFIERS.get(self._text[begin])
        if bounds is not None:
            self._at += 1
        else:
            bounds = self._braces()
        if bounds is None:
            return None
        if last is not _Item.ATOM:
            word = "nothing to repeat" if last is _Item.NONE else "multiple repeat"
            raise self._error(word, begin)
        if self._peek("?"):
            self._at += 1
        elif self._peek("+"):
            raise self._not_regular(
                "a possessive quantifier is not regular here and not supported", begin
            )
        low, high = bounds
        if high is not None and high < low:
            raise self._error("the minimum of a repetition is larger than its maximum", begin)
        for count in (low, high or 0):
            if count > self._limits.max_repeat:
                raise self._error(
                    f"a repetition of {count}; the limit is {self._limits.max_repeat}", begin
                )
        return bounds

    def _braces(self) -> tuple[int, int | None] | None:
        """`{m}`, `{m,}`, `{,n}` or `{m,n}`; on success the cursor is after it."""
        if self._text[self._at] != "{":
            return None
        end = self._text.find("}", self._at)
        body = self._text[self._at + 1 : end] if end > 0 else ""
        low, comma, high = body.partition(",")
        if not body or not all(
            part == "" or (part.isascii() and part.isdigit()) for part in (low, high)
        ):
            return None
        if self._dialect is PatternDialect.ECMA and not low:
            return None
        if len(low) > 12 or len(high) > 12:
            raise self._error(
                f"a repetition beyond the limit of {self._limits.max_repeat}", self._at
            )
        self._at = end + 1
        first = int(low or 0)
        return first, (first if not comma else int(high) if high else None)

    def _atom(self, flags: _Flags) -> Expression | None:
        """One atom; None if it matches nothing itself (comments)."""
        begin, char = self._at, self._text[self._at]
        if char == "(":
            return self._known_group(flags)
        if char in "^$":
            self._at += 1
            return self._anchor(char == "^", begin, char == "$", flags.multi_line)
        if (
            char == "\\"
            and self._dialect is PatternDialect.PYTHON
            and self._text[begin + 1 : begin + 2] in ("A", "Z")
        ):
            self._at += 2
            return self._anchor(self._text[begin + 1] == "A", begin, False, False)
        if char == "\\" and self._text[begin + 1 : begin + 2] in ("b", "B"):
            if self._looks is Looks.REFUSED:
                raise self._not_regular("a word boundary is not supported here", begin)
            self._at += 2
            self._num_anchors += 1
            key = self._text[begin + 1], flags.ascii_only
            if key not in self._edges:
                self._edges[key] = self._edge(*key)
            return self._edges[key]
        if char == ".":
            self._at += 1
            return Chars(self._sets.dot(flags.dot_all))
        ranges, self._at = self._sets.read(begin, flags.ignore_case, flags.ascii_only)
        return Chars(ranges) if ranges else Alt(())

    def _edge(self, letter: str, ascii_only: bool) -> Expression:
        edge = word_edge(self._sets.word(ascii_only), letter == "b")
        if letter == "b" or self._dialect is PatternDialect.ECMA:
            return edge
        some = Chars(charset.ALL)  # in an empty text `re` finds nothing at all
        return seq([edge, alt([behind(some), ahead(some)])])

    def _anchor(self, at_start: bool, begin: int, is_dollar: bool, of_line: bool) -> Expression:
        self._num_anchors += 1
        if self._looks is not Looks.ANCHORS_TOO and not self._num_looks:
            return Anchor(at_start, begin, of_line)
        if of_line:
            other = Chars(charset.complement(charset.of_text("\n")))
        else:
            other = Chars(charset.ALL)
        if at_start:
            return behind(other, False)
        end = ahead(other, False)
        if is_dollar and not of_line and self._dialect is PatternDialect.PYTHON:
            break_ = Repeat(Chars(charset.of_text("\n")), 0, 1)
            return ahead(seq([break_, end]))
        return end

    def _known_group(self, flags: _Flags) -> Expression | None:
        """A group, or the expression of one that is written alike. Anchors have a place, and names
        may come once, so groups with these are always read.
        """
        begin, depth, deepest = self._at, self._depth, self._deepest
        key = (self._text[begin : begin + _KEY_LENGTH], flags)
        known = self._known_groups.setdefault(key, [])
        for one in known:
            if depth + one.height <= self._limits.max_nesting and self._peek(one.text):
                self._at += len(one.text)
                self._deepest = max(deepest, depth + one.height)
                return one.expression
        counted = self._num_anchors, len(self._group_names)
        self._deepest = depth
        found = self._group(flags)
        height, self._deepest = self._deepest - depth, max(deepest, self._deepest)
        if found is not None and counted == (self._num_anchors, len(self._group_names)):
            text = self._text[begin : self._at]
            if len(known) < _MAX_ALIKE and len(text) <= _LONGEST_KNOWN:
                known.append(_KnownGroup(text, found, height))
        return found

    def _group(self, flags: _Flags) -> Expression | None:
        begin = self._at
        self._at += 1
        look = None
        if self._peek("?"):
            self._at += 1
            look = self._look(begin)
            if look is None and self._peek("#"):
                self._at = self._text.find(")", begin) + 1
                if self._at == 0:
                    raise self._error("missing ), unterminated comment", begin)
                return None
            if look is None:
                flags = self._group_kind(begin, flags)
        self._num_looks += look is not None
        found = self._alternation(flags)
        self._num_looks -= look is not None
        if not self._peek(")"):
            raise self._error("missing ), unterminated group", begin)
        self._at += 1
        if look is not None:
            self._num_anchors += 1
            kind, is_wanted = _LOOKS[look]
            return kind(found, is_wanted)
        # A separate group even if empty: a quantifier may follow it.
        return found if found != EMPTY else Repeat(EMPTY, 1, 1)

    def _look(self, begin: int) -> str | None:
        """The kind of look-around that begins here; the cursor is in it then."""
        found = next((one for one in _LOOKS if self._peek(one)), None)
        if found is None:
            return None
        if self._looks is Looks.REFUSED:
            raise self._not_regular("look-around is not supported here", begin)
        self._at += len(found)
        return found

    def _group_kind(self, begin: int, flags: _Flags) -> _Flags:
        """Parses what is between `(?` and the group's body."""
        kind = self._text[self._at : self._at + 1]
        if kind in _REFUSED_GROUPS:
            raise self._not_regular(
                f"{_REFUSED_GROUPS[kind]} is not regular here and not supported", begin
            )
        if kind == ":":
            self._at += 1
            return flags
        named = "P<" if self._dialect is PatternDialect.PYTHON else "<"
        if self._peek(named):
            self._group_name(begin, len(named))
            return flags
        if self._peek("P="):
            raise self._not_regular("a back-reference is not regular and not supported", begin)
        return self._scoped_flags(begin, flags)

    def _group_name(self, begin: int, skip: int) -> None:
        end = self._text.find(">", self._at)
        name = self._text[self._at + skip : end]
        if end < 0 or not name.isidentifier() or name in self._group_names:
            raise self._error("a missing, malformed or repeated group name", begin)
        self._group_names.add(name)
        self._at = end + 1

    def _scoped_flags(self, begin: int, flags: _Flags) -> _Flags:
        end = self._at
        while end < len(self._text) and self._text[end] in _FLAGS + "-":
            end += 1
        on, minus, off = self._text[self._at : end].partition("-")
        if not self._text.startswith(":", end) or end == self._at or "-" in off:
            raise self._error(
                "an unknown group, or flags that are not at the start of the pattern", begin
            )
        self._check_flags(on + off, begin)
        if (minus and not off) or set(off) & set("auL") or set(on) & set(off):
            raise self._error("these flags cannot be turned off here", begin)
        self._at = end + 1
        return (
            flags.changed(on.replace("u", ""), True)
            .changed(off, False)
            .changed("a" if "u" in on else "", False)
        )
