"""What one client has open: its branches and calls, by the client's own numbers. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmprog import wire
from lmprog.errors import UnknownName
from lmprog.runtime.programs.active_call import ActiveCall
from lmprog.runtime.programs.branch import Promise, RuntimeBranch


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

    def promise(self, ref: wire.Ref) -> Promise:
        """The text that `ref` refers to; one with an error where there is no such call or result."""
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
