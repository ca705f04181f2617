"""Where a branch stood, to go back to: a fork that nobody asks anything of."""

from __future__ import annotations

from lmprog.errors import ProgramError
from lmprog.lang.branches.cursor import Cursor


class BranchSnapshot:
    """Of one branch. It may be gone back to any number of times."""

    def __init__(self, kept: Cursor, of: Cursor) -> None:
        self._kept = kept
        self._of = of

    def close(self) -> None:
        """Nobody will go back to it. Its memory may be used for others."""
        self._kept.close()
        self._kept.scope.client.hurry()

    def go_back(self, branch: Cursor) -> None:
        """Raises `ProgramError` for another branch, or where it was closed."""
        if branch is not self._of:
            raise ProgramError(
                "this snapshot is of another branch; each branch goes back to its own"
            )
        branch.go_back_to(self._kept)


def snapshot_of(branch: Cursor) -> BranchSnapshot:
    """One of `branch`, as it is now."""
    (kept,) = branch.fork(1)
    return BranchSnapshot(kept, branch)


def restore(branch: Cursor, snapshot: BranchSnapshot) -> None:
    """`branch` is where it was."""
    snapshot.go_back(branch)
