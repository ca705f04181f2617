"""What one client has open: its branches and its calls, by the client's own numbers. Knows nothing
of running them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmprog import wire
from lmprog.errors import UnknownName
from lmprog.runtime.programs.active_call import ActiveCall
from lmprog.runtime.programs.branch import Promise, RuntimeBranch


@dataclass(slots=True)
class ClientState:
    """What one client has open."""

    branches: dict[int, RuntimeBranch] = field(default_factory=dict)
    calls: dict[int, ActiveCall] = field(default_factory=dict)
    """Calls whose branch is open: under way, or ended and still to be referred to."""

    def promise(self, ref: wire.Ref) -> Promise:
        """What `ref` stands for; one that is broken already where its call is not known."""
        active = self.calls.get(ref.call)
        if active is None or ref.index >= len(active.promises):
            error = UnknownName(
                f"text refers to call {ref.call}, which is not known.", name=str(ref.call)
            )
            return Promise(error=error)
        return active.promises[ref.index]


def unknown_branch(number: int) -> UnknownName:
    """The mistake of naming a branch that is not there."""
    return UnknownName(f"branch {number} is not open.", name=str(number))
