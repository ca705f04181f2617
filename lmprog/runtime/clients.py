"""What one client has open: its branches and its calls, by the client's own numbers. Knows nothing of running them."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmprog import wire
from lmprog.errors import UnknownName
from lmprog.runtime.branch import Branch, Promise
from lmprog.runtime.ongoing import Ongoing


@dataclass(slots=True)
class Client:
    """What one client has open."""

    branches: dict[int, Branch] = field(default_factory=dict)
    calls: dict[int, Ongoing] = field(default_factory=dict)
    """Calls whose branch is open: under way, or ended and still to be referred to."""

    def promise(self, ref: wire.Ref) -> Promise:
        """What `ref` stands for; one that is broken already where its call is not known."""
        ongoing = self.calls.get(ref.call)
        if ongoing is None or ref.index >= len(ongoing.promises):
            error = UnknownName(f"text refers to call {ref.call}, which is not known.", name=str(ref.call))
            return Promise(error=error)
        return ongoing.promises[ref.index]


def unknown_branch(number: int) -> UnknownName:
    """The mistake of naming a branch that is not there."""
    return UnknownName(f"branch {number} is not open.", name=str(number))
