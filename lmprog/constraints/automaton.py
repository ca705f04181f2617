"""The lazily determinised automaton of a net: the pure-Python twin of the native one.

A *position* is a leaf's state and its continuation, a chain of *frames* (hash-consed, as the net
may be recursive): the rest of a sequence, or a repetition with its counters. A state is a set of
positions, created when first reached, so only visited states cost memory. If two positions differ
only in their counters and one accepts everything that the other does, only that one is kept:
`(\\w+\\s?){1,200}` stays small.

Since the net is trimmed, every position, and so every state but 0 (the dead state), can reach
acceptance. Knows bytes; does not know tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from lmprog.constraints.constraint import CompileLimits, too_large
from lmprog.constraints.leaves import UNREACHABLE
from lmprog.constraints.net import ALT, LEAF, NO_LIMIT, ONCE, REPEAT, SEQ, TABLE, Net
from lmprog.constraints.once import BEGUN, READING, once_nodes
from lmprog.constraints.text_table import TextTable

DEAD = 0


class MemoryFull(Exception):
    """The automaton has reached its state limit. Caught within this package."""


class _Frame(NamedTuple):
    """A continuation: the items of a SEQ from `first` on, `first` to `second` more rounds, what
    follows the members `first` of a ONCE at the place `second`, or the state `first` of a TABLE
    after `second` characters.
    """

    node: int
    first: int
    second: int
    rest: int


class _Closure(NamedTuple):
    positions: tuple[int, ...]
    final: bool


class LazyAutomaton:
    """One net's automaton; grows as it is used."""

    def __init__(self, net: Net, limits: CompileLimits) -> None:
        self._kind: list[int] = net.kind.tolist()
        self._args: list[list[int]] = net.args.tolist()
        self._items: list[int] = net.items.tolist()
        self._node_cost: list[int] = net.node_cost.tolist()
        self._starts: list[int] = net.edge_start.tolist()
        self._edges: list[list[int]] = net.edges.tolist()
        self._ends: list[int] = net.final.tolist()
        self._state_cost: list[int] = net.state_cost.tolist()
        self._once = once_nodes(self._kind, self._args, self._items, self._node_cost)
        self._limits = limits
        self._root = net.root
        self._room = limits.max_states
        self._states_before = self._held_before = 0
        self._clear()

    def _clear(self) -> None:
        """Resets the memory to the start state."""
        self._frames: list[_Frame] = [_Frame(-1, 0, 0, -1)]  # frame 0: end of the net
        self._frame_cost: list[int] = [0]
        self._frame_ids: dict[_Frame, int] = {}
        self._frame_closures: dict[int, _Closure] = {}
        self._positions: list[tuple[int, int]] = []
        self._position_ids: dict[tuple[int, int], int] = {}
        self._sets: list[_Closure] = [_Closure((), False)]
        self._set_ids: dict[_Closure, int] = {self._sets[0]: DEAD}
        self._costs: list[int] = [UNREACHABLE]
        self._rows: dict[int, list[int]] = {DEAD: [DEAD] * 256}
        self._held = 0
        self.start = self._state(self._close([(self._root, 0)], []))

    @property
    def num_states(self) -> int:
        return len(self._sets)

    def is_final(self, state: int) -> bool:
        return self._sets[state].final

    def stands_at(self, state: int, leaf_state: int) -> bool:
        return any(self._positions[one][0] == leaf_state for one in self._sets[state].positions)

    def cost(self, state: int) -> int:
        return self._costs[state]

    def begin_call(self) -> None:
        """Raises MemoryFull if states must be collected before a call may create more."""
        if len(self._sets) >= self._room or self._held >= self._limits.max_positions:
            raise MemoryFull
        self._states_before, self._held_before = len(self._sets), self._held

    def collect(self, needed: Sequence[int], wanted: Sequence[int]) -> list[int]:
        """See `MaskEngine.collect`."""
        sets, positions, frames = self._sets, self._positions, self._frames
        self._states_before = self._held_before = 0
        self._clear()
        moved: list[int] = []
        for number in [*needed, *wanted]:
            is_needed = len(moved) < len(needed)
            if not is_needed and 2 * len(self._sets) > self._limits.max_states:
                moved.append(DEAD)
                continue
            self._states_before, self._held_before = len(self._sets), self._held
            at = [positions[one] for one in sets[number].positions]
            here = [self._position(leaf, self._moved(frame, frames)) for leaf, frame in at]
            moved.append(self._state(_Closure(tuple(here), sets[number].final)))
        self._room = max(self._limits.max_states, 2 * len(self._sets))
        return moved

    def _moved(self, number: int, frames: list[_Frame]) -> int:
        """Copies a frame of the previous memory; returns its new number."""
        chain = []
        while number != 0:
            chain.append(frames[number])
            number = frames[number].rest
        for frame in reversed(chain):
            number = self._frame(frame._replace(rest=number))
        return number

    def run(self, state: int, text: bytes) -> int:
        self.begin_call()
        for byte in text:
            if state == DEAD:
                break
            state = self.row(state)[byte]
        return state

    def forced(self, state: int, most: int) -> bytes:
        out = bytearray()
        while len(out) < most and not self.is_final(state):
            row = self.row(state)
            byte = next(i for i, after in enumerate(row) if after != DEAD)
            if any(row[byte + 1 :]):
                break
            out.append(byte)
            state = row[byte]
        return bytes(out)

    def row(self, state: int) -> list[int]:
        row = self._rows.get(state)
        if row is None:
            row = self._rows[state] = self._determinise(state)
        return row

    def _determinise(self, state: int) -> list[int]:
        edges = []
        for position in self._sets[state].positions:
            leaf_state, frame = self._positions[position]
            for low, high, to in self._edges[
                self._starts[leaf_state] : self._starts[leaf_state + 1]
            ]:
                edges.append((low, high, to, frame))
        row = [DEAD] * 256
        bounds = sorted({bound for low, high, _, _ in edges for bound in (low, high + 1)})
        known: dict[frozenset[tuple[int, int]], int] = {}
        for first, after in pairwise(bounds):
            targets = frozenset(
                (to, frame) for low, high, to, frame in edges if low <= first <= high
            )
            if not targets:
                continue
            found = known.get(targets)
            if found is None:
                found = known[targets] = self._state(self._union(targets))
            row[first:after] = [found] * (after - first)
        return row

    def _union(self, targets: frozenset[tuple[int, int]]) -> _Closure:
        """The closure after a byte that leads to these leaf states, each with its frame."""
        positions: set[int] = set()
        final = False
        for leaf_state, frame in targets:
            if self._starts[leaf_state] != self._starts[leaf_state + 1]:
                positions.add(self._position(leaf_state, frame))
            if self._ends[leaf_state]:
                closure = self._frame_closure(frame)
                positions.update(closure.positions)
                final |= closure.final
        return _Closure(tuple(positions), final)

    def _frame_closure(self, frame: int) -> _Closure:
        found = self._frame_closures.get(frame)
        if found is None:
            found = self._frame_closures[frame] = self._close([], [frame])
        return found

    def _close(self, entered: list[tuple[int, int]], resumed: list[int]) -> _Closure:
        """Everything reachable without reading a byte from nodes (with their frames) and from
        frames.
        """
        positions: set[int] = set()
        final = False
        seen: set[tuple[int, int, int]] = set()
        while entered or resumed:
            if entered:
                node, frame = entered.pop()
                kind, (first, second, third) = self._kind[node], self._args[node]
                if kind == LEAF:
                    if self._starts[first] != self._starts[first + 1]:
                        positions.add(self._position(first, frame))
                    if self._ends[first]:
                        resumed.append(frame)
                    continue
                if kind == ALT:
                    if (node, frame, -1) not in seen:
                        seen.add((node, frame, -1))
                        entered += [
                            (item, frame) for item in reversed(self._items[first : first + second])
                        ]
                    continue
                low, high = (second, third) if kind == REPEAT else (0, 0)
                work = _Frame(node, low, high, frame)
            else:
                number = resumed.pop()
                if number == 0:
                    final = True
                    continue
                work = self._frames[number]
            self._proceed(work, entered, resumed, seen)
        return _Closure(tuple(positions), final)

    def _proceed(
        self,
        work: _Frame,
        entered: list[tuple[int, int]],
        resumed: list[int],
        seen: set[tuple[int, int, int]],
    ) -> None:
        """Continues a sequence, or does one more or no more round of a repetition."""
        node, first, second, rest = work
        args = self._args[node]
        if self._kind[node] == ONCE:
            self._choose(work, entered, resumed)
            return
        if self._kind[node] == SEQ:
            if first == args[1]:
                resumed.append(rest)
                return
            behind = rest if first + 1 == args[1] else self._frame(_Frame(node, first + 1, 0, rest))
            entered.append((self._items[args[0] + first], behind))
            return
        if self._kind[node] == TABLE:
            table = TextTable(self._items, args[0])
            if table.may_stop(first, second):
                resumed.append(rest)
            for entry, then in table.following(node, first, second, self._args):
                entered.append((entry, self._frame(_Frame(*then, rest)) if then else rest))
            return
        if first == 0:
            # Reached again without reading a byte, a repetition can only have fewer rounds left.
            if (node, rest, -2) in seen:
                return
            seen.add((node, rest, -2))
            resumed.append(rest)
        if second != 0:
            fewer = second if second == NO_LIMIT else second - 1
            after = _Frame(node, max(first - 1, 0), fewer, rest)
            entered.append((args[0], self._frame(after) if fewer else rest))

    def _choose(self, work: _Frame, entered: list[tuple[int, int]], resumed: list[int]) -> None:
        """Goes on with a member that may follow, or ends."""
        node, used, where, rest = work
        once = self._once[node]
        if where == BEGUN:
            for member, item in once.choices(used):
                entered.append((item, self._frame(_Frame(node, used, READING + member, rest))))
            return
        if where >= READING:
            used = once.after(used, where - READING)
        if once.may_end(used):
            resumed.append(rest)
        if once.may_go_on(used):
            entered.append((once.separator, self._frame(_Frame(node, used, BEGUN, rest))))

    def _frame(self, frame: _Frame) -> int:
        found = self._frame_ids.get(frame)
        if found is None:
            found = self._frame_ids[frame] = len(self._frames)
            self._frames.append(frame)
            args = self._args[frame.node]
            if self._kind[frame.node] == SEQ:
                items = self._items[args[0] + frame.first : args[0] + args[1]]
                cost = sum(self._node_cost[item] for item in items)
            elif self._kind[frame.node] == ONCE:
                cost = self._once[frame.node].cost(frame.first, frame.second)
            elif self._kind[frame.node] == TABLE:
                cost = TextTable(self._items, args[0]).cost(frame.first, frame.second)
            else:
                cost = frame.first * self._node_cost[args[0]]
            self._frame_cost.append(min(cost + self._frame_cost[frame.rest], UNREACHABLE))
        return found

    def _position(self, leaf_state: int, frame: int) -> int:
        key = (leaf_state, frame)
        found = self._position_ids.get(key)
        if found is None:
            found = self._position_ids[key] = len(self._positions)
            self._positions.append(key)
        return found

    def _state(self, closure: _Closure) -> int:
        kept = closure.positions if len(closure.positions) < 2 else self._largest(closure.positions)
        key = _Closure(tuple(sorted(kept)), closure.final)
        found = self._set_ids.get(key)
        if found is None:
            found = self._set_ids[key] = len(self._sets)
            self._sets.append(key)
            ways = (
                self._state_cost[q] + self._frame_cost[f]
                for q, f in map(self._positions.__getitem__, kept)
            )
            self._costs.append(0 if key.final else min(ways))
            self._held += len(kept) + 1
            if (
                found - self._states_before > self._limits.max_states
                or self._held - self._held_before > self._limits.max_positions
            ):
                raise too_large(self._limits)
        return found

    def _largest(self, positions: tuple[int, ...]) -> list[int]:
        """Removes the positions that are covered by others with the same leaf state."""
        by_leaf: dict[int, list[int]] = {}
        for one in positions:
            kept = by_leaf.setdefault(self._positions[one][0], [])
            if any(self._covers(other, one) for other in kept):
                continue
            kept[:] = [other for other in kept if not self._covers(one, other)]
            kept.append(one)
        return [one for kept in by_leaf.values() for one in kept]

    def _covers(self, large: int, small: int) -> bool:
        """Whether, judging by the counters, `large` accepts every continuation of `small` (same
        leaf).
        """
        left, right = self._positions[large][1], self._positions[small][1]
        while left != right:
            if left == 0 or right == 0:
                return False
            a, b = self._frames[left], self._frames[right]
            if a.node != b.node:
                return False
            if self._kind[a.node] == REPEAT:
                if a.first > b.first or (
                    a.second != NO_LIMIT and (b.second == NO_LIMIT or b.second > a.second)
                ):
                    return False
            elif (a.first, a.second) != (b.first, b.second):
                return False
            left, right = a.rest, b.rest
        return True
