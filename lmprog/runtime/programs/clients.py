"""What one client has open: its branches and calls, by the client's own numbers. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmprog import wire
from lmprog.errors import Overloaded, UnknownName
from lmprog.runtime.programs.active_call import ActiveCall
from lmprog.runtime.programs.branch import Promise, RuntimeBranch

MAX_BRANCHES = 65_536
"""Open branches of one client."""
MAX_CALLS = 65_536
"""Calls of one client on open branches, done or not."""


@dataclass(slots=True)
class ClientState:
    """What one client has open. A call is known as long as its branch is open: under way, or done
    and still to be referred to.
    """

    branches: dict[int, RuntimeBranch] = field(default_factory=dict)
    calls: dict[int, ActiveCall] = field(default_factory=dict)
    _calls_of: dict[int, list[ActiveCall]] = field(default_factory=dict)
    """By the number of their branch."""

    def add(self, call: ActiveCall) -> None:
        """A call on an open branch."""
        self.calls[call.id] = call
        self._calls_of.setdefault(call.branch.id, []).append(call)

    def take_calls(self, branch: int) -> list[ActiveCall]:
        """Takes out all calls of a branch, done or not."""
        taken = self._calls_of.pop(branch, [])
        for call in taken:
            del self.calls[call.id]
        return taken

    def missing_branch(self, number: int) -> UnknownName | Overloaded:
        """Why there is no branch of that number: it is not open, or there was no room for it."""
        if len(self.branches) < MAX_BRANCHES:
            return unknown_branch(number)
        return Overloaded(
            f"branch {number} is not open, and this client has {len(self.branches):,} open "
            f"branches of at most {MAX_BRANCHES:,}; close some, or use several clients.",
            retry_after=1.0,
        )

    def promise(self, ref: wire.Ref) -> Promise:
        """The text that `ref` refers to; one with an error where there is no such call or
        result.
        """
        call = self.calls.get(ref.call)
        if call is None or ref.index >= len(call.promises):
            error = UnknownName(
                f"text refers to call {ref.call}, which is not known.", name=str(ref.call)
            )
            return Promise(error=error)
        return call.promises[ref.index]


def unknown_branch(number: int) -> UnknownName:
    """The error for a branch that is not open."""
    return UnknownName(f"branch {number} is not open.", name=str(number))
