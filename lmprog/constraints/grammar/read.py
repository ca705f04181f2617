"""Compiles a grammar's text into one node, or raises NeedsLlguidance. Detects the format from the
text. GBNF, llama.cpp's format, is read here: it has no lexer, and all but its references to tokens
are known. To Lark's this adds what a lexer does: ignored text between terminals, and longest match.

A lexer takes the longest terminal, so `NAME` may consume the start of what another rule would have
matched. A net has no such rule: it accepts every text that has some tokenization into terminals.
`refuse_where_greed_matters` accepts only grammars for which both mean the same: no terminal may be
followed by a character with which it, or another terminal that starts alike, could continue, and no
text may match two terminals. Knows expressions and rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Sequence as Many

from lmprog import wire
from lmprog.constraints import charset
from lmprog.constraints import net as nets
from lmprog.constraints.charset import CharSet
from lmprog.constraints.constraint import Check, CompileLimits, CompileTooLong, never_stop
from lmprog.constraints.expression import ANYTHING, EMPTY, Chars, Expression, Repeat, alt, seq
from lmprog.constraints.expression import text as expression_of
from lmprog.constraints.grammar import lark
from lmprog.constraints.grammar.rules import (
    NeedsLlguidance,
    Part,
    RuleChoice,
    RuleLowering,
    RuleRef,
    RuleRounds,
    Rules,
    RuleSequence,
    RuleTerminal,
    empty_expression,
    first_characters,
    may_be_empty,
    nullable_rules,
    parts_of,
    reachable,
    refused_at,
    without_left_recursion,
)
from lmprog.constraints.net import NetBuilder, Node
from lmprog.constraints.text_set import TextSet, automaton_of
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


def read_gbnf(text: str, limits: CompileLimits, check: Check = never_stop) -> dict[str, Part]:
    """Raises GrammarError for malformed grammars, NeedsLlguidance for counts beyond the limits, and
    what `check` raises, which bounds how long a grammar may be.
    """
    return _Reader(text, limits, check).rules()


class _Reader:
    def __init__(self, text: str, limits: CompileLimits, check: Check) -> None:
        self._text = text
        self._limits = limits
        self._check = check
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
        self._check()
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
        self._check()
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


def is_gbnf(text: str) -> bool:
    return "::=" in text


def grammar_node(spec: wire.Grammar, net: NetBuilder, limits: CompileLimits) -> Node:
    """Raises NeedsLlguidance if the grammar is not supported here (Lark: also if it is malformed or
    long), GrammarError if it is malformed GBNF or too large.
    """
    text = spec.text
    try:
        if is_gbnf(text):
            start = START
            rules = reachable(read_gbnf(text, limits, net.check), start, net.check)
        elif len(text) > limits.max_pattern_len:
            raise NeedsLlguidance(
                f"the grammar has {len(text)} characters; the limit is {limits.max_pattern_len}"
            )
        else:
            start = lark.START
            found = lark.read_lark(text, limits)
            rules = reachable(found.rules, start, net.check)
            refuse_where_greed_matters(rules, start, found.ignored, found.priorities, net.check)
            if found.ignored:
                rules = with_ignored(rules, start, found.ignored)
        return RuleLowering(net, without_left_recursion(rules, net.check)).rule(start)
    except RecursionError as error:
        raise NeedsLlguidance("the grammar nests too deeply") from error


# --- what a lexer adds

_MAX_TERMINALS = 120


def with_ignored(rules: Rules, start: str, ignored: Many[RuleTerminal]) -> dict[str, Part]:
    """The rules with ignored text allowed at the start and after every terminal."""
    blank = RuleRounds(RuleChoice(tuple(ignored)), 0, None)

    def spread(part: Part) -> Part:
        if isinstance(part, RuleTerminal):
            return RuleSequence((part, blank))
        if isinstance(part, RuleRef):
            return part
        if isinstance(part, RuleRounds):
            return RuleRounds(spread(part.item), part.low, part.high)
        items = tuple(spread(item) for item in part.items)
        return RuleChoice(items) if isinstance(part, RuleChoice) else RuleSequence(items)

    out = {name: spread(part) for name, part in rules.items()}
    inner = f"{start} behind what is ignored"
    out[inner] = out[start]
    return {name: _renamed(part, start, inner) for name, part in out.items()} | {
        start: RuleSequence((blank, RuleRef(inner)))
    }


def _renamed(part: Part, old: str, new: str) -> Part:
    if isinstance(part, RuleRef):
        return RuleRef(new) if part.rule == old else part
    if isinstance(part, RuleRounds):
        return RuleRounds(_renamed(part.item, old, new), part.low, part.high)
    if isinstance(part, RuleTerminal):
        return part
    items = tuple(_renamed(item, old, new) for item in part.items)
    return RuleChoice(items) if isinstance(part, RuleChoice) else RuleSequence(items)


def refuse_where_greed_matters(
    rules: Rules,
    start: str,
    ignored: Many[RuleTerminal],
    priorities: Mapping[str, int],
    check: Check = never_stop,
) -> None:
    """Raises NeedsLlguidance if longest match, or a terminal's priority, could change the
    language.
    """
    terminals = {
        part.name: part
        for rule in rules.values()
        for part in parts_of(rule)
        if isinstance(part, RuleTerminal)
    }
    terminals |= {one.name: one for one in ignored}
    if len(terminals) > _MAX_TERMINALS:
        raise NeedsLlguidance(f"more than {_MAX_TERMINALS} terminals")
    for one in terminals.values():
        if empty_expression(one.expression):
            raise NeedsLlguidance(f"the terminal {one.name} may be empty")
    behind = _Following(rules, {one.name for one in ignored}, set(terminals), check).of_terminals()
    first = {name: _first(one.expression) for name, one in terminals.items()}
    distinct = {
        one.expression: name for name, one in terminals.items()
    }  # identical terminals under two names count as one
    for expression in distinct:
        names = [name for name, one in terminals.items() if one.expression == expression]
        next_chars = charset.union(*(first[other] for name in names for other in behind[name]))
        for other, other_name in distinct.items():
            if not charset.intersect(first[names[0]], first[other_name]):
                continue
            if (
                other == expression
                and set(names) <= {one.name for one in ignored}
                and _is_run(expression)
            ):
                continue  # ignored text after ignored text makes no difference
            others = [name for name, one in terminals.items() if one.expression == other]
            ranks = [priorities.get(name, 0) for name in names]
            is_first = max(ranks) > min(priorities.get(name, 0) for name in others)
            # A terminal of higher priority ends where it can, whatever would be longer.
            if _differs(expression, other, charset.ALL if is_first else next_chars, check):
                raise NeedsLlguidance(
                    f"where {names[0]} ends depends on how greedy the lexer is, for {other_name}"
                )


def _is_run(expression: Expression) -> bool:
    if isinstance(expression, Chars):
        return True
    return (
        isinstance(expression, Repeat)
        and isinstance(expression.item, Chars)
        and expression.high is None
    )


def _first(expression: Expression) -> CharSet:
    return charset.union(*(one.ranges for one in first_characters(expression)))


def _differs(one: Expression, other: Expression, next_chars: CharSet, check: Check) -> bool:
    """Whether a text of `one` also matches `other`, or can be extended to a prefix of it with a
    character of `next_chars`.
    """
    further: Expression = seq([Chars(next_chars), ANYTHING])
    longer = seq([one, further if one == other else alt([EMPTY, further])])
    try:
        return bool(automaton_of(TextSet((longer, other)), check, lambda _: nets.EMPTY).final)
    except CompileTooLong:
        raise
    except GrammarError:
        return True


class _Following:
    """Which terminals may follow which, by name."""

    def __init__(self, rules: Rules, ignored: set[str], names: set[str], check: Check) -> None:
        self._rules, self._check = rules, check
        self._nullable = nullable_rules(rules, check)
        self._first: dict[str, set[str]] = {name: set() for name in rules}
        self._behind_rule: dict[str, set[str]] = {name: set() for name in rules}
        self._behind: dict[str, set[str]] = {
            name: set(names if name in ignored else ignored) for name in names
        }

    def of_terminals(self) -> dict[str, set[str]]:
        while self._grow_first():
            pass
        before = -1
        while before != (
            size := sum(map(len, [*self._behind_rule.values(), *self._behind.values()]))
        ):
            before = size
            for name, part in self._rules.items():
                self._check()
                self._spread(part, self._behind_rule[name])
        return self._behind

    def _grow_first(self) -> bool:
        grown = False
        for name, part in self._rules.items():
            self._check()
            found = self._first_of(part)
            grown |= not found <= self._first[name]
            self._first[name] |= found
        return grown

    def _first_of(self, part: Part) -> set[str]:
        if isinstance(part, RuleTerminal):
            return {part.name}
        if isinstance(part, RuleRef):
            return self._first[part.rule]
        if isinstance(part, RuleRounds):
            return self._first_of(part.item)
        out: set[str] = set()
        for item in part.items:
            self._check()
            out = out | self._first_of(item)
            if isinstance(part, RuleSequence) and not may_be_empty(item, self._nullable):
                break
        return out

    def _spread(self, part: Part, after: set[str]) -> None:
        """`after`: the terminals that may follow the part."""
        if isinstance(part, RuleTerminal):
            self._behind[part.name] |= after
        elif isinstance(part, RuleRef):
            self._behind_rule[part.rule] |= after
        elif isinstance(part, RuleRounds):
            self._spread(part.item, after if part.high == 1 else after | self._first_of(part.item))
        elif isinstance(part, RuleChoice):
            for item in part.items:
                self._spread(item, after)
        else:
            for item in reversed(part.items):
                self._check()
                self._spread(item, after)
                first = self._first_of(item)
                after = first | after if may_be_empty(item, self._nullable) else first
