"""Compiles patterns, schemas, choices and grammars into automata over tokens.

`compile_constraint` (or a `ConstraintCache`) makes a `Constraint` for a `Vocabulary`; the runtime
asks it for masks and forced text.
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
