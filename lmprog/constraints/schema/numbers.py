"""Builds byte automata for numbers: integers or not, within bounds, multiples of a decimal.

Numbers without bounds may have an exponent (at most 307, so that every parser gets a finite
number). With bounds or multiples they are written without one, which is always possible. The
automaton reads digits from the left; its state is the comparison of the prefix with each bound, and
the remainder. Knows decimals and bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import NamedTuple

from lmprog.constraints.constraint import Check, CompileLimits
from lmprog.constraints.expression import Expression, whole
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import FAIL, Edge, Leaf, NetBuilder, Node, leaf
from lmprog.constraints.pattern import parse_pattern
from lmprog.constraints.schema.flat import Bound, NumberFacet
from lmprog.errors import UnsupportedSchema

_MAX_DIGITS = 400
_MAX_STATES = 50_000
_STATES_PER_CHECK = 64
_POINT, _ZERO = ord("."), ord("0")

MAX_PLACES = 24
"""Digits behind the point, and before it where a number without bounds has a fraction or may have
one: a double has 17, and a model may write digits to the end of its tokens. Finer bounds and
multiples allow as many places as they have.
"""
INTEGER = r"-?(0|[1-9][0-9]*)"
_WHOLE = rf"-?(0|[1-9][0-9]{{0,{MAX_PLACES - 1}}})"
_FEWER = rf"[0-9]{{0,{MAX_PLACES - 1}}}"
FRACTIONAL = rf"{_WHOLE}\.{_FEWER}[1-9]{_FEWER}"
NUMBER = _WHOLE + (
    rf"(\.[0-9]{{1,{MAX_PLACES}}})?([eE][+-]?([0-9]{{1,2}}|[12][0-9]{{2}}|30[0-7]))?"
)


class TooManyDigits(Exception):
    """The automaton would be too large."""


def number_node(facet: NumberFacet, path: str, lowering: Lowering, net: NetBuilder) -> Node:
    """The node of the numbers that a schema at `path` takes; `lowering` is into the same net."""
    try:
        plain = plain_number(facet, net.limits)
        return lowering.lower(plain) if plain is not None else bounded_number(facet, net)
    except TooManyDigits:
        keyword = "multipleOf" if facet.multiples or facet.not_multiples else "minimum"
        raise UnsupportedSchema(
            f"number bounds or multiples at {path} need too many digits or states",
            keyword=keyword,
            path=f"{path}/{keyword}",
        ) from None


def plain_number(facet: NumberFacet, limits: CompileLimits) -> Expression | None:
    """The expression for a facet that only distinguishes integers from numbers, else None."""
    if facet.low or facet.high or facet.multiples or facet.not_multiples:
        return None
    if facet.integer and facet.fractional:
        return None
    pattern = INTEGER if facet.integer else FRACTIONAL if facet.fractional else NUMBER
    return whole(parse_pattern(pattern, limits))


@dataclass(frozen=True, slots=True)
class _Range:
    """Magnitudes within bounds (`high` None: unbounded)."""

    low: Bound
    high: Bound | None
    integer: bool
    fractional: bool
    steps: _Steps


@dataclass(frozen=True, slots=True)
class _Steps:
    """In units of 10**-scale: numbers are multiples of `step` (0: of nothing) and of none of
    `others`; `modulus` is the least common multiple of all of them, 0 if there are none.
    """

    step: int
    others: tuple[int, ...]
    scale: int
    modulus: int

    def take(self, remainder: int) -> bool:
        return (not self.step or remainder % self.step == 0) and all(
            remainder % other for other in self.others
        )


class _At(NamedTuple):
    """State after a prefix: numbers of digits (`fraction_digits` -1: no point yet), comparisons
    with the bounds, remainder.
    """

    whole_digits: int
    fraction_digits: int
    to_low: int  # -1, 0, 1: the prefix compared with the same number of digits of the bound
    to_high: int
    remainder: int
    leading_zero: bool
    fraction: bool = False  # a nonzero digit occurred after the point
    finer: bool = False  # a nonzero digit occurred beyond the scale of all steps


def bounded_number(facet: NumberFacet, net: NetBuilder) -> Node:
    """The node for numbers within the facet's bounds. Raises TooManyDigits."""
    steps = _steps(facet)
    zero = Bound(Decimal(0), False)
    low, high = facet.low, facet.high
    nodes = []
    if high is None or high.value >= 0:
        above = low if low is not None and low.value >= 0 else zero
        nodes.append(_magnitudes(_Range(above, high, facet.integer, facet.fractional, steps), net))
    if low is None or low.value < 0:  # "-0" is not generated in addition to 0
        top = None if low is None else Bound(-low.value, low.exclusive)
        bottom = (
            Bound(-high.value, high.exclusive) if high is not None and high.value <= 0 else zero
        )
        nodes.append(
            net.seq(
                [
                    net.text(b"-"),
                    _magnitudes(_Range(bottom, top, facet.integer, facet.fractional, steps), net),
                ]
            )
        )
    return net.alt(nodes)


