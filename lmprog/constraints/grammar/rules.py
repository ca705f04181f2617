"""Grammars as values: rules over characters, elimination of left recursion, lowering to nodes.

A directly left-recursive rule (`sum: sum "+" product | product`) becomes a repetition; indirect
left recursion has no net. Knows no syntax.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lmprog.constraints.constraint import Check
from lmprog.constraints.expression import Alt, Chars, Expression, Repeat
from lmprog.constraints.expression import Seq as ExpressionSeq
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import NetBuilder, Node
from lmprog.errors import GrammarError


class NeedsLlguidance(Exception):
    """This grammar has no net, or a net might differ in meaning; the message says why."""


def refused_at(text: str, at: int, why: str) -> GrammarError:
    """The error for what stands at `at` in the user's text."""
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    shown = text.split("\n")[line - 1].strip()
    return GrammarError(f"line {line}, column {column}: {why}, in {shown[:80]!r}", position=at)


@dataclass(frozen=True, slots=True)
class RuleTerminal:
    """A regular part. Grammars with a lexer match it as a whole, and identify it by `name`."""

    name: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class RuleRef:
    rule: str


@dataclass(frozen=True, slots=True)
class RuleSequence:
    items: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class RuleChoice:
    items: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class RuleRounds:
    """`item` at least `low` and at most `high` times; None means unbounded."""

    item: Part
    low: int
    high: int | None


Part: TypeAlias = RuleTerminal | RuleRef | RuleSequence | RuleChoice | RuleRounds
Rules: TypeAlias = Mapping[str, Part]


def parts_of(part: Part) -> Iterator[Part]:
    """The part and all its descendants."""
    yield part
    if isinstance(part, RuleSequence | RuleChoice):
        for item in part.items:
            yield from parts_of(item)
    elif isinstance(part, RuleRounds):
        yield from parts_of(part.item)


def reachable(rules: Rules, start: str, check: Check) -> dict[str, Part]:
    """The rules reachable from `start`. Raises NeedsLlguidance if one is missing."""
    found: dict[str, Part] = {}
    waiting = [start]
    while waiting:
        check()
        name = waiting.pop()
        if name in found:
            continue
        if name not in rules:
            raise NeedsLlguidance(f"there is no rule {name!r}")
        found[name] = rules[name]
        waiting += [part.rule for part in parts_of(rules[name]) if isinstance(part, RuleRef)]
    return found


def empty_expression(node: Expression) -> bool:
    """Whether the expression matches the empty text."""
    if isinstance(node, ExpressionSeq):
        return all(map(empty_expression, node.items))
    if isinstance(node, Alt):
        return any(map(empty_expression, node.items))
    return isinstance(node, Repeat) and (node.low == 0 or empty_expression(node.item))


def nullable_rules(rules: Rules, check: Check) -> frozenset[str]:
    """The rules that match the empty text."""
    users: dict[str, list[str]] = {}
    for name, part in rules.items():
        check()
        for one in {item.rule for item in parts_of(part) if isinstance(item, RuleRef)}:
            users.setdefault(one, []).append(name)
    known: set[str] = set()
    waiting, awaited = deque(rules), set(rules)
    while waiting:
        check()
        name = waiting.popleft()
        awaited.discard(name)
        if name not in known and may_be_empty(rules[name], known):
            known.add(name)
            more = [user for user in users.get(name, ()) if user not in awaited]
            awaited.update(more)
            waiting += more
    return frozenset(known)


def may_be_empty(part: Part, nullable: Container[str]) -> bool:
    if isinstance(part, RuleTerminal):
        return empty_expression(part.expression)
    if isinstance(part, RuleRef):
        return part.rule in nullable
    if isinstance(part, RuleSequence):
        return all(may_be_empty(item, nullable) for item in part.items)
    if isinstance(part, RuleChoice):
        return any(may_be_empty(item, nullable) for item in part.items)
    return part.low == 0 or may_be_empty(part.item, nullable)


def without_left_recursion(rules: Rules, check: Check) -> dict[str, Part]:
    """The same grammar without left recursion. Raises NeedsLlguidance unless the recursion is
    direct.
    """
    out: dict[str, Part] = {}
    for name, part in rules.items():
        check()
        out[name] = _unrolled(name, part)
    nullable = nullable_rules(out, check)
    begins: dict[str, list[str]] = {}
    for name, part in out.items():
        check()
        begins[name] = list(dict.fromkeys(_first_rules(part, nullable)))
    looped = _in_loops(begins, check)
    for name in out:
        if name in looped:
            raise NeedsLlguidance(f"the rule {name!r} begins with itself by way of others")
    return out


