"""What an op becomes when it is sent: its sampling merged with the branch's, its seed, its limits.

Knows the wire's requests and budgets; it does not know what stands in a branch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from lmprog import wire
from lmprog.backends import Backend
from lmprog.lang.branches.budget import Budget
from lmprog.lang.ops.expressions import GenOp, SelectOp
from lmprog.lang.ops.sampling import Sampling, resolved, with_max_tokens


@dataclass(frozen=True, slots=True)
class BranchSettings:
    """What a branch, or a view of one, adds to the calls made through it."""

    sampling: Sampling = field(default_factory=Sampling)
    budget: Budget = field(default_factory=Budget)
    heal: bool | None = None
    """None: a generation heals unless it says otherwise."""
    backend: Backend | None = None
    """Where calls are asked for; None: where the run is."""
    lora: str | None = None
    """The adapter that computes them; empty: the base alone; None: that of the branch."""

    def over(self, sampling: Sampling) -> BranchSettings:
        """These settings with what `sampling` says over their own."""
        return replace(self, sampling=sampling.over(self.sampling))


SeedOf: TypeAlias = Callable[[int | None], int]
"""A call's seed, from the one that was given to its run or branch."""


def select_request(
    op: SelectOp, branch: int, call: int, settings: BranchSettings, seed_of: SeedOf
) -> wire.Select:
    """Raises where the budget is used up."""
    seed = op.seed
    if op.temperature != 0 and seed is None:
        seed = seed_of(settings.sampling.given().get("seed"))
    return wire.Select(
        branch=branch,
        call=call,
        choices=op.choices,
        method=op.method,
        temperature=op.temperature,
        seed=seed,
        priority=op.priority,
        timeout=settings.budget.time_left(op.timeout),
    )


def gen_request(
    op: GenOp[Any],
    branch: int,
    call: int,
    settings: BranchSettings,
    seed_of: SeedOf,
    *,
    streams: bool,
    default: Callable[[GenOp[Any]], int | None],
) -> tuple[wire.Generate, bool, bool]:
    """The request, whether the budget allows fewer tokens than the op, and whether nobody has named
    a limit; `default` is the one it then has. Raises where the budget is used up.
    """
    budget, own = settings.budget, op.sampling.given()
    timeout = budget.time_left(op.timeout)
    given = {**settings.sampling.given(), **own}
    if own.get("seed") is None:
        given["seed"] = seed_of(given.get("seed"))
    if op.tp is not str or op.constraint is not None:
        from lmprog.lang.ops.typed import natural_stops

        if "stop" not in given:
            given["stop"] = natural_stops(op.tp)
    has_default_limit = "max_tokens" not in given
    if has_default_limit:
        limit = default(op)
        is_open = limit is None and given.get("beams") is not None  # of a search each step counts
        given["max_tokens"] = wire.SamplingParams().max_tokens if is_open else limit
    wanted = resolved(given)
    sampling = _within_tokens(wanted, budget) if budget.limits_tokens else wanted
    request = wire.Generate(
        branch=branch,
        call=call,
        sampling=sampling,
        constraint=op.constraint,
        stream=streams or op.reasoning is not None,  # reasoning tokens are counted as they come
        priority=op.priority,
        timeout=timeout,
        heal=settings.heal is not False if op.heal is None else op.heal,
        keep=op.keep,
        judge=op.judge,
        tools=op.offer,
    )
    return request, sampling.max_tokens != wanted.max_tokens, has_default_limit


def _within_tokens(sampling: wire.SamplingParams, budget: Budget) -> wire.SamplingParams:
    """No more tokens than the budget has left. Raises where that is less than must be generated."""
    left = budget.tokens_left()
    if left is None or (
        sampling.max_tokens is not None and sampling.max_tokens * sampling.n <= left
    ):
        return sampling
    each = left // sampling.n
    if each < max(sampling.min_tokens, 1):
        raise budget.out_of_tokens()
    return with_max_tokens(sampling, each)