def _steps(facet: NumberFacet) -> _Steps:
    """The combined `multipleOf`s as integers."""
    every = facet.multiples + facet.not_multiples
    if not every:
        return _Steps(0, (), 0, 0)
    scale = max(0, *(-int(number.as_tuple().exponent) for number in every))
    if scale > 12:
        raise TooManyDigits
    wanted, others = (
        [int(Fraction(number) * 10**scale) for number in numbers]
        for numbers in (facet.multiples, facet.not_multiples)
    )
    return _Steps(lcm(*wanted) if wanted else 0, tuple(others), scale, lcm(*wanted, *others))


def _digits(bound: Bound | None) -> tuple[str, str]:
    """The digits before and after the point, without redundant zeros."""
    if bound is None:
        return "", ""
    if abs(bound.value.adjusted()) > _MAX_DIGITS:
        raise TooManyDigits
    before, _, after = format(bound.value, "f").lstrip("-").partition(".")
    return before.lstrip("0") or "0", after.rstrip("0")


class _Magnitudes:
    def __init__(self, limits: _Range) -> None:
        self._range = limits
        self._low = _digits(limits.low)
        self._high = _digits(limits.high)
        # Beyond the longer bound, all further digits lead to the same state.
        self._longest = max(len(self._low[0]), len(self._high[0])) + 1
        self._steps = limits.steps
        finest = max(len(self._low[1]), len(self._high[1]), self._steps.scale)
        self._most_places = max(MAX_PLACES, finest + 1)
        if self._steps.modulus > _MAX_STATES // 4:
            raise TooManyDigits

    def start(self) -> _At:
        return _At(0, -1, 0, 0, 0, False)

    def ways(self, at: _At) -> Iterator[tuple[int, int, _At]]:
        """What may follow: the first and the last of a range of characters, and the state behind
        each of them.
        """
        if at.fraction_digits < 0 and at.whole_digits and not self._range.integer:
            behind = self._behind_point(at)
            if behind is not None:
                yield _POINT, _POINT, behind
        for first, last in self._alike(at):
            following = self._behind_digit(at, first)
            if following is not None:
                yield _ZERO + first, _ZERO + last, following

    def _alike(self, at: _At) -> Iterator[tuple[int, int]]:
        """The digits, in ranges of those that lead to the same state."""
        in_fraction = at.fraction_digits >= 0
        place = at.fraction_digits if in_fraction else at.whole_digits
        if self._steps.modulus and not (in_fraction and place >= self._steps.scale):
            return zip(range(10), range(10), strict=True)
        cuts = {0, 10}
        if (self._range.fractional or self._steps.modulus) if in_fraction else place == 0:
            cuts.add(1)  # a zero may be a leading one, or make no fraction
        for sign, digits in ((at.to_low, self._low), (at.to_high, self._high)):
            if sign == 0 and place < len(digits[in_fraction]):
                other = int(digits[in_fraction][place])
                cuts.update((other, other + 1))
            elif sign == 0 and in_fraction:
                cuts.add(1)  # a bound goes on with zeros
        return ((first, after - 1) for first, after in pairwise(sorted(cuts)))

    def _behind_point(self, at: _At) -> _At | None:
        to_low = self._settled(at.whole_digits, at.to_low, self._low[0])
        to_high = self._settled(at.whole_digits, at.to_high, self._high[0])
        return self._if_within(_At(0, 0, to_low, to_high, at.remainder, False))

    def _if_within(self, at: _At) -> _At | None:
        """A state behind the point, where no more digits change what is settled: None if no number
        is within the bounds. A bound that is met whatever follows is not compared further.
        """
        limits = self._range
        if at.to_low < 0 or (limits.high is not None and at.to_high > 0):
            return None
        is_met = at.fraction_digits >= len(self._low[1]) and not limits.low.exclusive
        to_low = 1 if is_met else at.to_low
        to_high = -1 if limits.high is None else at.to_high
        return (
            at
            if (to_low, to_high) == (at.to_low, at.to_high)
            else at._replace(to_low=to_low, to_high=to_high)
        )

    def _behind_digit(self, at: _At, digit: int) -> _At | None:
        place = at.fraction_digits
        if place < 0:
            if at.leading_zero:
                return None
            before = at.whole_digits
            to_high = _compared(at.to_high, digit, self._high[0], before)
            longest = len(self._high[0])
            if longest and (before >= longest or (to_high > 0 and before + 1 == longest)):
                return None
            return _At(
                min(before + 1, self._longest),
                -1,
                _compared(at.to_low, digit, self._low[0], before),
                to_high,
                self._remainder(at.remainder * 10 + digit),
                before == 0 and digit == 0,
            )
        if place >= self._most_places:
            return None
        beyond_scale = bool(self._steps.modulus) and place >= self._steps.scale
        if beyond_scale and digit and self._steps.step:
            return None
        # Behind its digits, a bound goes on with zeros.
        return self._if_within(
            _At(
                0,
                place + 1,
                _compared(at.to_low, digit, self._low[1], place, "0"),
                _compared(at.to_high, digit, self._high[1], place, "0"),
                at.remainder if beyond_scale else self._remainder(at.remainder * 10 + digit),
                False,
                self._range.fractional and (at.fraction or digit != 0),
                at.finer or (beyond_scale and digit != 0),
            )
        )

    def _remainder(self, value: int) -> int:
        return value % self._steps.modulus if self._steps.modulus else 0

    @staticmethod
    def _settled(length: int, sign: int, digits: str) -> int:
        """Compares integer parts by length first."""
        return sign if length == len(digits) else (1 if length > len(digits) else -1)

    def accepts(self, at: _At) -> bool:
        if at.fraction_digits == 0 or (at.fraction_digits < 0 and at.whole_digits == 0):
            return False
        if self._range.fractional and not at.fraction:
            return False
        read = max(at.fraction_digits, 0)
        to_low, to_high = at.to_low, at.to_high
        if at.fraction_digits < 0:
            to_low = self._settled(at.whole_digits, to_low, self._low[0])
            to_high = self._settled(at.whole_digits, to_high, self._high[0])
        # An equal prefix is smaller if the bound has digits left.
        to_low = to_low or (-1 if len(self._low[1]) > read else 0)
        to_high = to_high or (-1 if len(self._high[1]) > read else 0)
        if to_low < 0 or (to_low == 0 and self._range.low.exclusive):
            return False
        if self._range.high is not None and (
            to_high > 0 or (to_high == 0 and self._range.high.exclusive)
        ):
            return False
        if not self._steps.modulus or at.finer:
            return True
        missing = self._steps.scale - min(read, self._steps.scale)
        return self._steps.take(at.remainder * int(10**missing))


