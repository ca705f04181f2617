"""Calls the native kernel that explores sets of texts; unused if there is no compiler.

Knows the C interface of lmprog_texts.h; what is explored is explained in `textset.py`.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from threading import Lock
from typing import Any

from lmprog import native
from lmprog.constraints.charset import CharSet
from lmprog.constraints.constraint import Check
from lmprog.constraints.exclusion import CharTrie
from lmprog.constraints.expression import Alt, Anchor, Chars, Expression, Repeat, Seq, alt
from lmprog.constraints.text_set import (
    MAX_STATES,
    MAX_STEPS,
    Lower,
    TextAutomaton,
    TextSet,
    too_many_states,
)
from lmprog.errors import GrammarError

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_STEP = 200_000
"""Units of work, nanoseconds roughly, between two checks."""
_TOO_MANY = -2
_CHARS, _SEQ, _ALT, _REPEAT = range(4)
_MAX_KNOWN = 128
_MAX_MATCHERS = 32


class _CInput(ctypes.Structure):
    _fields_ = [
        ("program", ctypes.c_char_p),
        ("length", _LONG),
        ("num_within", _INT),
        ("num_outside", _INT),
        *((name, ctypes.c_char_p) for name in ("is_word", "child_start", "children")),
        ("num_vertices", _INT),
        ("is_bounded", _INT),
        ("max_states", _LONG),
        ("max_steps", _LONG),
    ]


class _CSizes(ctypes.Structure):
    _fields_ = [
        (name, _LONG) for name in ("states", "edges", "classes", "ranges", "rests", "rests_length")
    ]


class _COutput(ctypes.Structure):
    _fields_ = [
        (name, _POINTER)
        for name in (
            *("final", "starts", "targets", "labels"),
            *("range_starts", "ranges", "rests", "programs"),
        )
    ]


class _CSearch(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("moves", "begins", "cuts", "class_behind")),
        *((name, _INT) for name in ("num_cuts", "width", "line_break")),
    ]


@functools.cache
def _kernel() -> ctypes.CDLL | None:
    found = native.library("masks")
    if found is None:
        return None
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "texts_new": (_POINTER, [_POINTER]),
        "texts_step": (_LONG, [_POINTER, _LONG, _POINTER]),
        "texts_copy": (None, [_POINTER, _POINTER]),
        "texts_free": (None, [_POINTER]),
        "matcher_new": (_POINTER, [ctypes.c_char_p, _LONG]),
        "matcher_takes": (_LONG, [_POINTER, ctypes.c_char_p, _LONG, _LONG]),
        "matcher_free": (None, [_POINTER]),
        "search_begin": (_LONG, [_POINTER, ctypes.c_char_p, _LONG, _INT, _INT]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(found, f"lmprog_{name}")
        function.restype, function.argtypes = result, arguments
    return found


def native_automaton(texts: TextSet, check: Check, lower: Lower) -> TextAutomaton | None:
    """What `textset.plain_automaton` says; None if the kernel cannot be built."""
    kernel = _kernel()
    if kernel is None:
        return None
    program = b"".join(map(_program, (*texts.within, *texts.outside)))
    trie = CharTrie(texts.excluded) if texts.excluded else None
    is_word, starts, children = _trie_arrays(trie)
    handle = kernel.lmprog_texts_new(
        ctypes.byref(
            _CInput(
                program,
                len(program) // 4,
                len(texts.within),
                len(texts.outside),
                is_word,
                starts,
                children,
                len(is_word),
                texts.low > 0 or texts.high is not None,
                MAX_STATES,
                MAX_STEPS,
            )
        )
    )
    if not handle:
        raise MemoryError("no memory for a set of texts")
    try:
        sizes = _CSizes()
        while left := kernel.lmprog_texts_step(handle, _STEP, ctypes.byref(sizes)):
            if left == _TOO_MANY:
                raise too_many_states()
            if left < 0:
                raise MemoryError("no memory for a set of texts")
            check()
        return _copied(kernel, handle, sizes, trie, lower)
    finally:
        kernel.lmprog_texts_free(handle)


class _Matcher:
    """One expression, of which many texts are asked."""

    def __init__(self, kernel: ctypes.CDLL, expression: Expression) -> None:
        program = _program(expression)
        self.expression = expression
        self._takes = kernel.lmprog_matcher_takes
        self._handle = kernel.lmprog_matcher_new(program, len(program) // 4)
        if not self._handle:
            raise MemoryError("no memory for an expression")
        weakref.finalize(self, kernel.lmprog_matcher_free, self._handle)
        self._lock = Lock()  # the kernel remembers what it finds out

    def takes(self, text: str) -> bool:
        characters = text.encode("utf-32-le", "surrogatepass")
        with self._lock:
            found = self._takes(self._handle, characters, len(text), MAX_STEPS)
        if found == _TOO_MANY:
            raise too_many_states()
        if found < 0:
            raise MemoryError("no memory for an expression")
        return bool(found)


_matchers: OrderedDict[int, _Matcher] = OrderedDict()
"""By identity of the expression, like `_known`."""


def native_matches(expression: Expression, text: str) -> bool | None:
    """What `derivatives.plain_matches` says; None if the kernel cannot be built."""
    kernel = _kernel()
    if kernel is None:
        return None
    found = _matchers.get(id(expression))
    if found is None:
        found = _matchers[id(expression)] = _Matcher(kernel, expression)
        while len(_matchers) > _MAX_MATCHERS:
            _matchers.popitem(last=False)
    return found.takes(text)


class NativeSearch:
    """The table of a search that reads texts from their end, which it borrows."""

    def __init__(self, kernel: ctypes.CDLL, arrays: Sequence[array[int]], begins: bytes, *of: int):
        moves, cuts, class_behind = (one.buffer_info()[0] for one in arrays)
        held = ctypes.c_char_p(begins)
        place = ctypes.cast(held, _POINTER).value
        self._alive = (arrays, begins)
        self._view = _CSearch(moves, place, cuts, class_behind, *of)
        self._at = ctypes.addressof(self._view)
        self._begin = kernel.lmprog_search_begin

    def first_begin(self, text: str, state: int, before: int) -> int:
        found: int = self._begin(
            self._at, text.encode("utf-32-le", "surrogatepass"), len(text), state, before
        )
        return found


def native_search(
    moves: array[int],
    begins: bytes,
    cuts: array[int],
    class_behind: array[int],
    width: int,
    line_break: int,
) -> NativeSearch | None:
    """None if the kernel cannot be built."""
    kernel = _kernel()
    if kernel is None:
        return None
    arrays = (moves, cuts, class_behind)
    return NativeSearch(kernel, arrays, begins, len(cuts), width, line_break)


def _trie_arrays(trie: CharTrie | None) -> tuple[bytes, bytes, bytes]:
    if trie is None:
        return b"", b"", b""
    starts, children = array("i", [0]), array("i")
    for of_vertex in trie.children:
        for char, vertex in of_vertex.items():
            children.extend((ord(char), vertex))
        starts.append(len(children) // 2)
    return bytes(trie.is_text), starts.tobytes(), children.tobytes()


def _copied(
    kernel: ctypes.CDLL, handle: int, sizes: _CSizes, trie: CharTrie | None, lower: Lower
) -> TextAutomaton:
    if not sizes.states:
        return TextAutomaton()
    out = TextAutomaton(final=bytearray(sizes.states))
    out.starts = array("i", bytes(4 * (sizes.states + 1)))
    out.targets, out.labels = (array("i", bytes(4 * sizes.edges)) for _ in range(2))
    range_starts, ranges = (
        array("i", bytes(4 * count)) for count in (sizes.classes + 1, 2 * sizes.ranges)
    )
    rests, programs = (
        array("i", bytes(4 * count)) for count in (3 * sizes.rests, sizes.rests_length)
    )
    final = (ctypes.c_uint8 * sizes.states).from_buffer(out.final)
    parts = (out.starts, out.targets, out.labels, range_starts, ranges, rests, programs)
    places = (ctypes.addressof(final), *(one.buffer_info()[0] for one in parts))
    kernel.lmprog_texts_copy(handle, ctypes.byref(_COutput(*places)))
    pairs = list(zip(ranges[::2], ranges[1::2], strict=True))
    out.classes = [tuple(pairs[first:end]) for first, end in pairwise(range_starts)]
    at = 0
    for state, vertex, length in zip(rests[::3], rests[1::3], rests[2::3], strict=True):
        if length:
            rest = TextSet((_expression(programs[at : at + length]),))
        else:
            rest = TextSet(excluded=() if vertex < 0 or trie is None else tuple(trie.below(vertex)))
        at += length
        out.rests[state] = lower(rest)
    return out


_known: OrderedDict[int, tuple[Expression, bytes]] = OrderedDict()
"""By identity, since equality reads whole expressions. Holds them, so that ids stay theirs."""


def _program(expression: Expression) -> bytes:
    """The expression in postfix order: lmprog_texts.h."""
    found = _known.get(id(expression))
    if found is None:
        out = array("i")
        try:
            _write(expression, out)
        except RecursionError as error:
            raise GrammarError("the pattern nests too deeply", position=None) from error
        found = _known[id(expression)] = (expression, out.tobytes())
        while len(_known) > _MAX_KNOWN:
            _known.popitem(last=False)
    return found[1]


def _write(node: Expression, out: array[int]) -> None:
    assert not isinstance(node, Anchor), "anchors are resolved before"
    if isinstance(node, Chars):
        out.extend((_CHARS, len(node.ranges)))
        for pair in node.ranges:
            out.extend(pair)
    elif isinstance(node, Repeat):
        _write(node.item, out)
        out.extend((_REPEAT, node.low, -1 if node.high is None else node.high))
    else:
        for item in node.items:
            _write(item, out)
        out.extend((_SEQ if isinstance(node, Seq) else _ALT, len(node.items)))


def _expression(program: Sequence[int]) -> Expression:
    """The expression of a program. Several ways at its end are joined as `alt` joins them."""
    stack: list[Expression] = []
    at = 0
    while at < len(program):
        kind, count = program[at : at + 2]
        at += 2
        if kind == _CHARS:
            numbers = program[at : at + 2 * count]
            at += 2 * count
            ranges: CharSet = tuple(zip(numbers[::2], numbers[1::2], strict=True))
            stack.append(Chars(ranges))
        elif kind == _REPEAT:
            high = program[at]
            at += 1
            stack.append(Repeat(stack.pop(), count, None if high < 0 else high))
        else:
            items = tuple(stack[len(stack) - count :])
            del stack[len(stack) - count :]
            is_last = at == len(program)
            stack.append(Seq(items) if kind == _SEQ else alt(items) if is_last else Alt(items))
    (made,) = stack
    return made
