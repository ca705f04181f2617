"""Reasoning before a constrained answer: free text between marks, and then the answer.

Knows ops; where the reasoning stays is the branch's to say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, Self, TypeVar

from lmprog.lang.branches.call_request import BranchSettings
from lmprog.lang.branches.gen import Gen
from lmprog.lang.ops.expressions import GenOp, thought_op


class ThinkingBranch(Protocol):
    """The branch on which the reasoning happens."""

    def put_text(self, text: str, quoted: bool = False) -> None: ...

    def ask(
        self, op: Any, settings: BranchSettings, home: Self, thought: Gen[Any] | None = None
    ) -> Gen[Any]: ...


B = TypeVar("B", bound=ThinkingBranch)


def think_and_ask(aside: B, op: GenOp[Any], settings: BranchSettings, home: B) -> Gen[Any]:
    """Two calls, of which `home` gets the second."""
    marks = op.reasoning
    assert marks is not None, "it was asked to reason"
    if not marks.opened:
        aside.put_text(marks.begin)
    thought = aside.ask(thought_op(op, marks), settings, aside)
    aside.put_text(marks.end)
    return aside.ask(replace(op, reasoning=None), settings, home, thought)
