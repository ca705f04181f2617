"""Caches compiled constraints by specification and vocabulary.

Least recently used first out, bounded by an estimate of bytes, in memory only. Thread-safe:
compilation happens outside the lock, so two threads may compile the same specification once each;
the first result is kept. Knows no automaton.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from lmprog import wire
from lmprog.constraints.compiler import DEFAULT_LIMITS, compile_constraint
from lmprog.constraints.constraint import CompileLimits, Constraint
from lmprog.constraints.regular import RegularConstraint
from lmprog.constraints.vocabulary import Vocabulary

_Key = tuple[wire.Constraint, str, CompileLimits]
_OTHER_ENGINE_BYTES = 1 << 20


class ConstraintCache:
    def __init__(self, max_bytes: int = 256 << 20, limits: CompileLimits = DEFAULT_LIMITS) -> None:
        self._max_bytes = max_bytes
        self._limits = limits
        self._held: OrderedDict[_Key, Constraint] = OrderedDict()
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
            while len(self._held) > 1 and self.num_bytes > self._max_bytes:
                self._held.popitem(last=False)
        return made

    def peek(self, spec: wire.Constraint, vocabulary: Vocabulary) -> Constraint | None:
        """The constraint if it is cached, else None."""
        key = (spec, vocabulary.digest, self._limits)
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def clear(self) -> None:
        """Removes all entries; constraints in use live on until their calls end."""
        with self._lock:
            self._held.clear()

    @property
    def num_bytes(self) -> int:
        """An estimate, recomputed each time because constraints grow while they are used."""
        return sum(
            held.num_bytes if isinstance(held, RegularConstraint) else _OTHER_ENGINE_BYTES
            for held in self._held.values()
        )

    def __len__(self) -> int:
        return len(self._held)
