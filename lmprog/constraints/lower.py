r"""Lowers expressions over characters to nodes over bytes: plain UTF-8, or inside a JSON string.

Inside a JSON string a character may be written in every way that JSON allows: as itself (except
`"`, `\` and control characters), with its short escape, as `\uXXXX` or as a surrogate pair. So the
set of *texts* is exact, whatever the spelling; classes of characters are spelled by
lmprog_classes.h. Knows UTF-8 and JSON escapes; knows no patterns and no schemas.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace
from itertools import chain

import numpy as np

from lmprog.constraints import charset
from lmprog.constraints.charset import ByteRanges, CharSet
from lmprog.constraints.expression import Alt, Anchor, Chars, Expression, Seq
from lmprog.constraints.kernel import LONG, kernel, or_memory
from lmprog.constraints.leaves import Leaf
from lmprog.constraints.net import FAIL, ByteSets, NetBuilder, Node
from lmprog.errors import GrammarError

_SHORT_ESCAPES = {0x22: '"', 0x5C: "\\", 0x2F: "/", 8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}
_JSON_PLAIN = charset.complement(charset.charset([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)]))
_BACKSLASH_U = (((92, 92),), ((117, 117),))
_ESCAPED = charset.charset([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])
_BMP = charset.charset([(0, 0xFFFF)])


class Lowering:
    """Lowers expressions into one builder; `json_string` selects the spelling of characters, and
    `one_spelling` the one that equal texts have: an escape where there must be one, the shortest.
    """

    def __init__(self, net: NetBuilder, json_string: bool, one_spelling: bool = False) -> None:
        self._net = net
        self._json = json_string
        self._one_spelling = one_spelling
        self._done: dict[int, tuple[Expression, Node]] = {}
        """By identity, since equality reads whole expressions. Holds them, so that ids stay
        theirs."""
        self._classes: dict[int, tuple[CharSet, Node]] = {}
        """The same of sets of characters."""

    def lower(self, expression: Expression) -> Node:
        found = self._done.get(id(expression))
        if found is None:
            try:
                found = self._done[id(expression)] = (expression, self._lower(expression))
            except RecursionError as error:
                raise GrammarError("the pattern nests too deeply", position=None) from error
        return found[1]

    def _lower(self, expression: Expression) -> Node:
        if isinstance(expression, Chars):
            return self.chars(expression.ranges)
        if isinstance(expression, Seq):
            return self._sequence(expression)
        if isinstance(expression, Alt):
            return self._net.alt(self.lower(item) for item in expression.items)
        assert not isinstance(expression, Anchor), "anchors are resolved before lowering"
        return self._net.repeat(self.lower(expression.item), expression.low, expression.high)

    def _sequence(self, expression: Seq) -> Node:
        """Merges runs of single characters into one text, whose cost in tokens is then exact."""
        nodes: list[Node] = []
        run = bytearray()
        for item in expression.items:
            code = self._single(item)
            if code is not None:
                run += chr(code).encode()
                continue
            nodes.append(self._net.text(bytes(run)))
            run.clear()
            nodes.append(self.lower(item))
        nodes.append(self._net.text(bytes(run)))
        return self._net.seq(nodes)

    def _single(self, item: Expression) -> int | None:
        """The code point of an item that has only one spelling, else None."""
        if self._json or not isinstance(item, Chars) or len(item.ranges) != 1:
            return None
        low, high = item.ranges[0]
        return low if low == high else None

    def chars(self, ranges: CharSet) -> Node:
        if not ranges:
            return FAIL
        found = self._classes.get(id(ranges))
        if found is None:
            found = self._classes[id(ranges)] = (ranges, self._class(ranges))
        return found[1]

    def _class(self, ranges: CharSet) -> Node:
        if self._one_spelling:
            return self._net.byte_strings(shortest_json_char_bytes(ranges))
        if self._json and ranges == charset.ALL:
            return self._net.same_leaf(any_json_character())
        return self._net.same_leaf(class_leaf(ranges, self._json))


@functools.lru_cache(maxsize=512)
def class_leaf(chars: CharSet, in_json: bool) -> Leaf:
    """One character of the set; cached, as a class like `\\w` has hundreds of ranges."""
    core = kernel()
    ranges = np.fromiter(chain.from_iterable(chars), np.int32, 2 * len(chars))
    handle = or_memory(core.lmprog_class_new(ranges.ctypes.data, len(chars), in_json))
    try:
        states, edges = LONG(), LONG()
        core.lmprog_class_sizes(handle, ctypes.byref(states), ctypes.byref(edges))
        made = Leaf(
            np.empty((edges.value, 3), np.int32),
            np.empty(states.value, np.int32),
            np.empty(states.value, np.uint8),
            np.empty(states.value, np.int64),
        )
        parts = (made.edges, made.num_edges, made.final, made.cost)
        core.lmprog_class_copy(handle, *(part.ctypes.data for part in parts))
        return made
    finally:
        core.lmprog_class_free(handle)


@functools.cache
def any_json_character() -> Leaf:
    """One character of a JSON string, however it is written."""
    return replace(class_leaf(charset.ALL, True), is_any_character=True)


@functools.lru_cache(maxsize=1024)
def char_bytes(ranges: CharSet) -> tuple[ByteSets, ...]:
    """The UTF-8 encodings of the characters of the set."""
    return tuple(_plain(item) for low, high in ranges for item in charset.utf8_ranges(low, high))


@functools.lru_cache(maxsize=1024)
def json_char_bytes(ranges: CharSet) -> tuple[ByteSets, ...]:
    """The spellings of the characters of the set inside a JSON string, escapes included."""
    out = list(char_bytes(charset.intersect(ranges, _JSON_PLAIN)))
    letters = [
        ord(letter) for code, letter in _SHORT_ESCAPES.items() if charset.contains(ranges, code)
    ]
    if letters:
        out.append((((92, 92),), tuple((letter, letter) for letter in sorted(letters))))
    for low, high in charset.intersect(ranges, _BMP):
        out += [(*_BACKSLASH_U, *digits) for digits in _hex_digits(low, high)]
    for low, high in ranges:
        if high > 0xFFFF:
            out += _surrogate_pairs(max(low, 0x10000), high)
    return tuple(out)


@functools.lru_cache(maxsize=1024)
def shortest_json_char_bytes(ranges: CharSet) -> tuple[ByteSets, ...]:
    """The same with one spelling for each character, that of `json.dumps`."""
    escaped = charset.intersect(ranges, _ESCAPED)
    short = [code for code in _SHORT_ESCAPES if charset.contains(escaped, code)]
    out = list(char_bytes(charset.intersect(ranges, _JSON_PLAIN)))
    out += [(((92, 92),), ((ord(_SHORT_ESCAPES[code]),) * 2,)) for code in short]
    others = charset.subtract(escaped, charset.charset([(code, code) for code in _SHORT_ESCAPES]))
    for low, high in others:
        for code in range(low, high + 1):
            out.append(tuple(((byte, byte),) for byte in f"\\u{code:04x}".encode()))
    return tuple(out)


@functools.lru_cache(maxsize=1024)
def strict_json_char_bytes(ranges: CharSet) -> tuple[ByteSets, ...]:
    """The same, with printable ASCII never escaped."""
    plain_ascii = charset.intersect(_JSON_PLAIN, charset.charset([(0, 0x7F)]))
    return char_bytes(charset.intersect(ranges, plain_ascii)) + json_char_bytes(
        charset.subtract(ranges, plain_ascii)
    )


def _plain(ranges: ByteRanges) -> ByteSets:
    return tuple((pair,) for pair in ranges)


def _surrogate_pairs(low: int, high: int) -> list[ByteSets]:
    """`\\uD8..\\uDC..` for code points beyond the Basic Multilingual Plane."""
    first, last = low - 0x10000, high - 0x10000
    out: list[ByteSets] = []
    while first <= last:
        lead, tail = divmod(first, 1024)
        whole_leads = (last + 1 - first) // 1024 if tail == 0 else 0
        if whole_leads:
            end_lead, tails = lead + whole_leads - 1, (0, 1023)
        else:
            end_lead, tails = lead, (tail, min(1023, tail + last - first))
        for left in _hex_digits(0xD800 + lead, 0xD800 + end_lead):
            rights = _hex_digits(0xDC00 + tails[0], 0xDC00 + tails[1])
            out += [(*_BACKSLASH_U, *left, *_BACKSLASH_U, *right) for right in rights]
        first = (end_lead << 10) + tails[1] + 1
    return out


@functools.lru_cache(maxsize=4096)
def _hex_digits(low: int, high: int) -> tuple[ByteSets, ...]:
    """Four hexadecimal digits in a range of numbers, in either case."""
    nibbles_low = bytes(low >> shift & 15 for shift in (12, 8, 4, 0))
    nibbles_high = bytes(high >> shift & 15 for shift in (12, 8, 4, 0))
    return tuple(
        tuple(_spellings(*pair) for pair in digits)
        for digits in charset.split_aligned(nibbles_low, nibbles_high, 0, 15)
    )


def _spellings(low: int, high: int) -> tuple[tuple[int, int], ...]:
    """The ASCII bytes of the hexadecimal digits low..high."""
    out: list[tuple[int, int]] = []
    if low <= 9:
        out.append((48 + low, 48 + min(high, 9)))
    if high >= 10:
        out += [(55 + max(low, 10), 55 + high), (87 + max(low, 10), 87 + high)]
    return tuple(out)
