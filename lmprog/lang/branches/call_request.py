"""What an op becomes when it is sent: its sampling merged with the branch's, its seed, its limits.

Knows the wire's requests and budgets; it does not know what stands in a branch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

from lmprog import wire
from lmprog.backends import Backend
from lmprog.lang.branches.budget import Budget
from lmprog.lang.ops.expressions import GenOp, SelectOp
from lmprog.lang.ops.sampling import Sampling, with_max_tokens
from lmprog.lang.ops.type_lengths import default_tokens
from lmprog.lang.ops.typed import natural_stops


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


@dataclass(frozen=True, slots=True)
class CallPlace:
    """The numbers of a call, and what its seed is made of."""

    branch: int
    call: int
    run_seed: int
    path: tuple[int, ...]
    ordinal: int
    """How many calls its branch made before."""

    def seed(self, sampling: Sampling) -> int:
        """From the run's or branch's seed, different for each call of each branch, the same in
        each run of the program.
        """
        given = sampling.given().get("seed")
        base = self.run_seed if given is None else given
        name = repr((base, self.path, self.ordinal)).encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1


def select_request(op: SelectOp, place: CallPlace, settings: BranchSettings) -> wire.Select:
    """Raises where the budget is used up."""
    timeout = settings.budget.time_left(op.timeout)
    draws = op.temperature != 0 and op.seed is None
    return wire.Select(
        branch=place.branch,
        call=place.call,
        choices=op.choices,
        method=op.method,
        temperature=op.temperature,
        seed=place.seed(settings.sampling) if draws else op.seed,
        priority=op.priority,
        timeout=timeout,
    )


def gen_request(
    op: GenOp[Any], place: CallPlace, settings: BranchSettings, *, streams: bool
) -> tuple[wire.Generate, bool]:
    """The request, and whether the budget allows fewer tokens than the op. Raises where the budget
    is used up.
    """
    timeout = settings.budget.time_left(op.timeout)
    merged = op.sampling.over(settings.sampling)
    if op.sampling.given().get("seed") is None:
        merged = Sampling(seed=place.seed(merged)).over(merged)
    if "stop" not in merged.given():
        merged = Sampling(stop=natural_stops(op.tp)).over(merged)
    if "max_tokens" not in merged.given():
        merged = Sampling(max_tokens=default_tokens(op.tp, op.constraint)).over(merged)
    wanted = merged.resolve()
    sampling = _within_tokens(wanted, settings.budget)
    request = wire.Generate(
        branch=place.branch,
        call=place.call,
        sampling=sampling,
        constraint=op.constraint,
        stream=streams or op.reasoning is not None,  # reasoning tokens are counted as they come
        priority=op.priority,
        timeout=timeout,
        heal=_heals(op, settings),
        keep=op.keep,
        judge=op.judge,
        tools=op.offer,
    )
    return request, sampling.max_tokens != wanted.max_tokens


def _heals(op: GenOp[Any], settings: BranchSettings) -> bool:
    if op.heal is not None:
        return op.heal
    return settings.heal is not False


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
