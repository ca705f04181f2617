"""How long the calls of a run, or of a fork's branches, may take together, and how many tokens.

Budgets nest: what is spent counts for every budget around it, and the smallest one decides. When
one is used up, the calls that run in it are cancelled, and they and every later op raise
`DeadlineExceeded` or `TokenBudgetExceeded`. Tokens are counted as APIs bill them: prompt and
generated tokens of every call, cached ones included, so that a run costs the same whatever the
runtime has cached. Of a call this module knows only how to cancel it and what it used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from lmprog import wire
from lmprog.errors import DeadlineExceeded, InvalidParameter, LmprogError, TokenBudgetExceeded


class Budget:
    """Seconds and tokens, each perhaps unlimited. The seconds are counted from `begin`."""

    def __init__(
        self,
        parent: Budget | None = None,
        *,
        timeout: float | None = None,
        max_total_tokens: int | None = None,
        what: str = "run",
    ) -> None:
        limits = (
            ("timeout", timeout, float, "0 < x (seconds)"),
            ("max_total_tokens", max_total_tokens, int, "0 < x"),
        )
        for name, value, kind, allowed in limits:
            if value is not None and not (isinstance(value, int | kind) and value > 0):
                message = f"{name}={value!r} is not allowed; give {allowed}"
                raise InvalidParameter(message, name=name, value=repr(value), allowed=allowed)
        self.over: LmprogError | None = None
        self._spent = 0  # tokens
        self._parent = parent
        self._timeout = timeout
        self._max = max_total_tokens
        self._what = what
        self._deadline: float | None = None
        self._running: set[Callable[[], None]] = set()  # how each running call is cancelled
        self._lock = threading.Lock()

    def begin(self) -> None:
        """The time is counted from now."""
        if self._timeout is not None:
            self._deadline = time.monotonic() + self._timeout

    def _around(self) -> Iterator[Budget]:
        """This one and those around it."""
        budget: Budget | None = self
        while budget is not None:
            yield budget
            budget = budget._parent

    @property
    def ended(self) -> LmprogError | None:
        """Why nothing more can be asked; None while something can."""
        return next((budget.over for budget in self._around() if budget.over is not None), None)

    def check(self) -> None:
        """Raises where the tokens are used up."""
        if self.ended is not None:
            raise type(self.ended)(self.ended.message)

    # --- time

    def _first_to_end(self) -> Budget | None:
        limited = [budget for budget in self._around() if budget._deadline is not None]
        return min(limited, key=lambda budget: budget._deadline or 0.0, default=None)

    def time_left(self, wanted: float | None = None) -> float | None:
        """The seconds that a call may take: what it wants, within what is left. Raises when nothing
        is.
        """
        budget = self._first_to_end()
        if budget is None or budget._deadline is None:
            return wanted
        left = budget._deadline - time.monotonic()
        if left <= 0:
            raise self.out_of_time()
        return left if wanted is None else min(left, wanted)

    def out_of_time(self) -> DeadlineExceeded:
        budget = self._first_to_end() or self
        return DeadlineExceeded(
            f"the time given to this {budget._what} is over (timeout={budget._timeout} s)"
        )

    # --- tokens

    def _least(self) -> Budget | None:
        """The one with the fewest tokens left; None where none is limited."""
        limited = [budget for budget in self._around() if budget._max is not None]
        return min(limited, key=lambda budget: budget._left(), default=None)

    def _left(self) -> int:
        return 0 if self._max is None else self._max - self._spent

    def tokens_left(self) -> int | None:
        """What may still be generated; None without a limit. Raises when nothing may."""
        self.check()
        budget = self._least()
        if budget is None:
            return None
        if budget._left() <= 0:
            raise self.out_of_tokens()
        return budget._left()

    def out_of_tokens(self) -> TokenBudgetExceeded:
        budget = self._least() or self
        return TokenBudgetExceeded(
            f"the tokens given to this {budget._what} are used up (max_total_tokens={budget._max})"
        )

    # --- calls

    @property
    def limits_tokens(self) -> bool:
        return self._least() is not None

    def started(self, cancel: Callable[[], None]) -> None:
        """A call begins; `cancel` ends it. Raises where another call has just used up the rest."""
        for budget in self._around():
            with budget._lock:
                budget.check()
                budget._running.add(cancel)

    def done(
        self, cancel: Callable[[], None], usage: wire.Usage | None, *, cut_short: bool
    ) -> None:
        """That call has ended. With `cut_short` it would have gone on, had the budget allowed
        more.
        """
        tokens = 0 if usage is None else usage.prompt + usage.generated
        for budget in self._around():
            with budget._lock:
                budget._running.discard(cancel)
                budget._spent += tokens
        for budget in self._around():
            if budget._max is not None and budget._left() < 0:
                budget._end()
        least = self._least()
        if cut_short and least is not None:
            least._end()

    def _end(self) -> None:
        why = self.out_of_tokens()
        with self._lock:
            self.over = self.over or why
            running, self._running = list(self._running), set()
        for cancel in running:
            cancel()
