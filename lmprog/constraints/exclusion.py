"""All texts except some, inside a JSON string: a trie that is linear in the size of the texts.

A text leaves the trie at the first character that no excluded text has there; anything may follow.
To keep this small, printable ASCII characters are never escaped here; `"`, the backslash, control
characters and all characters beyond ASCII may have every spelling that JSON allows. Knows JSON's
spelling of characters and byte automata; knows no patterns.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from lmprog.constraints.charset import CharSet
from lmprog.constraints.leaves import AllBut, Edge, Leaf, leaf
from lmprog.constraints.lower import strict_json_char_bytes
from lmprog.constraints.net import ByteSets, NetBuilder, Node, byte_strings_leaf

_PLAIN = re.compile(r"[ !#-\[\]-~]*")
"""Characters with one spelling, which is one byte."""
_EVERY: CharSet = ((0, 0xD7FF), (0xE000, 0x10FFFF))
_Ranges = tuple[tuple[int, int], ...]


class CharTrie:
    """Texts by their characters. Vertex 0 is the empty text."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.children: list[dict[str, int]] = [{}]
        self.is_text: list[bool] = [False]
        for text in texts:
            at = 0
            for char in text:
                after = self.children[at].get(char)
                if after is None:
                    after = self.children[at][char] = len(self.children)
                    self.children.append({})
                    self.is_text.append(False)
                at = after
            self.is_text[at] = True

    def below(self, vertex: int) -> list[str]:
        """How the texts go on that begin with the one of `vertex`."""
        found: list[str] = []
        pending = [(vertex, "")]
        while pending:
            at, text = pending.pop()
            if self.is_text[at]:
                found.append(text)
            pending += [(after, text + char) for char, after in self.children[at].items()]
        return found


def all_but(texts: Sequence[str], net: NetBuilder) -> Node:
    """The contents of all JSON strings that spell none of `texts`, as one leaf."""
    if _PLAIN.fullmatch("".join(texts)):
        return net.leaf(AllBut(tuple([text.encode() for text in texts])))
    return net.leaf(_TrieMachine(CharTrie(texts)).leaf())


def all_but_leaf(source: AllBut) -> Leaf:
    return _TrieMachine(CharTrie(name.decode() for name in source.names)).leaf()


@functools.cache
def _any_char() -> list[tuple[bool, list[Edge]]]:
    return list(byte_strings_leaf(strict_json_char_bytes(_EVERY)).states())


@functools.lru_cache(maxsize=4096)
def _spellings(char: str) -> tuple[ByteSets, ...]:
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:
        return ()  # no text contains half of a surrogate pair
    return strict_json_char_bytes(((code, code),))


class _TrieMachine:
    """Byte states: the trie's vertices, then states within a character, then those of
    `_any_char`.
    """

    def __init__(self, trie: CharTrie) -> None:
        self._trie = trie
        self._char = _any_char()
        self._place = [0] * len(trie.children)
        """For each state of the trie, the state of `_any_char` that it stands for."""
        self._children: list[dict[_Ranges, int]] = [{} for _ in trie.children]
        for vertex, children in enumerate(trie.children):
            for char, after in children.items():
                for spelling in _spellings(char):
                    self._add(vertex, spelling, after)

    def _add(self, at: int, spelling: ByteSets, after: int) -> None:
        for ranges in spelling[:-1]:
            inside = self._children[at].get(ranges)
            if inside is None:
                inside = self._children[at][ranges] = len(self._children)
                self._children.append({})
                self._place.append(_target(self._char[self._place[at]][1], ranges[0][0]))
            at = inside
        self._children[at][spelling[-1]] = after

    def leaf(self) -> Leaf:
        first = len(self._children)
        flat = array("i")
        counts: list[int] = []
        for place, children in zip(self._place, self._children, strict=True):
            before = len(flat)
            if place == 0 or children:
                flat.extend(_leaving(place, tuple(children)))
            for ranges, after in children.items():
                for low, high in ranges:
                    flat.extend((low, high, after - first))
            counts.append((len(flat) - before) // 3)
        edges = np.frombuffer(flat, np.int32).reshape(-1, 3) + np.array([0, 0, first], np.int32)
        every = any_text()
        rest = every.edges + np.array([0, 0, first], np.int32)
        is_text = np.zeros(first, np.uint8)
        is_text[: len(self._trie.is_text)] = self._trie.is_text
        places = np.array(self._place)
        cost = every.cost[places]
        # Excluded texts need at least one more character; all others may end here.
        cost[is_text == 1] = 1
        final = np.where(places == 0, 1 - is_text, 0).astype(np.uint8)
        return Leaf(
            np.concatenate([edges, rest]),
            np.concatenate([np.array(counts, np.int32), every.num_edges]),
            np.concatenate([final, every.final]),
            np.concatenate([cost, every.cost]),
        )


@functools.cache
def any_text() -> Leaf:
    """The contents of any JSON string. The last state of a character is the first of the
    next one.
    """
    states = _any_char()
    (end,) = (i for i, (final, _) in enumerate(states) if final)
    return leaf(
        [
            (number == 0, [(low, high, 0 if to == end else to) for low, high, to in edges])
            for number, (_, edges) in enumerate(states)
        ]
    )


@functools.lru_cache(maxsize=4096)
def _leaving(place: int, taken: tuple[_Ranges, ...]) -> array[int]:
    """The flat edges of a state that leave the trie; targets are states of `any_text`."""
    found = array("i")
    cuts = sorted(pair for ranges in taken for pair in ranges)
    for low, high, to in list(any_text().states())[place][1]:
        for cut_low, cut_high in cuts:
            if cut_high < low or cut_low > high:
                continue
            if cut_low > low:
                found.extend((low, cut_low - 1, to))
            low = cut_high + 1
        if low <= high:
            found.extend((low, high, to))
    return found


def _target(edges: list[Edge], byte: int) -> int:
    return next(to for low, high, to in edges if low <= byte <= high)
