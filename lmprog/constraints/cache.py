"""Compiled constraints by content: one compile serves all later calls with the same specification
and vocabulary.

Least recently used first out, bounded by an estimate of bytes, in memory only. Thread-safe:
compiling happens outside of the lock, so two threads may compile the same thing once each; the
first to finish is kept. Knows no automaton.
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
        """The constraint, compiled if need be. Raises what `compile_constraint` raises; failures
        are not kept.
        """
        found = self.peek(spec, vocabulary)
        return found or self.put(
            spec, vocabulary, compile_constraint(spec, vocabulary, self._limits)
        )

    def put(self, spec: wire.Constraint, vocabulary: Vocabulary, made: Constraint) -> Constraint:
        """Keeps `made`, unless there is one already; returns the one that is kept."""
        key = (spec, vocabulary.digest, self._limits)
        with self._lock:
            made = self._held.setdefault(key, made)
            self._held.move_to_end(key)
            while len(self._held) > 1 and self.num_bytes > self._max_bytes:
                self._held.popitem(last=False)
        return made

    def peek(self, spec: wire.Constraint, vocabulary: Vocabulary) -> Constraint | None:
        """The constraint if it is there already."""
        key = (spec, vocabulary.digest, self._limits)
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def clear(self) -> None:
        """Drops all of them; those in use live on until their calls end."""
        with self._lock:
            self._held.clear()

    @property
    def num_bytes(self) -> int:
        """An estimate; a constraint grows while it is used, so it is taken anew each time."""
        return sum(
            held.num_bytes if isinstance(held, RegularConstraint) else _OTHER_ENGINE_BYTES
            for held in self._held.values()
        )

    def __len__(self) -> int:
        return len(self._held)
