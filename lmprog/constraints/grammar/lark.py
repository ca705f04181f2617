"""Parses a commonly used subset of Lark grammars into rules, terminals and ignored terminals.

Supports rules and terminals with `| * + ? [] () ~n..m`, strings and regular expressions with flags,
ranges, aliases, `%ignore`, and `%import common.X` for the usual terminals. Templates, terminal
priorities, `%declare` and similar directives are left to llguidance. Knows syntax; the lexer's
semantics are in `lexing.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from lmprog.constraints import charset
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.expression import Chars, Expression, Repeat, alt, seq, whole
from lmprog.constraints.expression import text as expression_of
from lmprog.constraints.grammar.rules import (
    NotOurs,
    Part,
    RuleChoice,
    RuleRef,
    RuleRounds,
    RuleSequence,
    RuleTerminal,
)
from lmprog.constraints.pattern import parse_pattern
from lmprog.errors import GrammarError

START = "start"

T = TypeVar("T")

_TOKEN = re.compile(
    r"(?P<skip>[ \t\f\r]+|\s*//[^\n]*|\s*\#[^\n]*)|(?P<line>\n)"
    r'|(?P<string>"(?:\\.|[^"\\\n])*"i?)|(?P<regex>/(?![/*])(?:\\.|[^/\\\n])+/[a-z]*)'
    r"|(?P<name>[!?]*_*[A-Za-z][A-Za-z0-9_]*)|(?P<number>-?\d+)|(?P<directive>%[a-z]+)|"
    r"(?P<mark>->|\.\.|[:|()\[\]*+?~.,])"
)
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "\\": "\\", '"': '"', "/": "/"}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)")
_ROUNDS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": "[ \\t]+",
    "WS": "[ \\t\\f\\r\\n]+",
    "NEWLINE": "(\\r?\\n)+",
}


@dataclass(frozen=True, slots=True)
class LarkGrammar:
    rules: dict[str, Part]
    ignored: tuple[RuleTerminal, ...]


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    begins_line: bool


def read_lark(text: str, limits: CompileLimits) -> LarkGrammar:
    """Raises NotOurs, also for malformed grammars."""
    return _Reader(_tokens(text), limits).grammar()


def _tokens(text: str) -> list[_Token]:
    out: list[_Token] = []
    at, fresh = 0, True
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise NotOurs(f"{text[at : at + 10]!r} at position {at} of the grammar")
        at = found.end()
        kind = found.lastgroup or ""
        if kind == "line" or "\n" in found.group():
            fresh = True
        elif kind != "skip":
            out.append(_Token(kind, found.group(), fresh))
            fresh = False
    return out


class _Reader:
    def __init__(self, tokens: list[_Token], limits: CompileLimits) -> None:
        self._tokens = [*tokens, _Token("end", "", True)]
        self._limits = limits
        self._at = 0
        self._bodies: dict[str, int] = {}  # where the definition of each terminal starts
        self._terminals: dict[str, Expression] = {}
        self._open: set[str] = set()

    def grammar(self) -> LarkGrammar:
        rules: dict[str, int] = {}
        ignored: list[int] = []
        while (
            self._now.kind != "end"
        ):  # where each definition starts; terminals may be used before they are defined
            if self._now.kind == "directive":
                self._directive(ignored)
            else:
                self._definition(rules)
        made = {name: self._from(begin, self._rule_alternatives) for name, begin in rules.items()}
        return LarkGrammar(made, tuple(self._ignored(begin) for begin in ignored))

    @property
    def _now(self) -> _Token:
        return self._tokens[self._at]

    def _refuse(self, why: str) -> NotOurs:
        return NotOurs(f"{why} at {self._now.text!r} of the grammar")

    def _take(self, text: str) -> bool:
        is_there = self._now.kind == "mark" and self._now.text == text and not self._ends
        self._at += is_there
        return is_there

    def _expect(self, kind: str) -> str:
        if self._now.kind != kind:
            raise self._refuse(f"a {kind} is expected")
        self._at += 1
        return self._tokens[self._at - 1].text

    @property
    def _ends(self) -> bool:
        """Whether the next definition starts here."""
        now = self._now
        if now.kind in ("end", "directive"):
            return True
        following = [token.text for token in self._tokens[self._at + 1 : self._at + 4]]
        return (
            now.kind == "name"
            and now.begins_line
            and (following[:1] == [":"] or following[::2] == [".", ":"])
        )

    def _skip_body(self) -> None:
        while not self._ends:
            self._at += 1

    def _definition(self, rules: dict[str, int]) -> None:
        name = self._expect("name").lstrip("!?")
        is_terminal = name.strip("_").isupper()
        if self._now.text == ".":
            if is_terminal:
                raise self._refuse("priorities of terminals are not supported")
            self._at += 2
        if self._expect("mark") != ":":
            raise self._refuse("`:` is expected")
        known = self._bodies if is_terminal else rules
        if name in known or name in self._terminals:
            raise self._refuse(f"{name!r} is defined twice")
        known[name] = self._at
        self._skip_body()

    def _directive(self, ignored: list[int]) -> None:
        kind = self._expect("directive")
        if kind == "%ignore":
            ignored.append(self._at)
            self._skip_body()
        elif kind == "%import":
            words: list[str] = []
            while not self._ends and not (words and self._now.begins_line):
                words.append(self._now.text)
                self._at += 1
            self._import(words)
        else:
            raise self._refuse(f"{kind} is not supported")

    def _import(self, words: list[str]) -> None:
        """Parses `common.X`, `common.X -> Y` or `common (X, Y)`."""
        if len(words) > 2 and words[:2] == ["common", "."]:
            pairs = {words[2]: words[4] if len(words) == 5 and words[3] == "->" else words[2]}
            rest = words[5:] if len(words) >= 5 else words[3:]
        else:
            pairs = {word: word for word in words[2:-1] if word != ","}
            rest = [] if words[:2] == ["common", "("] and words[-1:] == [")"] else words
        if rest or not pairs or not pairs.keys() <= _COMMON.keys():
            raise NotOurs(f"%import {' '.join(words)} is not supported")
        for name, alias in pairs.items():
            self._terminals[alias] = whole(parse_pattern(_COMMON[name], self._limits))

    def _from(self, begin: int, read: Callable[[], T]) -> T:
        """Parses at another place, up to the next definition."""
        here, self._at = self._at, begin
        found = read()
        if not self._ends:
            raise self._refuse("something is left over")
        self._at = here
        return found

    def _ignored(self, begin: int) -> RuleTerminal:
        return RuleTerminal(f"%ignore {begin}", self._from(begin, self._terminal_alternatives))

    def _rule_alternatives(self) -> Part:
        ways = [self._rule_sequence()]
        while self._take("|"):
            ways.append(self._rule_sequence())
        return ways[0] if len(ways) == 1 else RuleChoice(tuple(ways))

    def _rule_sequence(self) -> Part:
        items: list[Part] = []
        while not self._ends and self._now.text not in ("|", ")", "]", "->"):
            item = self._rule_atom()
            bounds = self._bounds()
            items.append(item if bounds is None else RuleRounds(item, *bounds))
        if self._take("->"):
            self._expect("name")
        return items[0] if len(items) == 1 else RuleSequence(tuple(items))

    def _rule_atom(self) -> Part:
        if self._take("("):
            found = self._rule_alternatives()
            if not self._take(")"):
                raise self._refuse("`)` is expected")
            return found
        if self._take("["):
            found = self._rule_alternatives()
            if not self._take("]"):
                raise self._refuse("`]` is expected")
            return RuleRounds(found, 0, 1)
        name = self._now.text
        if self._now.kind == "name" and not name.strip("_").isupper():
            self._at += 1
            return RuleRef(name.lstrip("!?"))
        begin = self._at
        expression = self._terminal_atom()
        return RuleTerminal(
            "".join(token.text for token in self._tokens[begin : self._at]), expression
        )

    def _bounds(self) -> tuple[int, int | None] | None:
        """A quantifier, if there is one here."""
        if self._now.kind == "mark" and self._now.text in _ROUNDS:
            self._at += 1
            return _ROUNDS[self._tokens[self._at - 1].text]
        if not self._take("~"):
            return None
        low = int(self._expect("number")[:12])
        high = int(self._expect("number")[:12]) if self._take("..") else low
        if not 0 <= low <= high <= self._limits.max_repeat:
            raise self._refuse("a count beyond its limits")
        return low, high

    def _terminal_alternatives(self) -> Expression:
        ways = [self._terminal_sequence()]
        while self._take("|"):
            ways.append(self._terminal_sequence())
        return alt(ways)

    def _terminal_sequence(self) -> Expression:
        items: list[Expression] = []
        while not self._ends and self._now.text not in ("|", ")", "]"):
            item = self._terminal_atom()
            bounds = self._bounds()
            items.append(item if bounds is None else Repeat(item, *bounds))
        return seq(items)

    def _terminal_atom(self) -> Expression:
        for opening, closing in (("(", ")"), ("[", "]")):
            if self._take(opening):
                found = self._terminal_alternatives()
                if not self._take(closing):
                    raise self._refuse(f"`{closing}` is expected")
                return found if opening == "(" else Repeat(found, 0, 1)
        token = self._now
        self._at += 1
        if token.kind == "string":
            return self._string(token.text)
        if token.kind == "regex":
            body, _, flags = token.text[1:].rpartition("/")
            if set(flags) - set("imsxu"):
                raise self._refuse("an unknown flag")
            return self._pattern(body.replace("\\/", "/"), flags.replace("m", "").replace("u", ""))
        if token.kind == "name" and token.text.strip("_").isupper():
            return self._named(token.text)
        raise self._refuse("a terminal is expected before this")

    def _named(self, name: str) -> Expression:
        found = self._terminals.get(name)
        if found is None:
            if name not in self._bodies or name in self._open:
                raise NotOurs(f"the terminal {name} is not defined, or by itself")
            self._open.add(name)
            found = self._terminals[name] = self._from(
                self._bodies[name], self._terminal_alternatives
            )
            self._open.discard(name)
        return found

    def _string(self, quoted: str) -> Expression:
        body, _, flag = quoted[1:].rpartition('"')
        text = _ESCAPE.sub(self._unescaped, body)
        if self._take(".."):
            last = _ESCAPE.sub(self._unescaped, self._expect("string")[1:-1])
            if len(text) != 1 or len(last) != 1 or last < text or flag:
                raise self._refuse("a malformed range")
            return Chars(charset.charset([(ord(text), ord(last))]))
        return self._pattern(re.escape(text), "i") if flag else expression_of(text)

    def _unescaped(self, found: re.Match[str]) -> str:
        kind = found.group(1)
        if len(kind) > 1:
            code = int(kind[1:], 16)
            if code > charset.MAX_CODE or 0xD800 <= code <= 0xDFFF:
                raise self._refuse("a malformed escape")
            return chr(code)
        if kind not in _SHORT:
            raise self._refuse(f"the escape \\{kind} is not supported")
        return _SHORT[kind]

    def _pattern(self, body: str, flags: str) -> Expression:
        try:
            return whole(parse_pattern(f"(?{flags}){body}" if flags else body, self._limits))
        except GrammarError as error:
            raise NotOurs(f"the regular expression /{body[:40]}/: {error.message}") from error
