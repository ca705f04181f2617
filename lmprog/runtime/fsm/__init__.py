"""Patterns, schemas, choices and grammars as automata over tokens: what may come next, and what must.

`compile_constraint` (or a `ConstraintCache`) makes a `Constraint` for a `Vocabulary`; the runtime asks it for masks.
"""

from __future__ import annotations

from lmprog.runtime.fsm.constraint import (
    Choices,
    Constraint,
    Grammar,
    JsonSchema,
    Limits,
    MaskRow,
    Regex,
    Spec,
    Substring,
)

__all__ = ["Choices", "Constraint", "Grammar", "JsonSchema", "Limits", "MaskRow", "Regex", "Spec", "Substring"]