def _compared(sign: int, digit: int, digits: str, place: int, behind: str = "") -> int:
    """The comparison with one more digit. Behind its `digits` a bound has `behind`, if anything."""
    other = digits[place : place + 1] or behind
    if sign or not other:
        return sign
    return (digit > int(other)) - (digit < int(other))


def _magnitudes(limits: _Range, net: NetBuilder) -> Node:
    if limits.high is not None and limits.high.value < limits.low.value:
        return FAIL
    found = _known.get(limits)
    if found is None:
        found = _magnitudes_leaf(limits, net.check)
        if found.num_states <= _MOST_KNOWN_STATES:
            _known[limits] = found
            while len(_known) > _MOST_KNOWN:
                _known.pop(next(iter(_known), limits), None)
    return net.same_leaf(found)


_known: dict[_Range, Leaf] = {}
"""Amounts of money and the like come often in one schema. Oldest first out."""
_MOST_KNOWN, _MOST_KNOWN_STATES = 256, 400


def _magnitudes_leaf(limits: _Range, check: Check) -> Leaf:
    reader = _Magnitudes(limits)
    first = reader.start()
    known = {first: 0}
    queue = [first]
    states: list[tuple[bool, list[Edge]]] = []
    for number, at in enumerate(queue):  # appended to while iterated
        if number % _STATES_PER_CHECK == 0:
            check()
        edges: list[Edge] = []
        for low, high, following in reader.ways(at):
            if following not in known:
                known[following] = len(queue)
                queue.append(following)
                if len(queue) > _MAX_STATES:
                    raise TooManyDigits
            edges.append((low, high, known[following]))
        states.append((at != first and reader.accepts(at), edges))
    return leaf(states)
