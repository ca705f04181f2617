"""While the first in turn waits for memory, what fits and ends soon goes past it, within bounds."""

from __future__ import annotations

from typing import Any

import pytest

from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.runtime.scheduling.admission import MOST_PASSING
from lmprog.runtime.scheduling.sequence import Sequence, SequenceState
from tests.runtime.rig import Rig
from tests.runtime.test_shares_hold import LIAR, Asker, BusyRuntime

IGNORING = wire.SamplingParams(temperature=0.0, ignore_eos=True)


class Asked(Rig):
    def ask(self, first: int, length: int, max_tokens: int, client: str = "") -> Sequence:
        return self.gen([first] * length, max_tokens, IGNORING, client=client)


class ShortMemory(Asked):
    """128 tokens, of which a call that may have forty more runs."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(SchedulerConfig(**{"page_size": 4, "num_pages": 32, **changes}))
        self.running = self.ask(1, 8, 40)
        self.step()
        self.large = self.ask(2, 8, 100)
        """Its tokens and those that run do not fit together."""
        self.step()
        assert self.large.state is SequenceState.WAITING


def test_a_short_call_goes_past_one_that_waits_for_memory() -> None:
    rig = ShortMemory()
    short = rig.ask(3, 4, 2)
    for _ in range(3):
        rig.step()
    assert short.state is SequenceState.ENDED
    assert rig.large.state is SequenceState.WAITING
    rig.run()
    assert rig.large.num_generated == 100


@pytest.mark.parametrize("num_before", [0, 2 * MOST_PASSING])
def test_short_calls_of_other_clients_go_past_it_too(num_before: int) -> None:
    rig = ShortMemory()
    for number in range(num_before):
        rig.ask(4 + number, 8, 100, client="other")
    short = rig.ask(3, 4, 2, client="other")
    rig.scheduler.shares.serve("other", 1.0)
    rig.step()
    assert short.state is SequenceState.RUNNING


def test_a_call_that_would_not_end_before_the_first_can_begin_does_not_pass() -> None:
    rig = ShortMemory()
    soon, long = rig.ask(3, 4, 20), rig.ask(4, 4, 45)
    rig.step()
    assert (soon.state, long.state) == (SequenceState.RUNNING, SequenceState.WAITING)
    rig.scheduler.end(soon)
    rig.step()
    assert long.state is SequenceState.WAITING, "though it fits in what is free"


def test_a_call_that_does_not_fit_beside_what_those_that_run_may_add_does_not_pass() -> None:
    rig = ShortMemory()
    others = [rig.ask(number, 20, 4) for number in range(3, 9)]
    rig.step()
    running = [one for one in others if one.state is SequenceState.RUNNING]
    assert 0 < len(running) < len(others)
    rig.run()
    assert not rig.scheduler.stats.preemptions


def test_nobody_passes_who_came_later_than_the_margin_allows() -> None:
    rig = ShortMemory(ageing=0.0)
    short = rig.ask(3, 4, 2)
    for _ in range(10):
        rig.step()
    assert short.state is SequenceState.WAITING, "it came after the first"
    rig.run()
    assert short.num_generated == 2


def test_nobody_passes_before_a_prompt_of_whoever_was_served_less_goes_on() -> None:
    rig = Asked(SchedulerConfig(page_size=4, num_pages=32, token_budget=8))
    prompt = rig.ask(89, 60, 40, client="long")
    for _ in range(2):
        rig.step()
    first = rig.ask(90, 118, 1, client="first")
    more = rig.ask(91, 4, 1, client="more")
    for client, seconds in [("first", 0.0), ("long", 1.0), ("more", 1000.0)]:
        rig.scheduler.shares.serve(client, seconds)
    rig.step()
    assert (prompt.computed, first.state) == (24, SequenceState.WAITING)
    assert more.state is SequenceState.WAITING
    while more.state is SequenceState.WAITING:
        rig.step()
    assert first.state is SequenceState.WAITING, "then it passes"


def test_short_calls_without_end_do_not_move_the_beginning_of_the_first() -> None:
    started = []
    for with_short in (False, True):
        rig, number = ShortMemory(), 3
        while rig.large.state is SequenceState.WAITING:
            if with_short:
                number += 1
                rig.ask(number % 90, 4, 2)
            rig.step()
        started.append(rig.scheduler.step)
    assert started[1] <= started[0] + 4


def test_calls_reserve_what_their_clients_calls_of_that_size_took() -> None:
    rig = Rig(SchedulerConfig(page_size=4, num_pages=64))
    programs = rig.scheduler.programs
    for number in range(60):
        one = rig.gen([number] * 4, 100, IGNORING, client="brief")
        rig.step()
        rig.scheduler.end(one)
    brief = rig.gen([1] * 4, 100, IGNORING, client="brief")
    other = rig.gen([2] * 4, 7, IGNORING, client="brief")
    assert programs.expected_tokens(brief) < 5.0
    assert programs.expected_tokens(other) == programs._generated_part * 7, "of another size"


def test_a_guess_of_the_client_counts_as_far_as_its_guesses_were_right() -> None:
    rig = Rig(SchedulerConfig(page_size=4, num_pages=64))
    programs = rig.scheduler.programs

    def ask(client: str, guess: int | None, most: int = 100) -> Sequence:
        made = rig.gen([3] * 4, most, IGNORING, client=client)
        made.group.expected = guess
        return made

    assert programs.expected_tokens(ask("new", 5)) == 100, "nothing says that it is right"
    rig.run()
    for _ in range(4):
        ask("honest", 20, 20)
        ask("liar", 1, 50)
        rig.run()
    honest, liar = ask("honest", 30), ask("liar", 1)
    assert programs.expected_tokens(honest) == pytest.approx(30)
    assert programs.expected_tokens(liar) == pytest.approx(50)
    assert programs.expected_tokens(ask("honest", 3000)) == 100, "no more than it may"
    while honest.num_generated < 31:
        rig.step()
    assert programs.expected_tokens(honest) == programs.expected_tokens(
        ask("honest", None, 100)
    ) * (honest.task.left / 100)


def waits_beside(liars: list[Asker]) -> list[float]:
    """Seconds from asking to the answer, of short calls of one client in a small memory."""
    small = Asker(b"small", 1, 8, 2)
    runtime = BusyRuntime([small, *liars], num_pages=160, max_rows=8)
    runtime.run(8)
    assert len(small.waits) > 20
    return sorted(small.waits)


@pytest.mark.parametrize("guess", [None, 1])
def test_who_reserves_most_of_the_memory_and_leaves_does_not_move_the_first_token_of_others(
    guess: int | None,
) -> None:
    liar = Asker(LIAR, 2, 8, 560)
    liar.expected = guess
    liar.close_after = 1.5
    alone, beside = waits_beside([]), waits_beside([liar])
    assert beside[len(beside) // 2] <= 1.5 * alone[len(alone) // 2]
    assert beside[int(0.99 * len(beside))] <= 3 * alone[int(0.99 * len(alone))]
