"""A job, which is calls one after the other, ends within the bound of docs/promises.md, beside
clients who do what they can to be served more. In virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, cycle, pairwise

import pytest

from lmprog import wire
from lmprog.runtime.scheduling.step_costs import QUANTUM
from lmprog.runtime.scheduling.waiting_queue import MOST_CREDIT
from tests.runtime.test_shares_hold import Asker, BusyRuntime

JOB = b"job"
COMES_AT = 3.0
"""Seconds of the others' work before it comes."""
NUM_CALLS = 4


class Job(Asker):
    """Calls one after the other, and no more."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(JOB, 1, 90, num_tokens)
        self.num_left, self.ended_at = NUM_CALLS, 0.0

    def hear(self, reply: wire.Reply, now: float) -> Iterator[wire.Op]:
        for op in super().hear(reply, now):
            self.num_left -= 1
            self.ended_at = now
            yield op

    def ask(self, now: float) -> Iterator[wire.Op]:
        self.num_open = int(now >= COMES_AT and self.num_left > 0)
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


ALL = (salts, connections, hints, priorities, leaving)


@dataclass(frozen=True)
class World:
    """`kinds`: of the others, in turn."""

    num_clients: int
    kinds: tuple[Callable[[bytes], list[Asker]], ...] = ALL
    max_rows: int = 4
    num_tokens: int = 24
    """Of each answer of the job."""

    def run(self, at_most: float = 60.0) -> Outcome:
        job, many = Job(self.num_tokens), cycle(self.kinds)
        others = [next(many)(b"liar %d" % number) for number in range(self.num_clients - 1)]
        askers = [job, *chain(*others)]
        config = {"num_pages": 8192, "token_budget": 128, "max_waiting": 4096}
        runtime = BusyRuntime(askers, max_rows=self.max_rows, **config)
        while job.num_left and runtime.talk.now < COMES_AT + at_most:
            runtime.run(runtime.talk.now + 0.05)
        own = [(at, seconds) for at, name, seconds in runtime.work if name == JOB]
        ends = sorted({at for at, _, _ in runtime.work})
        return Outcome(
            (runtime.talk.now if job.num_left else job.ended_at) - COMES_AT,
            sum(seconds for _, seconds in own),
            len({at for at, _ in own}),
            max(after - before for before, after in pairwise(ends)),
        )


@dataclass(frozen=True)
class Outcome:
    """Seconds until the job ended, and those charged for it; steps in which it had a row; the
    longest step.
    """

    took: float
    work: float
    num_steps: int
    longest: float


WORLDS = {
    "four clients": World(4),
    "sixteen clients": World(16, max_rows=8),
    "long answers": World(8, num_tokens=70),
    "hints that lie": World(4, (hints,), num_tokens=70),
    "those who leave": World(6, (leaving,)),
}


@pytest.mark.parametrize("name", WORLDS)
def test_a_job_ends_within_the_bound(name: str) -> None:
    world = WORLDS[name]
    it = world.run()
    part = world.num_clients * (it.work + NUM_CALLS * (QUANTUM + 2 * it.longest))
    charged = part + world.num_clients * MOST_CREDIT
    assert it.took <= (2 + it.longest / QUANTUM) * charged + it.num_steps * it.longest
    assert it.took <= 1.25 * part, "not proven: how it is in these worlds"


def test_it_ends_before_it_would_with_an_equal_part_of_the_machine_for_itself() -> None:
    alone = World(1).run()
    assert World(4).run().took <= 4 * alone.took


@pytest.mark.parametrize(("num_prompt", "num_tokens"), [(90, 24), (8, 16)])
def test_calls_one_after_the_other_get_most_of_their_part(num_prompt: int, num_tokens: int) -> None:
    """Beside three clients that always wait; who comes back has a little credit."""
    one, kinds = Asker(JOB, 1, num_prompt, num_tokens), enumerate((salts, connections, priorities))
    others = chain(*(liar(b"liar %d" % number) for number, liar in kinds))
    config = {"num_pages": 8192, "token_budget": 128, "max_waiting": 4096}
    runtime = BusyRuntime([one, *others], max_rows=4, **config)
    runtime.run(20)
    work = [(name, seconds) for at, name, seconds in runtime.work if at > 4]
    own = sum(seconds for name, seconds in work if name == JOB)
    assert own >= 0.75 / 4 * sum(seconds for _, seconds in work)
