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
from collections.abc import Callable

from lmprog import wire
from lmprog.errors import DeadlineExceeded, LmprogError, TokenBudgetExceeded, not_allowed


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
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise not_allowed("timeout", timeout, "0 < x (seconds)")
        if max_total_tokens is not None and not (
            isinstance(max_total_tokens, int) and max_total_tokens > 0
        ):
            raise not_allowed("max_total_tokens", max_total_tokens, "0 < x")
        self.over: LmprogError | None = None
        self._spent = 0  # tokens
        self._around: tuple[Budget, ...] = (self, *(() if parent is None else parent._around))
        """This one and those around it."""
        self.limits_tokens: bool = max_total_tokens is not None or (
            parent is not None and parent.limits_tokens
        )
        self._limits_time: bool = timeout is not None or (
            parent is not None and parent._limits_time
        )
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

    @property
    def ended(self) -> LmprogError | None:
        """Why nothing more can be asked; None while something can."""
        return next((budget.over for budget in self._around if budget.over is not None), None)

    def check(self) -> None:
        """Raises where the tokens are used up."""
        ended = self.ended if self.limits_tokens else None
        if ended is not None:
            raise type(ended)(ended.message)

    # --- time

    def _first_to_end(self) -> Budget | None:
        limited = [budget for budget in self._around if budget._deadline is not None]
        return min(limited, key=lambda budget: budget._deadline or 0.0, default=None)

    def time_left(self, wanted: float | None = None) -> float | None:
        """The seconds that a call may take: what it wants, within what is left. Raises when nothing
        is.
        """
        budget = self._first_to_end() if self._limits_time else None
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
        limited = [budget for budget in self._around if budget._max is not None]
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

    def started(self, cancel: Callable[[], None]) -> None:
        """A call begins; `cancel` ends it. Raises where another call has just used up the rest."""
        for budget in self._around:
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
        for budget in self._around:
            with budget._lock:
                budget._running.discard(cancel)
                budget._spent += tokens
        for budget in self._around:
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
