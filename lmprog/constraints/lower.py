r"""Lowers expressions over characters to nodes over bytes: plain UTF-8, or inside a JSON string.

Inside a JSON string a character may be written in every way that JSON allows: as itself (except
`"`, `\` and control characters), with its short escape, as `\uXXXX` or as a surrogate pair. So the
set of *texts* is exact, whatever the spelling; classes of characters are spelled by
lmprog_leaves.h. Knows UTF-8 and JSON escapes; knows no patterns and no schemas.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

import numpy as np

from lmprog.constraints import charset
from lmprog.constraints.charset import CharSet
from lmprog.constraints.expression import Alt, Anchor, Chars, Expression, Look, Seq
from lmprog.constraints.kernel import LONG, kernel, or_memory
from lmprog.constraints.net import FAIL, AllBut, Leaf, NetBuilder, Node
from lmprog.errors import GrammarError

UTF8, EVERY, STRICT, SHORTEST = range(4)
"""How a character is spelled: outside of JSON; in a JSON string, in every way; the same, but
printable ASCII never escaped, where names are excluded, so that these stay small; in the one way
that equal texts have, an escape where there must be one."""
_PLAIN = re.compile(r"[ !#-\[\]-~]*")
"""Characters with one spelling, which is one byte."""
_HALF = re.compile("[\ud800-\udfff]")


class Lowering:
    """Lowers expressions into one builder; `json_string` selects the spelling of characters, and
    `one_spelling` the one that equal texts have: an escape where there must be one, the shortest.
    `is_string`: the texts are strings outside of JSON.
    """

    def __init__(
        self,
        net: NetBuilder,
        json_string: bool,
        one_spelling: bool = False,
        is_string: bool = False,
    ) -> None:
        self._net = net
        self._json = json_string
        self._leaf = string_leaf if is_string else class_leaf
        self._way = SHORTEST if one_spelling else EVERY if json_string else UTF8
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
        assert not isinstance(expression, Anchor | Look), "anchors and looks are resolved before"
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
        if self._way == EVERY and ranges == charset.ALL:
            return self._net.same_leaf(any_json_character())
        return self._net.same_leaf(self._leaf(ranges, self._way))


@functools.lru_cache(maxsize=512)
def string_leaf(chars: CharSet, way: int) -> Leaf:
    """One character of the set, in a string."""
    return replace(class_leaf(chars, way), in_string=True)


@functools.lru_cache(maxsize=512)
def class_leaf(chars: CharSet, way: int) -> Leaf:
    """One character of the set; cached, as a class like `\\w` has hundreds of ranges."""
    core = kernel()
    ranges = np.fromiter(chain.from_iterable(chars), np.int32, 2 * len(chars))
    made = leaf_of(or_memory(core.lmprog_class_new(ranges.ctypes.data, len(chars), way)))
    return made if way == UTF8 else replace(made, in_string=True)


def leaf_of(handle: int) -> Leaf:
    """What the kernel made, and frees."""
    core = kernel()
    try:
        states, edges = LONG(), LONG()
        core.lmprog_leaf_sizes(handle, ctypes.byref(states), ctypes.byref(edges))
        made = Leaf(
            np.empty((edges.value, 3), np.int32),
            np.empty(states.value, np.int32),
            np.empty(states.value, np.uint8),
            np.empty(states.value, np.int64),
        )
        parts = (made.edges, made.num_edges, made.final, made.cost)
        core.lmprog_leaf_copy(handle, *(part.ctypes.data for part in parts))
        return made
    finally:
        core.lmprog_leaf_free(handle)


@functools.cache
def any_json_character() -> Leaf:
    """One character of a JSON string, however it is written."""
    return replace(class_leaf(charset.ALL, EVERY), is_any_character=True)


@functools.cache
def any_text() -> Leaf:
    """The contents of any JSON string, printable ASCII never escaped. The last state of a character
    is the first of the next one.
    """
    made = class_leaf(charset.ALL, STRICT)
    edges, cost = made.edges.copy(), made.cost.copy()
    edges[made.final[edges[:, 2]] > 0, 2] = cost[0] = 0
    return replace(made, edges=edges, cost=cost, final=(np.arange(len(cost)) == 0).astype(np.uint8))


def all_but(texts: Iterable[str], net: NetBuilder) -> Node:
    """The contents of all JSON strings that spell none of `texts`, as one leaf: a trie that is
    linear in the size of the texts. A text leaves it at the first character that no excluded one
    has there; anything may follow.
    """
    kept = [text for text in texts if not _HALF.search(text)]  # no text has half of a pair
    names = [text.encode().replace(b"\0", b"\xc0\x80") for text in kept]
    return net.leaf(AllBut(tuple(names), bool(_PLAIN.fullmatch("".join(kept)))))
