"""Caches compiled constraints by specification and vocabulary.

Least recently used first out, bounded by an estimate of bytes, in memory only. Thread-safe:
compilation happens outside the lock, so two threads may compile the same specification once each;
the first result is kept. Knows no automaton.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from lmprog import wire
from lmprog.constraints.compiling.compiler import DEFAULT_LIMITS, compile_constraint
from lmprog.constraints.constraint import CompileLimits, Constraint
from lmprog.constraints.regular import RegularConstraint
from lmprog.constraints.unique_items import UniqueItemsConstraint
from lmprog.constraints.vocabulary import Vocabulary

_Key = tuple[wire.Constraint, str, CompileLimits]
_OURS = RegularConstraint, UniqueItemsConstraint
_OTHER_ENGINE_BYTES = 1 << 20
_ENTRY_BYTES = 10 << 10
"""Of an entry beside its automaton and its masks: the specification, and the objects around it."""


class ConstraintCache:
    def __init__(self, max_bytes: int = 128 << 20, limits: CompileLimits = DEFAULT_LIMITS) -> None:
        self._max_bytes = max_bytes
        self._limits = limits
        self._held: OrderedDict[_Key, Constraint] = OrderedDict()
        self._sizes: dict[_Key, int] = {}
        """When they were last measured."""
        self._total = 0
        self._used: set[_Key] = set()
        """Those that may have grown since."""
        self._lock = Lock()

    def get(self, spec: wire.Constraint, vocabulary: Vocabulary) -> Constraint:
        """The constraint, compiled if needed. Raises what `compile_constraint` raises; errors are
        not cached.
        """
        found = self.peek(spec, vocabulary)
        return found or self.put(
            spec, vocabulary, compile_constraint(spec, vocabulary, self._limits)
        )

    def put(self, spec: wire.Constraint, vocabulary: Vocabulary, made: Constraint) -> Constraint:
        """Caches `made` unless there is an entry already; returns the cached one."""
        key = (spec, vocabulary.digest, self._limits)
        with self._lock:
            made = self._held.setdefault(key, made)
            self._held.move_to_end(key)
            for used in (*self._used, key):
                self._measure(used)
            self._used = {key}
            while len(self._held) > 1 and self._total > self._max_bytes:
                oldest, _ = self._held.popitem(last=False)
                self._total -= self._sizes.pop(oldest)
                self._used.discard(oldest)
        return made

    def _measure(self, key: _Key) -> None:
        """Constraints grow while they are used: those that were used are measured again, and not
        all, of which there may be thousands.
        """
        size = _size_of(self._held[key])
        self._total += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def peek(self, spec: wire.Constraint, vocabulary: Vocabulary) -> Constraint | None:
        """The constraint if it is cached, else None."""
        key = (spec, vocabulary.digest, self._limits)
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                self._used.add(key)
            return found

    def clear(self) -> None:
        """Removes all entries; constraints in use live on until their calls end."""
        with self._lock:
            self._held.clear()
            self._sizes.clear()
            self._used.clear()
            self._total = 0

    @property
    def num_bytes(self) -> int:
        """An estimate of all, measured now."""
        with self._lock:
            return sum(map(_size_of, self._held.values()))

    def __len__(self) -> int:
        return len(self._held)


def _size_of(held: Constraint) -> int:
    own = held.num_bytes if isinstance(held, _OURS) else _OTHER_ENGINE_BYTES
    return own + _ENTRY_BYTES
