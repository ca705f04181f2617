"""Which failures of a run or a fork are raised, and how several of them are raised together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lmprog.errors import Cancelled, DeadlineExceeded, TokenBudgetExceeded
from lmprog.lang.branches.pending_call import PendingCall


def unread_failures(calls: Iterable[PendingCall]) -> list[Exception]:
    """What failed and was never read: of each branch the first failure, with the others of that
    branch as notes. A branch's later calls fail for the reason of the first, which is told once.
    """
    roots = [call.root() for call in calls if not call.was_read and call.failure() is not None]
    by_branch: dict[int, list[PendingCall]] = {}
    for root in {id(root): root for root in roots if not root.was_read}.values():
        by_branch.setdefault(root.origin.branch, []).append(root)
    found: list[Exception] = []
    for first, *others in by_branch.values():
        error = first.error_at_site()
        for other in others:
            error.add_note(f"{other!r} failed, too: {other.error_at_site()} ({other.site})")
        found.append(error)
    return found


def raise_together(errors: Sequence[Exception]) -> None:
    """Raises what there is: nothing, one error as it is, or several as a group. Cancelled siblings
    are no causes.
    """
    causes = [error for error in errors if not isinstance(error, Cancelled)] or list(errors[:1])
    # a budget that is over ends many calls, and is one cause
    once = {
        error.message
        if isinstance(error, DeadlineExceeded | TokenBudgetExceeded)
        else id(error): error
        for error in reversed(causes)
    }
    causes = list(reversed(once.values()))
    if len(causes) == 1:
        raise causes[0]
    if causes:
        raise ExceptionGroup(f"{len(causes)} branches failed", causes)
