"""Parses GBNF, the grammar format of llama.cpp, into rules. GBNF has no lexer.

Supports literals, classes, `.`, groups, `* + ?`, `{m,n}` and comments: all but references to
tokens. What is wrong is an error with the line and column of the user's text.
"""

from __future__ import annotations

import re

from lmprog.constraints import charset
from lmprog.constraints.charset import CharSet
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.expression import Chars
from lmprog.constraints.expression import text as expression_of
from lmprog.constraints.grammar.rules import (
    NeedsLlguidance,
    Part,
    RuleChoice,
    RuleRef,
    RuleRounds,
    RuleSequence,
    RuleTerminal,
    refused_at,
)
from lmprog.errors import GrammarError

START = "root"

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE_IN_LINE = re.compile(r"(?:[ \t]|#[^\n]*)*")
_BRACES = re.compile(r"\{\s*(\d+)\s*(,?)\s*(\d*)\s*\}")
_SHORT = {
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "\\": "\\",
    '"': '"',
    "[": "[",
    "]": "]",
    "-": "-",
    "^": "^",
    "/": "/",
}
_HEX = {"x": 2, "u": 4, "U": 8}
_ROUNDS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def read_gbnf(text: str, limits: CompileLimits) -> dict[str, Part]:
    """Raises GrammarError for malformed grammars, NeedsLlguidance for counts beyond the limits."""
    return _Reader(text, limits).rules()


class _Reader:
    def __init__(self, text: str, limits: CompileLimits) -> None:
        self._text = text
        self._limits = limits
        self._at = 0
        self._depth = 0
        self._used: dict[str, int] = {}
        """Where each rule is mentioned first."""

    def _refuse(self, why: str, at: int | None = None) -> GrammarError:
        return refused_at(self._text, self._at if at is None else at, why)

    def _skip(self, pattern: re.Pattern[str] = _SPACE) -> None:
        found = pattern.match(self._text, self._at)
        assert found is not None, "a run of blanks may be empty"
        self._at = found.end()

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def rules(self) -> dict[str, Part]:
        found: dict[str, Part] = {}
        self._skip()
        while self._at < len(self._text):
            name = self._name()
            self._skip(_SPACE_IN_LINE)
            if not self._text.startswith("::=", self._at):
                raise self._refuse("`::=` is expected")
            if name in found:
                raise self._refuse(f"the rule {name!r} is there twice")
            self._at += 3
            self._skip()
            found[name] = self._alternatives(nested=False)
            if self._at < len(self._text) and self._peek() not in "\r\n":
                raise self._refuse("a line break is expected")
            self._skip()
        if START not in found:
            raise self._refuse(f"there is no rule {START!r}", len(self._text))
        for name, at in self._used.items():
            if name not in found:
                raise self._refuse(f"there is no rule {name!r}", at)
        return found

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            raise self._refuse("a name is expected")
        self._at = found.end()
        return found.group()

    def _alternatives(self, nested: bool) -> Part:
        self._depth += 1
        if self._depth > self._limits.max_nesting:
            raise self._refuse("groups nest too deeply")
        ways = [self._sequence(nested)]
        while True:
            here = self._at
            self._skip()  # a line may start with a bar
            if self._peek() != "|":
                self._at = self._at if nested else here
                break
            self._at += 1
            self._skip()
            ways.append(self._sequence(nested))
        self._depth -= 1
        return ways[0] if len(ways) == 1 else RuleChoice(tuple(ways))

    def _sequence(self, nested: bool) -> Part:
        blanks = _SPACE if nested else _SPACE_IN_LINE
        items: list[Part] = []
        self._skip(blanks)
        while self._at < len(self._text) and self._peek() not in "|)\r\n":
            items.append(self._rounds(self._one(), blanks))
            self._skip(blanks)
        return items[0] if len(items) == 1 else RuleSequence(tuple(items))

    def _one(self) -> Part:
        char = self._peek()
        if char == '"':
            return self._literal()
        if char == "[":
            return RuleTerminal("", Chars(self._class()))
        if char == ".":
            self._at += 1
            return RuleTerminal("", Chars(charset.ALL))
        if char == "(":
            self._at += 1
            found = self._alternatives(nested=True)
            self._skip()
            if self._peek() != ")":
                raise self._refuse("`)` is expected")
            self._at += 1
            return found
        if char == "<" or self._text.startswith("!<", self._at):
            raise self._refuse("references to tokens are not supported")
        begin, name = self._at, self._name()
        self._used.setdefault(name, begin)
        return RuleRef(name)

    def _rounds(self, item: Part, blanks: re.Pattern[str]) -> Part:
        while True:
            here = self._at
            self._skip(blanks)
            bounds = _ROUNDS.get(self._peek())
            if bounds is not None:
                self._at += 1
            elif self._peek() == "{":
                bounds = self._braces()
            else:
                self._at = here
                return item
            item = RuleRounds(item, *bounds)

    def _braces(self) -> tuple[int, int | None]:
        found = _BRACES.match(self._text, self._at)
        if found is None:
            raise self._refuse("a malformed count")
        self._at = found.end()
        low, comma, high = found.groups()
        bounds = int(low[:12]), (int(low[:12]) if not comma else int(high[:12]) if high else None)
        most = bounds[0] if bounds[1] is None else bounds[1]
        if most < bounds[0]:
            raise self._refuse("a count that ends before it begins")
        if most > self._limits.max_repeat:
            raise NeedsLlguidance(f"the count {most:,} is more than {self._limits.max_repeat:,}")
        return bounds

    def _literal(self) -> Part:
        self._at += 1
        out = []
        while self._peek() != '"':
            out.append(self._char())
        self._at += 1
        return RuleTerminal("", expression_of("".join(out)))

    def _class(self) -> CharSet:
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges = []
        while self._peek() != "]":
            low = self._char()
            high = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._char()
            if high < low:
                raise self._refuse("a range that ends before it begins")
            ranges.append((ord(low), ord(high)))
        self._at += 1
        found = charset.charset(ranges)
        return charset.complement(found) if negated else found

    def _char(self) -> str:
        char = self._peek()
        if not char:
            raise self._refuse("an unfinished literal or class")
        self._at += 1
        if char != "\\":
            return char
        kind = self._peek()
        self._at += 1
        if kind in _HEX:
            digits = self._text[self._at : self._at + _HEX[kind]]
            code = int(digits, 16) if re.fullmatch(f"[0-9A-Fa-f]{{{_HEX[kind]}}}", digits) else -1
            if code < 0 or code > charset.MAX_CODE or 0xD800 <= code <= 0xDFFF:
                raise self._refuse("a malformed escape")
            self._at += len(digits)
            return chr(code)
        if kind not in _SHORT:
            raise self._refuse("an unknown escape")
        return _SHORT[kind]
