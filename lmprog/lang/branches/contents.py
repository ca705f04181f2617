"""What can be appended to a branch, and what each kind of it is there: text, roles, calls, results.

Knows contents; what they become on the wire is the branch's.
"""

from __future__ import annotations

from typing import Any, Protocol

from lmprog import wire
from lmprog.errors import ProgramError
from lmprog.lang.branches import tool_turns
from lmprog.lang.branches.call_request import BranchSettings
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.mark_text import Mark, split
from lmprog.lang.branches.marks import call_of
from lmprog.lang.branches.pending_call import PendingCall
from lmprog.lang.branches.tool_turns import CallingBranch
from lmprog.lang.branches.variables import Variable
from lmprog.lang.ops.expressions import Concat, GenOp, RoleBeginExpr, RoleEndExpr, SelectOp
from lmprog.lang.ops.tool_calls import ToolResults


class FilledBranch(CallingBranch, Protocol):
    """A branch that contents are appended to."""

    def put(self, content: object, settings: BranchSettings) -> None: ...

    def put_text(self, text: str, quoted: bool = False) -> None: ...

    def put_result(self, call: PendingCall) -> None: ...

    def put_role(self, content: RoleBeginExpr | RoleEndExpr) -> None: ...

    def request(self, op: GenOp[Any] | SelectOp, settings: BranchSettings) -> Gen[Any]: ...


def put(branch: FilledBranch, content: object, settings: BranchSettings) -> None:
    """Appends `content`. Raises `ProgramError` for what no branch can hold."""
    if isinstance(content, wire.Letters):
        branch.put_text(content, quoted=True)
    elif isinstance(content, str):
        for piece in split(content):
            if isinstance(piece, Mark):
                call = call_of(piece, branch.scope)
                if call.is_filled_in(branch.scope):
                    branch.put_result(call)
                else:
                    branch.put(call, settings)
            else:
                branch.put_text(piece)
    elif isinstance(content, GenOp | SelectOp):
        branch.request(content, settings)
    elif isinstance(content, Concat | list | tuple):
        for part in content.parts if isinstance(content, Concat) else tuple(content):
            branch.put(part, settings)
    elif isinstance(content, RoleBeginExpr | RoleEndExpr):
        branch.put_role(content)
    elif isinstance(content, ToolResults):
        branch.put(tool_turns.result_parts(branch, content), settings)
    elif isinstance(content, PendingCall):
        if content.is_pending_in(branch.scope):
            branch.put_result(content)
        else:  # letters, as the runtime would fill it in
            branch.put_text(content.text, quoted=True)
    elif isinstance(content, Variable):
        for part in content.contents():
            branch.put(part, settings)
    else:
        kind = "None" if content is None else type(content).__name__
        raise ProgramError(
            f"{kind} cannot be appended to a branch; append text, a gen, a select, a role, "
            "or a list of these"
        )
