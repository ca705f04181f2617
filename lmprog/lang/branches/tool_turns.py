"""How tools get into a branch: their descriptions, the constraint of their calls, their results.

A service with native calls takes tools beside its messages. Everywhere else they are text: the
descriptions stand at the beginning of the branch, or before what it has not sent yet, and calls
have the form of the checkpoint's own template. Nothing here waits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from lmprog import wire
from lmprog.calls.constraining import calls_constraint, free_or_calls
from lmprog.calls.describing import result_text, tools_text
from lmprog.calls.writing import as_json
from lmprog.lang.branches.run_context import RunContext
from lmprog.lang.ops.expressions import GenOp, RoleBeginExpr, RoleEndExpr
from lmprog.lang.ops.tool_calls import OfferedTools, ToolResults
from lmprog.lang.ops.tool_functions import Tool


class CallingBranch(Protocol):
    """A branch on which tools may be called."""

    shown_tools: frozenset[str]

    @property
    def scope(self) -> RunContext: ...

    def has_roles(self) -> bool: ...

    def begins_turn(self) -> bool: ...

    def write_early(self, text: str) -> None: ...


def is_native(branch: CallingBranch) -> bool:
    """Services take tools with messages only."""
    return branch.scope.client.welcome.tools.is_native and branch.has_roles()


def offered(branch: CallingBranch, op: GenOp[Any]) -> GenOp[Any]:
    """The op as it is asked for on this branch's backend; shows the tools where they are text."""
    tools, welcome = op.tools, branch.scope.client.welcome
    if tools is None:
        return op
    form = welcome.tools.form
    is_free = op.reasoning is None and branch.begins_turn()
    thought = welcome.tools.thought if is_free else ""
    op = replace(op, tp=OfferedTools(tools, welcome.tools, is_native(branch), thought))
    if is_native(branch):
        choice: wire.ToolChoice = "required" if tools.is_required else "auto"
        offer = wire.ToolOffer(as_json(tools.described), choice, tools.is_parallel)
        return replace(op, offer=offer)
    show(branch, tools.tools)
    constraint: wire.Constraint | None = None
    if tools.is_required:
        constraint = calls_constraint(form, tools.shapes, tools.is_parallel)
    elif welcome.vocab_size:  # without tokens nothing is constrained
        constraint = free_or_calls(form, tools.shapes, tools.is_parallel)
    return replace(op, constraint=constraint)


def show(branch: CallingBranch, tools: tuple[Tool, ...]) -> None:
    """Describes those of the tools that this branch has not been told of."""
    if is_native(branch):
        return
    new = {as_json(tool.described): tool.described for tool in tools}
    shown = [about for key, about in new.items() if key not in branch.shown_tools]
    if shown:
        branch.shown_tools |= frozenset(new)
        branch.write_early(tools_text(shown, branch.scope.client.welcome.tools.form))


def result_parts(branch: CallingBranch, results: ToolResults) -> list[object]:
    """What the branch is told: turns of the role `tool` where there are any, else one of the
    user's, else text.
    """
    texts = [result.text for result in results.results]
    if not texts:
        return []
    opens = is_native(branch) or branch.scope.client.welcome.tools.opens_results
    if branch.has_roles() and opens:
        turns = [(RoleBeginExpr("tool"), text, RoleEndExpr("tool")) for text in texts]
        return [part for turn in turns for part in turn]
    told = "\n".join(map(result_text, texts))
    if branch.has_roles():
        return [RoleBeginExpr("user"), told, RoleEndExpr("user")]
    return [f"\n{told}\n"]
