"""Patterns, schemas, choices and grammars as automata over tokens: what may come next, and what
must.

`compile_constraint` (or a `ConstraintCache`) makes a `Constraint` for a `Vocabulary`; the runtime
asks it for masks.
"""

from __future__ import annotations

from lmprog.constraints.constraint import (
    CompileLimits,
    Constraint,
    MaskRow,
    State,
)

__all__ = [
    "CompileLimits",
    "Constraint",
    "MaskRow",
    "State",
]
