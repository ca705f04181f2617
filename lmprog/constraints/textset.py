"""Sets of texts as deterministic automata: intersection, exclusion and length bounds.

Used where a schema combines string constraints with "and" or "not". Characters are first
partitioned into classes that no expression distinguishes. Then states (a set of partial derivatives
per expression) are explored from the start, within a limit: by the kernel where there is one, else
here. Lengths are counted when the automaton is walked. Knows expressions; knows no bytes and no
JSON.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lmprog.constraints import charset
from lmprog.constraints.charset import CharSet
from lmprog.constraints.constraint import Check
from lmprog.constraints.derivatives import char_classes, derivatives, lengths, matches, nullable
from lmprog.constraints.exclusion import CharTrie, all_but
from lmprog.constraints.expression import ANYTHING, Alt, Chars, Expression, Repeat, alt
from lmprog.constraints.lower import Lowering
from lmprog.constraints.native_texts import native_automaton
from lmprog.constraints.net import FAIL, NetBuilder, Node
from lmprog.constraints.text_set import (
    MAX_STATES,
    MAX_STEPS,
    Lower,
    TextAutomaton,
    TextSet,
    table_node,
    too_many_states,
)

_Terms = frozenset[int]
"""Numbers of expressions, one of which has to match the rest."""
_State = tuple[int, tuple[_Terms, ...]]
"""The vertex of the excluded texts, and the terms."""
_OFF = -1
"""No excluded text begins like this."""


def lower_text_set(texts: TextSet, net: NetBuilder, lowering: Lowering) -> Node:
    """The node of a text set: direct if one expression or a length suffices, else via its
    automaton.
    """
    if texts.high is not None and texts.high < texts.low:
        return FAIL
    if texts.excluded and (texts.within or texts.outside):
        rest = replace(texts, excluded=())
        texts = replace(rest, excluded=tuple(one for one in texts.excluded if contains(rest, one)))
    if not texts.outside:
        is_bounded = texts.low > 0 or texts.high is not None
        if texts.excluded and not texts.within and not is_bounded:
            return all_but(texts.excluded, net)
        if not texts.excluded and not texts.within:
            return lowering.lower(Repeat(Chars(charset.ALL), texts.low, texts.high))
        if not texts.excluded and len(texts.within) == 1:
            direct = _bounded(texts.within[0], texts.low, texts.high)
            if direct is not None:
                return lowering.lower(direct)

    def lower(rest: TextSet) -> Node:
        return lower_text_set(rest, net, lowering)

    automaton = native_automaton(texts, net.check, lower)
    if automaton is None:
        automaton = plain_automaton(texts, net.check, lower)
    return table_node(automaton, texts.low, texts.high, net, lowering)


def contains(texts: TextSet, value: str) -> bool:
    """Whether the set contains one text."""
    if value in texts.excluded:
        return False
    if len(value) < texts.low or (texts.high is not None and len(value) > texts.high):
        return False
    return all(matches(one, value) for one in texts.within) and not any(
        matches(one, value) for one in texts.outside
    )


def _bounded(expression: Expression, low: int, high: int | None) -> Expression | None:
    """The expression with a length bound applied, if that is simple, else None."""
    shortest, longest = lengths(expression)
    if low <= shortest and (high is None or (longest is not None and longest <= high)):
        return expression
    if isinstance(expression, Repeat) and isinstance(expression.item, Chars):
        highs = [bound for bound in (expression.high, high) if bound is not None]
        first, last = max(expression.low, low), min(highs) if highs else None
        return Repeat(expression.item, first, last) if last is None or first <= last else Alt(())
    return None


def plain_automaton(texts: TextSet, check: Check, lower: Lower) -> TextAutomaton:
    """The automaton of a text set without its bounds on the length. `lower` makes the nodes of
    simpler sets, where nothing more has to be explored.
    """
    return _Exploration(texts, check).automaton(lower)


class _Exploration:
    """Breadth first from the start."""

    def __init__(self, texts: TextSet, check: Check) -> None:
        self._texts = texts
        self._check = check
        self._classes = char_classes(texts.within + texts.outside)
        self._trie = CharTrie(texts.excluded)
        self._terms = _Derivatives(check)
        self._is_bounded = texts.low > 0 or texts.high is not None
        self._divided: dict[int, list[list[tuple[CharSet, int]]]] = {
            _OFF: [[(chars, _OFF)] for chars in self._classes]
        }

    def automaton(self, lower: Lower) -> TextAutomaton:
        # Partial derivatives of a required expression are followed one by one. Those of an excluded
        # expression are followed as one set, since any match excludes.
        number = self._terms.number
        parts = (
            *(frozenset([number(one)]) for one in self._texts.within),
            frozenset(map(number, self._texts.outside)),
        )
        start: _State = (0 if self._texts.excluded else _OFF, parts)
        known: dict[_State, int] = {start: 0}
        queue = [start]
        rests: dict[int, TextSet] = {}
        final: list[bool] = []
        edges: list[dict[int, list[CharSet]]] = []
        for state, (vertex, parts) in enumerate(queue):  # appended to while iterated
            self._check()
            rest = self._rest(vertex, parts)
            following: dict[int, list[CharSet]] = {}
            edges.append(following)
            if rest is not None:
                rests[state] = rest
                final.append(False)
                continue
            is_excluded = vertex != _OFF and self._trie.is_text[vertex]
            final.append(not is_excluded and self._terms.accept(parts))
            for after, chars in self._moves(vertex, parts):
                number_of_it = known.setdefault(after, len(queue))
                if number_of_it == len(queue):
                    queue.append(after)
                    if number_of_it > MAX_STATES:
                        raise too_many_states()
                following.setdefault(number_of_it, []).append(chars)
        return _trimmed(final, edges, rests, lower)

    def _rest(self, vertex: int, parts: tuple[_Terms, ...]) -> TextSet | None:
        """What may follow, if that is simple: all texts but some, or those of one expression."""
        if self._is_bounded:
            return None
        if self._terms.take_all(parts):
            return TextSet(excluded=() if vertex == _OFF else tuple(self._trie.below(vertex)))
        if vertex == _OFF and len(parts) == 2 and not parts[1]:
            return TextSet((alt(self._terms.expressions(parts[0])),))
        return None

    def _moves(self, vertex: int, parts: tuple[_Terms, ...]) -> Iterator[tuple[_State, CharSet]]:
        """What may follow, and after which characters."""
        divided = self._divided.get(vertex)
        if divided is None:
            children = self._trie.children[vertex]
            divided = self._divided[vertex] = [_divided(one, children) for one in self._classes]
        for chars, pieces in zip(self._classes, divided, strict=True):
            after = tuple([self._terms.after(part, chars[0][0]) for part in parts])
            if self._terms.may_accept(after):
                for piece, behind in pieces:
                    yield (behind, after), piece


def _trimmed(
    final: list[bool],
    edges: list[dict[int, list[CharSet]]],
    rests: dict[int, TextSet],
    lower: Lower,
) -> TextAutomaton:
    """The states from which something can end."""
    sources: list[list[int]] = [[] for _ in edges]
    for state, of in enumerate(edges):
        for to in of:
            sources[to].append(state)
    queue = [state for state, is_final in enumerate(final) if is_final or state in rests]
    lives = set(queue)
    for state in queue:  # appended to while iterated
        more = [source for source in sources[state] if source not in lives]
        lives.update(more)
        queue += dict.fromkeys(more)
    out = TextAutomaton()
    if 0 not in lives:
        return out
    numbers = {state: number for number, state in enumerate(sorted(lives))}
    labels: dict[CharSet, int] = {}
    for state in numbers:
        out.final.append(final[state])
        for to, pieces in edges[state].items():
            if to in lives:
                out.targets.append(numbers[to])
                label = _united(tuple(pieces))
                out.labels.append(labels.setdefault(label, len(labels)))
        out.starts.append(len(out.targets))
    out.classes = list(labels)
    out.rests = {numbers[state]: lower(rest) for state, rest in rests.items()}
    return out


@functools.lru_cache(maxsize=1024)
def _united(pieces: tuple[CharSet, ...]) -> CharSet:
    return pieces[0] if len(pieces) == 1 else charset.union(*pieces)


def _divided(chars: CharSet, children: dict[str, int]) -> list[tuple[CharSet, int]]:
    """Splits a class into the characters that continue an excluded text, and all others."""
    out: list[tuple[CharSet, int]] = []
    for char, after in children.items():
        if charset.contains(chars, ord(char)):
            out.append((charset.of_text(char), after))
    rest = charset.subtract(chars, charset.union(*(one for one, _ in out))) if out else chars
    return [*out, (rest, _OFF)] if rest else out


class _Derivatives:
    """Numbered expressions, so that sets of them compare quickly, with cached derivatives."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._num_steps = 0
        self._numbers: dict[Expression, int] = {}
        self._expressions: list[Expression] = []
        self._nullable: list[bool] = []
        self._all: set[int] = set()
        """Those that take every text."""
        self._one: dict[tuple[int, int], tuple[int, ...]] = {}
        self._many: dict[tuple[_Terms, int], _Terms] = {}

    def number(self, expression: Expression) -> int:
        found = self._numbers.get(expression)
        if found is None:
            found = self._numbers[expression] = len(self._expressions)
            self._expressions.append(expression)
            self._nullable.append(nullable(expression))
            if expression == ANYTHING:
                self._all.add(found)
        return found

    def expressions(self, terms: _Terms) -> list[Expression]:
        return [self._expressions[term] for term in sorted(terms)]

    def accept(self, parts: Sequence[_Terms]) -> bool:
        """Whether a text may end here: all parts match but the last, which does not."""
        *within, outside = [any(self._nullable[term] for term in part) for part in parts]
        return all(within) and not outside

    def take_all(self, parts: Sequence[_Terms]) -> bool:
        """Whether every text goes on from here."""
        *within, outside = parts
        return not outside and all(not self._all.isdisjoint(part) for part in within)

    def may_accept(self, parts: Sequence[_Terms]) -> bool:
        """False where plainly no text goes on from here."""
        *within, outside = parts
        return all(within) and self._all.isdisjoint(outside)

    def after(self, terms: _Terms, code: int) -> _Terms:
        key = (terms, code)
        found = self._many.get(key)
        if found is None:
            self._check()
            found = self._many[key] = frozenset(
                after for term in terms for after in self._after_one(term, code)
            )
        return found

    def _after_one(self, term: int, code: int) -> tuple[int, ...]:
        key = (term, code)
        found = self._one.get(key)
        self._num_steps += 1
        if self._num_steps > MAX_STEPS:
            raise too_many_states()
        if found is None:
            self._check()
            following = derivatives(self._expressions[term], code)
            found = self._one[key] = tuple(map(self.number, following))
        return found
