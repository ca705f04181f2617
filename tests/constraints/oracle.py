"""What a net means, as plainly as it can be said: the judge of the native core.

Reads a builder's nodes, before anything is trimmed or numbered. After each byte it holds all places
where a text may stand, each a leaf's state and what has to follow, as nested tuples; nothing is
joined, covered or forgotten. A place that cannot reach the end is left out. Knows no costs, and of
tokens their bytes only.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from lmprog import wire
from lmprog.constraints import charset
from lmprog.constraints.automaton import DEAD, Automaton
from lmprog.constraints.compiling.compiler import root_node
from lmprog.constraints.finish import finish
from lmprog.constraints.lower import STRICT, class_leaf
from lmprog.constraints.net import (
    ALT,
    LEAF,
    NO_LIMIT,
    NO_NODE,
    ONCE,
    PART,
    REPEAT,
    SEQ,
    TABLE,
    UNREACHABLE,
    AllBut,
    Edge,
    LeafSource,
    NetBuilder,
    Node,
    text_leaf,
)
from lmprog.constraints.vocabulary import Vocabulary

Name: TypeAlias = tuple[int, int]
"""A node: the part that it is of, 0 for the net itself, and its number there."""
At: TypeAlias = tuple[int, ...]
"""How far a node is: items of a sequence, or rounds, that are done; whether a member has to follow,
and those that were used; the state of a table, and the characters so far."""


class Frame(NamedTuple):
    """What has to follow: the rest of `node`, then `behind`."""

    node: Name
    at: At
    behind: Frame | None


class Place(NamedTuple):
    leaf: Name
    state: int
    behind: Frame | None


Places: TypeAlias = frozenset[Place | None]
"""None: the text may end here."""
_START = {ONCE: (1,), TABLE: (0, 0)}
_AGAIN = -1
"""The member that may come again."""
MANY = 20_000
"""Of a random net's places at once, each counter by itself: more would take minutes."""


class TooMany(Exception):
    """Places: the judge gives no answer."""


