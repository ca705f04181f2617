"""A job ends within the bound of docs/promises.md, beside clients who do what they can to be served
more: several calls one after the other, in virtual time, against an equal split of the machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from lmprog import wire
from lmprog.runtime.scheduling.step_costs import QUANTUM
from tests.runtime.test_shares_hold import Asker, BusyRuntime

JOB = b"job"
COMES_AT = 3.0
"""Seconds of the others' work before it comes."""


class Job(Asker):
    """Calls one after the other, and no more."""

    def __init__(self, comes_at: float, num_calls: int) -> None:
        super().__init__(JOB, 1, 90, 24)
        self.comes_at, self.num_left = comes_at, num_calls
        self.ended_at = 0.0

    def hear(self, reply: wire.Reply, now: float) -> Iterator[wire.Op]:
        for op in super().hear(reply, now):
            self.num_left -= 1
            self.ended_at = now
            yield op

    def ask(self, now: float) -> Iterator[wire.Op]:
        self.num_open = int(now >= self.comes_at and self.num_left > 0)
        yield from super().ask(now)


def salts(name: bytes) -> list[Asker]:
    """A new one for each request."""
    liar = Asker(name, 12, 120, 4)
    liar.is_salted = True
    return [liar]


def connections(name: bytes) -> list[Asker]:
    """Many of one key."""
    liars = [Asker(b"%b %d" % (name, number), 2, 8, 40) for number in range(8)]
    for liar in liars:
        liar.account = name.decode()
    return liars


def hints(name: bytes) -> list[Asker]:
    """Answers of one token, which have hundreds."""
    liar = Asker(name, 12, 8, 300)
    liar.expected = 1
    return [liar]


def priorities(name: bytes) -> list[Asker]:
    liar = Asker(name, 12, 150, 60)
    liar.priority = 100
    return [liar]


def leaving(name: bytes) -> list[Asker]:
    """Long prompts, left before they are answered."""
    liar = Asker(name, 6, 300, 2)
    liar.close_after = 0.2
    return [liar]


LIARS = (salts, connections, hints, priorities, leaving)


def world(num_clients: int, seed: int, max_rows: int) -> tuple[BusyRuntime, Job]:
    job, dice = Job(COMES_AT, 5), random.Random(seed)
    kinds = [LIARS[number % len(LIARS)] for number in range(num_clients - 1)]
    dice.shuffle(kinds)
    others = [one for number, kind in enumerate(kinds) for one in kind(b"liar %d" % number)]
    config = {"max_rows": max_rows, "num_pages": 8192, "token_budget": 128, "max_waiting": 4096}
    return BusyRuntime([*others, job], **config), job


def run(runtime: BusyRuntime, job: Job, at_most: float) -> tuple[float, float, int, float]:
    """Seconds until the job ended and those charged for it, steps in which it had a row, the seconds
    of the longest step.
    """
    while job.num_left and runtime.talk.now < COMES_AT + at_most:
        runtime.run(runtime.talk.now + 0.05)
    own = [(at, seconds) for at, name, seconds in runtime.work if name == JOB]
    ends = sorted({at for at, _, _ in runtime.work})
    longest = max(after - before for before, after in pairwise(ends))
    ended = runtime.talk.now if job.num_left else job.ended_at
    return ended - COMES_AT, sum(one for _, one in own), len({at for at, _ in own}), longest


@pytest.mark.parametrize(("num_clients", "max_rows"), [(4, 4), (8, 4), (16, 8)])
def test_a_job_ends_within_the_bound(num_clients: int, max_rows: int) -> None:
    took, work, num_steps, longest = run(*world(num_clients, 1, max_rows), at_most=60.0)
    account = work + QUANTUM + 2 * longest
    bound = (2 + longest / QUANTUM) * num_clients * account + num_steps * longest
    assert took <= bound
    assert took <= num_clients * account, "which is not proven, but how it is in these worlds"


def test_it_ends_before_it_would_where_each_has_the_machine_for_an_equal_part_of_the_time() -> None:
    alone = run(*world(1, 1, 4), at_most=60.0)[0]
    assert run(*world(4, 1, 4), at_most=60.0)[0] <= 4 * alone