def _in_loops(begins: Mapping[str, list[str]], check: Check) -> set[str]:
    """The rules that lead to themselves, in linear time (Tarjan's algorithm)."""
    found: set[str] = set()
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    for first in begins:
        check()
        stack = [] if first in number else [(first, iter(begins[first]))]
        while stack:
            check()
            name, others = stack[-1]
            if name not in number:
                number[name] = lowest[name] = len(number)
                path.append(name)
                on_path.add(name)
            other = next(others, None)
            if other is None:
                stack.pop()
                if stack:
                    above = stack[-1][0]
                    lowest[above] = min(lowest[above], lowest[name])
                if lowest[name] == number[name]:
                    loop = [path.pop()]
                    while loop[-1] != name:
                        loop.append(path.pop())
                    on_path.difference_update(loop)
                    found.update(loop if len(loop) > 1 else ())
            elif other not in number:
                stack.append((other, iter(begins[other])))
            elif other in on_path:
                lowest[name] = min(lowest[name], number[other])
                if other == name:
                    found.add(name)
    return found


def _unrolled(name: str, part: Part) -> Part:
    """Rewrites `a: a x | y` as `a: y x*`."""
    ways = part.items if isinstance(part, RuleChoice) else (part,)
    again, first = [], []
    for way in ways:
        items = way.items if isinstance(way, RuleSequence) else (way,)
        if items and items[0] == RuleRef(name):
            if len(items) > 1:  # `a: a` adds nothing
                again.append(RuleSequence(items[1:]))
        else:
            first.append(way)
    if len(first) == len(ways):
        return part
    return RuleSequence((RuleChoice(tuple(first)), RuleRounds(RuleChoice(tuple(again)), 0, None)))


def _first_rules(part: Part, nullable: frozenset[str]) -> Iterator[str]:
    """The rules that may come first in `part`."""
    if isinstance(part, RuleRef):
        yield part.rule
    elif isinstance(part, RuleRounds):
        yield from _first_rules(part.item, nullable)
    elif isinstance(part, RuleChoice):
        for item in part.items:
            yield from _first_rules(item, nullable)
    elif isinstance(part, RuleSequence):
        for item in part.items:
            yield from _first_rules(item, nullable)
            if not may_be_empty(item, nullable):
                return


_DEEPEST = 300
"""Parts of a rule within each other, two frames of Python each, so that what is left to llguidance
does not depend on how deep its caller stands."""


class RuleLowering:
    """Lowers rules into one builder; recursive rules refer to themselves through a hole."""

    def __init__(self, net: NetBuilder, rules: Rules) -> None:
        self._net = net
        self._rules = rules
        self._expressions = Lowering(net, json_string=False)
        self._done: dict[str, Node] = {}
        self._open: dict[str, Node | None] = {}
        self._depth = 0

    def rule(self, name: str) -> Node:
        """Those that it leads to come first, however far that is."""
        waiting = [name]
        while waiting:
            self._net.check()
            name = waiting[-1]
            if name in self._done:
                waiting.pop()
            elif name in self._open:
                self._close(waiting.pop())
            else:
                self._open[name] = None
                others = [
                    one.rule for one in parts_of(self._rules[name]) if isinstance(one, RuleRef)
                ]
                waiting += [one for one in reversed(others) if one not in self._open]
        return self._done[name]

    def _close(self, name: str) -> None:
        made = self._part(self._rules[name])
        hole = self._open.pop(name)
        if hole is not None:
            self._net.fill(hole, made)
        self._done[name] = made

    def _named(self, name: str) -> Node:
        if name in self._done:
            return self._done[name]
        hole = self._open[name]
        if hole is None:
            hole = self._open[name] = self._net.hole()
        return hole

    def _part(self, part: Part) -> Node:
        if isinstance(part, RuleTerminal):
            return self._expressions.lower(part.expression)
        self._depth += 1
        if self._depth > _DEEPEST:
            raise NeedsLlguidance(f"a rule nests more than {_DEEPEST} parts deep")
        if isinstance(part, RuleRef):
            made = self._named(part.rule)
        elif isinstance(part, RuleSequence):
            made = self._net.seq([self._part(item) for item in part.items])
        elif isinstance(part, RuleChoice):
            made = self._net.alt([self._part(item) for item in part.items])
        else:
            made = self._net.repeat(self._part(part.item), part.low, part.high)
        self._depth -= 1
        return made


def first_characters(expression: Expression) -> list[Chars]:
    """The sets of characters with which the texts of an expression may start."""
    if isinstance(expression, Chars):
        return [expression]
    if isinstance(expression, Alt):
        return [one for item in expression.items for one in first_characters(item)]
    if isinstance(expression, Repeat):
        return first_characters(expression.item)
    out: list[Chars] = []
    if isinstance(expression, ExpressionSeq):
        for item in expression.items:
            out += first_characters(item)
            if not empty_expression(item):
                break
    return out