class Oracle:
    def __init__(
        self, net: NetBuilder, root: int, single: Iterable[int] = frozenset(range(256))
    ) -> None:
        """`single`: the bytes that can be spelled at all."""
        whole = [net, *(part.net for part in net.parts)]
        roots = [root, *(part.root for part in net.parts)]
        self._nodes: dict[Name, tuple[int, list[int]]] = {}
        self._leaves: dict[Name, _States] = {}
        for part, builder in enumerate(whole):
            for number, (kind, args) in enumerate(builder.nodes()):
                name = (part, number)
                self._nodes[name] = kind, args
                if kind == LEAF:
                    self._leaves[name] = _states(builder.leaves[args[0]], frozenset(single))
        self._roots = roots
        self._lives: set[Name] = {name for name, states in self._leaves.items() if states}
        self._finishes: dict[tuple[Name, At], bool] = {}
        while more := {name for name in self._nodes if self._has_some_text(name)} - self._lives:
            self._lives |= more
            self._finishes.clear()
        self._after: dict[tuple[Places, int], Places] = {}
        self._equal: dict[Places, Places] = {}
        """Equal ones are one object, which is quick to look up."""
        self.start = self._closed((0, root), None)

    def _has_some_text(self, name: Name) -> bool:
        kind = self._nodes[name][0]
        return kind != LEAF and self._may_finish(name, _START.get(kind, (0,)))

    # --- texts

    def after(self, places: Places, byte: int) -> Places:
        found = self._after.get((places, byte))
        if found is None:
            moved: set[Place | None] = set()
            for place in filter(None, places):
                to = self._leaves[place.leaf][place.state][1].get(byte)
                if to is not None:
                    moved |= self._arrived(place.leaf, to, place.behind)
                    if len(moved) > MANY:
                        raise TooMany
            found = self._equal.setdefault(frozenset(moved), frozenset(moved))
            self._after[places, byte] = found
        return found

    def run(self, places: Places, text: bytes) -> Places:
        for byte in text:
            places = self.after(places, byte)
        return places

    def allowed(self, places: Places, tokens: Mapping[int, bytes]) -> list[int]:
        """The tokens, sorted by their bytes, behind which a text may go on or end."""
        out = []
        before, path = b"", [places]
        for token, text in tokens.items():
            shared = 0
            while shared < min(len(before), len(text)) and before[shared] == text[shared]:
                shared += 1
            del path[shared + 1 :]
            for byte in text[len(path) - 1 :]:
                path.append(self.after(path[-1], byte))
            before = text
            if path[-1]:
                out.append(token)
        return sorted(out)

    # --- places

    def _arrived(self, leaf: Name, state: int, behind: Frame | None) -> Places:
        final, edges = self._leaves[leaf][state]
        here: Places = frozenset([Place(leaf, state, behind)] if edges else [])
        return here | self._closed(None, behind) if final else here

    def _closed(self, entered: Name | None, behind: Frame | None) -> Places:
        """Wherever a text gets to without a byte: into a node, or on with what follows."""
        found: set[Place | None] = set()
        seen: set[tuple[Name | None, Frame | None]] = set()
        todo = [(entered, behind)]
        for name, frame in todo:  # appended to while iterated
            if (name, frame) in seen or (name is not None and name not in self._lives):
                continue
            seen.add((name, frame))
            if len(seen) > MANY:
                raise TooMany
            if name in self._leaves:
                final, edges = self._leaves[name][0]
                found |= {Place(name, 0, frame)} if edges else set()
                todo += [(None, frame)] if final else []
                continue
            if name is not None:
                frame = Frame(name, _START.get(self._nodes[name][0], (0,)), frame)
            if frame is None:
                found.add(None)
                continue
            if self._may_end(frame.node, frame.at):
                todo.append((None, frame.behind))
            for item, at in self._steps(frame.node, frame.at):
                if at is None or self._may_finish(frame.node, at):
                    todo.append(
                        (item, (at and Frame(frame.node, at, frame.behind)) or frame.behind)
                    )
        return frozenset(found)

    def _may_end(self, name: Name, at: At) -> bool:
        kind, args = self._nodes[name]
        if kind == SEQ:
            return at[0] == len(args)
        if kind == REPEAT:
            return at[0] >= args[1]
        if kind == ONCE:
            required = set(range(args[2]))
            return not at[0] and len(set(at[1:])) >= args[0] and required <= set(at[1:])
        if kind == TABLE:
            return bool(args[4 + at[0]]) and at[1] >= args[0]
        return False

    def _steps(self, name: Name, at: At) -> Iterator[tuple[Name, At | None]]:
        """What may come next within a node, and how far that is then; None: it is the last."""
        kind, args = self._nodes[name]
        part = name[0]
        if kind == PART:
            yield (args[0], self._roots[args[0]]), None
        elif kind == ALT:
            yield from (((part, item), None) for item in args)
        elif kind == SEQ:
            yield from (((part, item), (at[0] + 1,)) for item in args[at[0] :][:1])
        elif kind == REPEAT:
            item, low, high = args
            if high == NO_LIMIT or at[0] < high:
                yield (part, item), (_counted(at[0] + 1, low, high),)
        elif kind == ONCE and not at[0]:
            yield (part, args[4]), (1, *at[1:])
        elif kind == ONCE:
            _, high, _, again, _, *members = args
            if high != NO_LIMIT and len(at) - 1 >= high:
                return
            for number, item in enumerate(members):
                if number not in at[1:]:
                    yield (part, item), (0, *sorted([*at[1:], number]))
            if again != NO_NODE:  # without a bound, once says as much as many times
                is_new = high != NO_LIMIT or _AGAIN not in at[1:]
                yield (part, again), (0, *([_AGAIN] * is_new), *at[1:])
        elif kind == TABLE:
            low, high, size, num_edges = args[:4]
            first = 5 + 3 * size
            for edge in range(args[4 + 2 * size + at[0]], args[5 + 2 * size + at[0]]):
                to, item = args[first + edge], args[first + num_edges + edge]
                count = _counted(at[1] + 1, low, high)
                if high < 0 or count <= high or to < 0:
                    yield (part, item), None if to < 0 else (to, count)

    def _may_finish(self, name: Name, at: At) -> bool:
        """Whether a node that is so far comes to its end by what matches something."""
        found = self._finishes.get((name, at))
        if found is None:
            todo = {at: None}
            for here in (queue := [at]):  # appended to while iterated
                ways = [(item, to) for item, to in self._steps(name, here) if item in self._lives]
                found = self._may_end(name, here) or any(to is None for _, to in ways)
                if found:
                    break
                more = [to for _, to in ways if to is not None and to not in todo]
                todo.update(dict.fromkeys(more))
                queue += dict.fromkeys(more)
            self._finishes[name, at] = bool(found)
        return bool(found)


def _counted(count: int, low: int, high: int) -> int:
    """As far as a bound needs to know it."""
    return count if high != NO_LIMIT else min(count, low)


_States: TypeAlias = list[tuple[bool, dict[int, int]]]
"""Whether each state of a leaf is final, and what follows it by byte."""


def _states(source: LeafSource, single: frozenset[int]) -> _States:
    """The states of a leaf, with the edges to its end by bytes that can be spelled; none where the
    end cannot be reached."""
    if isinstance(source, AllBut):
        states = _all_but(source.names)
    else:
        made = text_leaf(source) if isinstance(source, bytes) else source
        states = [(final, _by_byte(edges)) for final, edges in made.states()]
    lives = {state for state, (final, _) in enumerate(states) if final}
    while (
        more := {
            state
            for state, (_, edges) in enumerate(states)
            if any(to in lives and byte in single for byte, to in edges)
        }
        - lives
    ):
        lives |= more
    return [
        (final, {byte: to for byte, to in edges if to in lives and byte in single})
        for final, edges in states
        if 0 in lives
    ]


def _by_byte(edges: Iterable[Edge]) -> list[tuple[int, int]]:
    return [(byte, to) for low, high, to in edges for byte in range(low, high + 1)]


