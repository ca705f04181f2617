"""Parses a commonly used subset of Lark grammars into rules, terminals and ignored terminals.

Supports rules and terminals with `| * + ? [] () ~n..m`, strings and regular expressions with flags,
ranges, aliases, templates, priorities, `%ignore`, and `%import common.X` for all of Lark's common
terminals. `%declare` and similar directives are left to llguidance. Knows syntax; the lexer's
semantics are in `read.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from lmprog.constraints import charset
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.expression import Chars, Expression, Repeat, alt, seq, whole
from lmprog.constraints.expression import text as expression_of
from lmprog.constraints.grammar.rules import (
    NeedsLlguidance,
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

_SHORT = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "\\": "\\", '"': '"', "/": "/"}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)")
_ENDS_SEQUENCE = ("|", ")", "]", "}", ",", "->")
_ROUNDS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MAX_INSTANCES = 1000
"""Of templates with their arguments."""


@dataclass(frozen=True, slots=True)
class LarkGrammar:
    rules: dict[str, Part]
    ignored: tuple[RuleTerminal, ...]
    priorities: Mapping[str, int]
    """Of terminals that stand in rules by a name with a priority other than 0."""


@dataclass(frozen=True, slots=True)
class _Template:
    """Where the body of a template begins, and the names of its parameters."""

    begin: int
    parameters: tuple[str, ...]


def read_lark(text: str, limits: CompileLimits) -> LarkGrammar:
    """Raises NeedsLlguidance, also for malformed grammars."""
    return _Reader(lark_tokens(text), limits).grammar()


class _Reader:
    def __init__(self, tokens: list[LarkToken], limits: CompileLimits) -> None:
        self._tokens = [*tokens, LarkToken("end", "", True, tokens[-1].line if tokens else 1)]
        self._limits = limits
        self._at = 0
        self._bodies: dict[str, int] = {}  # where the definition of each terminal starts
        self._terminals: dict[str, Expression] = {}
        self._sizes: dict[str, int] = {}  # of terminals, those that they are made of included
        self._read = 0  # characters of terminals, counted again wherever they are named
        self._open: set[str] = set()
        self._templates: dict[str, _Template] = {}
        self._bound: dict[str, Part] = {}  # the arguments of the template that is being read
        self._made: dict[str, Part] = {}  # rules, and templates with their arguments
        self._priorities: dict[str, int] = {}

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
        for name, begin in rules.items():
            self._made[name] = self._from(begin, self._rule_alternatives)
        ignored_ones = tuple(self._ignored(begin) for begin in ignored)
        return LarkGrammar(self._made, ignored_ones, self._priorities)

    @property
    def _now(self) -> LarkToken:
        return self._tokens[self._at]

    def _refuse(self, why: str) -> NeedsLlguidance:
        return NeedsLlguidance(
            f"{why} at {self._now.text!r} in line {self._now.line} of the grammar"
        )

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
        if now.kind != "name" or not now.begins_line:
            return False
        at = self._at + 1
        if self._tokens[at].text == "{":  # a template: its use ends otherwise than its definition
            while self._tokens[at].text not in ("}", ":") and self._tokens[at].kind != "end":
                at += 1
            at += self._tokens[at].text == "}"
        following = [token.text for token in self._tokens[at : at + 3]]
        return following[:1] == [":"] or following[::2] == [".", ":"]

    def _skip_body(self) -> None:
        while not self._ends:
            self._at += 1

    def _definition(self, rules: dict[str, int]) -> None:
        name = self._expect("name").lstrip("!?")
        is_terminal = name.strip("_").isupper()
        parameters = self._parameters()
        if self._take("."):
            priority = int(self._expect("number")[:12])
            if is_terminal and priority:
                self._priorities[name] = priority
        if self._expect("mark") != ":":
            raise self._refuse("`:` is expected")
        known = self._bodies if is_terminal else rules
        if name in known or name in self._terminals or name in self._templates:
            raise self._refuse(f"{name!r} is defined twice")
        if parameters and is_terminal:
            raise self._refuse("a terminal cannot be a template")
        if parameters:
            self._templates[name] = _Template(self._at, parameters)
        else:
            known[name] = self._at
        self._skip_body()

    def _parameters(self) -> tuple[str, ...]:
        """The names in braces behind the name of a template; () where there are no braces."""
        if not self._take("{"):
            return ()
        found = [self._expect("name")]
        while self._take(","):
            found.append(self._expect("name"))
        if not self._take("}"):
            raise self._refuse("`}` is expected")
        return tuple(found)

    def _instance(self, name: str) -> Part:
        """A template with its arguments: a rule of its own for each list of arguments."""
        template = self._templates.get(name)
        if template is None:
            raise self._refuse(f"there is no template {name!r}")
        arguments = [self._rule_alternatives()]
        while self._take(","):
            arguments.append(self._rule_alternatives())
        if not self._take("}") or len(arguments) != len(template.parameters):
            raise self._refuse(f"the template {name} has {len(template.parameters)} arguments")
        instance = f"{name}{{{arguments!r}}}"
        if instance not in self._made:
            if len(self._made) > _MAX_INSTANCES:
                raise self._refuse(f"more than {_MAX_INSTANCES} rules and templates")
            self._made[instance] = RuleSequence(())  # it may use itself
            outside, self._bound = (
                self._bound,
                dict(zip(template.parameters, arguments, strict=True)),
            )
            self._made[instance] = self._from(template.begin, self._rule_alternatives)
            self._bound = outside
        return RuleRef(instance)

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
        if rest or not pairs or not pairs.keys() <= COMMON.keys():
            raise NeedsLlguidance(f"%import {' '.join(words)} is not supported")
        for name, alias in pairs.items():
            self._terminals[alias] = whole(parse_pattern(COMMON[name], self._limits))
            self._sizes[alias] = len(COMMON[name])

    def _from(self, begin: int, read: Callable[[], T]) -> T:
        """Parses at another place, up to the next definition."""
        here, self._at = self._at, begin
        found = read()
        if not self._ends:
            raise self._refuse("something is left over")
        self._at = here
        return found

    def _ignored(self, begin: int) -> RuleTerminal:
        name = f"%ignore {begin}"
        priority = self._priorities.get(self._tokens[begin].text)
        if priority is not None:
            self._priorities[name] = priority
        return RuleTerminal(name, self._from(begin, self._terminal_alternatives))

    def _rule_alternatives(self) -> Part:
        ways = [self._rule_sequence()]
        while self._take("|"):
            ways.append(self._rule_sequence())
        return ways[0] if len(ways) == 1 else RuleChoice(tuple(ways))

    def _rule_sequence(self) -> Part:
        items: list[Part] = []
        while not self._ends and self._now.text not in _ENDS_SEQUENCE:
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
            if self._take("{"):
                return self._instance(name)
            return self._bound.get(name) or RuleRef(name.lstrip("!?"))
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
        self._count(max(1, len(self._now.text)))
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
                raise NeedsLlguidance(f"the terminal {name} is not defined, or by itself")
            self._open.add(name)
            before = self._read
            found = self._terminals[name] = self._from(
                self._bodies[name], self._terminal_alternatives
            )
            self._sizes[name] = self._read - before
            self._open.discard(name)
        else:
            self._count(self._sizes[name])
        return found

    def _count(self, characters: int) -> None:
        """Bounds terminals made of terminals, which are copied: each may double the one before."""
        self._read += characters
        if self._read > self._limits.max_pattern_len:
            raise NeedsLlguidance(
                f"its terminals have more than {self._limits.max_pattern_len} characters "
                "when written out"
            )

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
            raise NeedsLlguidance(
                f"the regular expression /{body[:40]}/: {error.message}"
            ) from error


# --- tokens, and common terminals

_TOKEN = re.compile(
    r"(?P<skip>[ \t\f\r]+|\s*//[^\n]*|\s*\#[^\n]*)|(?P<line>\n)"
    r'|(?P<string>"(?:\\.|[^"\\\n])*"i?)|(?P<regex>/(?![/*])(?:\\.|[^/\\\n])+/[a-z]*)'
    r"|(?P<name>[!?]*_*[A-Za-z][A-Za-z0-9_]*)|(?P<number>-?\d+)|(?P<directive>%[a-z]+)|"
    r"(?P<mark>->|\.\.|[:|()\[\]{}*+?~.,])"
)
_DECIMAL = r"([0-9]+\.[0-9]*|\.[0-9]+)"
_EXPONENT = "[eE][+-]?[0-9]+"
_FLOAT = f"([0-9]+{_EXPONENT}|{_DECIMAL}({_EXPONENT})?)"
_ESCAPED = r'([^"\\\n]|\\[^\n])*'
COMMON = {
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
    "CR": "\\r",
    "LF": "\\n",
    "NEWLINE": "(\\r?\\n)+",
    "DECIMAL": _DECIMAL,
    "_EXP": _EXPONENT,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"({_FLOAT}|[0-9]+)",
    "SIGNED_NUMBER": f"[+-]?({_FLOAT}|[0-9]+)",
    "_STRING_INNER": "[^\\n]*",
    "_STRING_ESC_INNER": _ESCAPED,
    "ESCAPED_STRING": f'"{_ESCAPED}"',
    "SH_COMMENT": "#[^\\n]*",
    "CPP_COMMENT": "//[^\\n]*",
    "C_COMMENT": r"/\*([^*]|\*+[^*/])*\*+/",
    "SQL_COMMENT": "--[^\\n]*",
}
"""Lark's own terminals. Where Lark says "as few as possible up to the end", the end is excluded."""


@dataclass(frozen=True, slots=True)
class LarkToken:
    kind: str
    text: str
    begins_line: bool
    line: int = 0


def lark_tokens(text: str) -> list[LarkToken]:
    """Raises NeedsLlguidance for what is no token."""
    out: list[LarkToken] = []
    at, fresh, line = 0, True, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise NeedsLlguidance(f"{text[at : at + 10]!r} in line {line} of the grammar")
        at = found.end()
        line += found.group().count("\n")
        kind = found.lastgroup or ""
        if kind == "line" or "\n" in found.group():
            fresh = True
        elif kind != "skip":
            out.append(LarkToken(kind, found.group(), fresh, line))
            fresh = False
    return out
