"""Builds byte automata for numbers: integers or not, within bounds, multiples of a decimal.

Numbers without bounds may have an exponent (at most 307, so that every parser gets a finite
number). With bounds or multiples they are written without one, which is always possible; the
automaton of their digits is native (numbers.cpp). Knows decimals and bytes.
"""

from __future__ import annotations

import ctypes
from array import array
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import lcm

from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.expression import Expression, whole
from lmprog.constraints.kernel import INT, LONG, POINTER, kernel, or_memory
from lmprog.constraints.lower import Lowering, leaf_of
from lmprog.constraints.net import FAIL, Leaf, NetBuilder, Node
from lmprog.constraints.pattern import parse_pattern
from lmprog.constraints.schema.flat import Bound, NumberFacet
from lmprog.errors import UnsupportedSchema

_MAX_DIGITS = 400
_MAX_STATES = 50_000

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


def _magnitudes(limits: _Range, net: NetBuilder) -> Node:
    if limits.high is not None and limits.high.value < limits.low.value:
        return FAIL
    found = _known.get(limits)
    if found is None:
        found = _magnitudes_leaf(limits)
        net.check()
        if found.num_states <= _MOST_KNOWN_STATES:
            _known[limits] = found
            while len(_known) > _MOST_KNOWN:
                _known.pop(next(iter(_known), limits), None)
    return net.same_leaf(found)


_known: dict[_Range, Leaf] = {}
"""Amounts of money and the like come often in one schema. Oldest first out."""
_MOST_KNOWN, _MOST_KNOWN_STATES = 256, 400


class _CMagnitudes(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_char_p) for name in ("low_before", "low_behind")),
        *((name, ctypes.c_char_p) for name in ("high_before", "high_behind")),
        *(("others", POINTER), ("num_others", LONG), ("most_states", LONG)),
        *((name, INT) for name in ("has_high", "low_exclusive", "high_exclusive")),
        *((name, INT) for name in ("integer", "fractional", "step", "scale", "modulus")),
        ("most_places", INT),
    ]


def _magnitudes_leaf(limits: _Range) -> Leaf:
    steps, high = limits.steps, limits.high
    bounds = (*_digits(limits.low), *_digits(high))
    if steps.modulus > _MAX_STATES // 4:
        raise TooManyDigits
    finest = max(len(bounds[1]), len(bounds[3]), steps.scale)
    others = array("i", steps.others)
    of = _CMagnitudes(
        *(digits.encode() for digits in bounds),
        *(others.buffer_info()[0], len(others), _MAX_STATES),
        *(high is not None, limits.low.exclusive, high is not None and high.exclusive),
        *(limits.integer, limits.fractional, steps.step, steps.scale, steps.modulus),
        max(MAX_PLACES, finest + 1),
    )
    too_many = INT()
    made = kernel().lmprog_magnitudes_new(ctypes.byref(of), ctypes.byref(too_many))
    if too_many.value:
        raise TooManyDigits
    return leaf_of(or_memory(made))