def _all_but(names: Iterable[bytes]) -> list[tuple[bool, list[tuple[int, int]]]]:
    """A state is how a name begins (None: no longer), the bytes of a character of it so far, and
    where they lead in the automaton of any character."""
    texts = {name.replace(b"\xc0\x80", b"\0").decode() for name in names}
    char = list(class_leaf(charset.ALL, STRICT).states())
    numbers: dict[tuple[str | None, bytes, int], int] = {("", b"", 0): 0}
    states = []
    for begun, spelled, place in (queue := list(numbers)):  # appended to while iterated
        more = [one for one in texts if begun is not None and one.startswith(begun)]
        following = {one[len(begun or "")] for one in more if one != begun}
        edges = []
        for byte, to in _by_byte(char[place][1]):
            so_far = spelled + bytes([byte])
            whole = [one for one in following if so_far in _spellings(one)]
            ways = (way for one in following for way in _spellings(one))
            after: tuple[str | None, bytes, int]
            if whole:
                after = ((begun or "") + whole[0], b"", 0)
            elif any(way.startswith(so_far) for way in ways):
                after = (begun, so_far, to)
            else:
                after = (None, b"", 0 if char[to][0] else to)
            if after not in numbers:
                numbers[after] = len(numbers)
                queue.append(after)
            edges.append((byte, numbers[after]))
        states.append((place == 0 and begun not in texts, edges))
    return states


@functools.cache
def _spellings(char: str) -> set[bytes]:
    """Within a JSON string where printable ASCII is never escaped."""
    if " " <= char <= "\x7f" and char not in '"\\':
        return {char.encode()}
    short = json.dumps(char, ensure_ascii=False)[1:-1].encode()
    data = char.encode("utf-16-be").hex()
    digits = ["".join(one) for one in itertools.product(*((one, one.upper()) for one in data))]
    return {short} | {
        "".join(f"\\u{one[at : at + 4]}" for at in range(0, len(one), 4)).encode() for one in digits
    }


class Judged:
    """A specification's automaton, walked together with its judge."""

    def __init__(
        self,
        net: NetBuilder,
        root: Node,
        vocabulary: Vocabulary,
        tokens: Iterable[int] | None = None,
    ) -> None:
        """`tokens`: those that are looked at; all if None."""
        self.engine = Automaton(finish(net, root, vocabulary.alphabet), vocabulary, net.limits)
        self.oracle = Oracle(net, root, vocabulary.alphabet.single)
        some = range(len(vocabulary)) if tokens is None else tokens
        texts = [(text, token) for token in some if (text := vocabulary.bytes_of(token))]
        self._texts = {token: text for text, token in sorted(texts)}
        self._eos = vocabulary.eos_ids
        self.here, self.places = self.engine.start, self.oracle.start
        self._costs: dict[tuple[int, Places], dict[int, int]] = {}

    @classmethod
    def of(
        cls, spec: wire.Constraint, vocabulary: Vocabulary, tokens: Iterable[int] | None = None
    ) -> Judged:
        net = NetBuilder()
        return cls(net, root_node(spec, net, net.limits), vocabulary, tokens)

    def advance(self, text: bytes) -> None:
        self.here = self.engine.run(self.here, text)
        self.places = self.oracle.run(self.places, text)
        assert (self.here == DEAD) == (not self.places), text

    def moves(self) -> list[int]:
        """The bytes that may come next, which both have to agree upon, as upon the end."""
        moves = [byte for byte, after in enumerate(self.engine.row(self.here)) if after]
        assert moves == [byte for byte in range(256) if self.oracle.after(self.places, byte)]
        is_final = None in self.places
        assert self.engine.is_final(self.here) == is_final
        assert (self.engine.cost(self.here) == 0) == is_final
        return moves

    def tokens(self, most: int = UNREACHABLE) -> list[int]:
        """The tokens that the judge allows, and that the mask has to allow, `most` being what may
        be missing behind them; without the end of the sequence."""
        made = self.engine.raw_mask(self.here, most)
        if made.like:
            made = self.engine.raw_mask(made.like, most)
            assert not made.like, "a state that others are like is not like another"
        assert made.row is not None
        bits = np.unpackbits(made.row.bits.view(np.uint8), bitorder="little").nonzero()[0].tolist()
        costs = self._costs_behind()
        right = [one for one, cost in costs.items() if cost <= most]
        found = [one for one in bits if one in self._texts]
        assert found == right
        ends = [one for one in bits if one in self._eos]
        assert ends == (list(self._eos) if None in self.places else [])
        assert made.row.count == len(bits)
        assert made.row.ids is None or made.row.ids.tolist() == bits
        assert made.worst >= max((costs[one] for one in right), default=0)
        return right

    def _costs_behind(self) -> dict[int, int]:
        """What may be missing, by the tokens that the judge allows."""
        key = self.here, self.places
        if key not in self._costs:
            behind = {
                token: self.engine.run(self.here, self._texts[token])
                for token in self.oracle.allowed(self.places, self._texts)
            }
            self._costs[key] = {token: self.engine.cost(one) for token, one in behind.items()}
        return self._costs[key]
