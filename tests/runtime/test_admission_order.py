"""Rules of the order in which waiting sequences are admitted."""

from __future__ import annotations

from array import array

import pytest

from lmprog.config import PolicyName, SchedulerConfig
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from lmprog.runtime.scheduling.waiting_queue import AdmissionOrder
from tests.runtime.rig import GREEDY, Rig


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs"])
def test_the_preempted_go_before_the_new_whatever_their_priority(policy: PolicyName) -> None:
    rig = Rig(SchedulerConfig(num_pages=64, policy=policy))
    preempted, new = rig.gen([5, 6], 1), rig.gen([1, 2], 1, priority=100)
    preempted.admission_order = 7
    key = AdmissionOrder(policy, ageing=60.0, context_len=64).key
    assert key(preempted, 2) < key(new, 1)
    assert key(preempted, 2)[1:] > key(new, 1)[1:], "by anything else it would come later"


def test_a_longer_cached_prefix_goes_first_under_lpm_alone() -> None:
    rig = Rig(SchedulerConfig(num_pages=64))
    hot, cold = rig.gen([5, 6], 1), rig.gen([1, 2], 1)
    hot.matched = 2
    lpm, fcfs = (AdmissionOrder(name, 60.0, 64) for name in ("lpm", "fcfs"))
    assert lpm.lpm(hot, 2) < lpm.lpm(cold, 1)
    assert fcfs.fcfs(hot, 2) > fcfs.fcfs(cold, 1)


def test_who_waits_at_the_back_moves_up_once_its_prefix_is_cached() -> None:
    rig = Rig(SchedulerConfig(num_pages=256, max_rows=1, policy="lpm"))
    rig.gen([5] * 12, 40)  # the only row; what it computes is cached while the others wait
    cold = [rig.gen([1, number], 1) for number in range(40)]
    hot = rig.gen([5] * 12, 1)
    rig.run()
    assert hot.admission_order < min(one.admission_order for one in cold)


def overtakers(rig: Rig, victim: Sequence, priority: int) -> list[Sequence]:
    """Sequences that came after `victim` and were admitted before it, while one comes each step."""
    came: list[Sequence] = []
    for number in range(400):
        came.append(rig.gen([1, 2, 3, 4 + number % 50], 1, priority=priority))
        rig.step()
        if victim.admission_order:
            break
    assert victim.admission_order, "it waits for ever"
    return [one for one in came if 0 < one.admission_order < victim.admission_order]


def test_under_a_stream_of_a_higher_priority_a_call_waits_no_longer_than_its_bound() -> None:
    rig = Rig(SchedulerConfig(num_pages=64, max_rows=1, policy="lpm", ageing=40.0))
    victim = rig.gen([9, 9, 9], 1)
    found = overtakers(rig, victim, priority=1)
    assert len(found) > 3, "the higher priority goes first for a while"
    bound = rig.scheduler.waiting.order.overtaking_bound(1)
    assert max(one.queued_at for one in found) <= victim.queued_at + bound


def test_under_dfs_a_call_waits_for_its_own_sweep_and_for_no_later_one() -> None:
    rig = Rig(SchedulerConfig(num_pages=64, max_rows=1, policy="dfs"))
    for number in range(8):
        rig.gen([1, 2, number], 1)
    victim = rig.gen([90, 1, 1], 1)  # the last one of its sweep, whoever comes
    found = overtakers(rig, victim, priority=0)
    assert found, "those of its sweep with smaller tokens go first"
    assert max(one.sweep for one in found) == victim.sweep


@pytest.mark.parametrize(("preemptions", "is_admitted"), [(0, True), (1, True), (3, False)])
def test_who_was_preempted_often_waits_until_the_others_have_room_to_grow(
    preemptions: int, is_admitted: bool
) -> None:
    rig = Rig(SchedulerConfig(page_size=1, num_pages=16, admission="unlimited"))
    for first in (1, 2):
        rig.gen([first, first], 4)
    rig.step()
    waiting = rig.gen([9, 9], 1)
    waiting.num_memory_preemptions = preemptions
    rig.step()
    assert (waiting.admission_order > 0) == is_admitted
    rig.run()
    assert waiting.num_generated == 1


def call_of_many(
    rig: Rig, prompt: list[int], count: int, max_tokens: int, priority: int = 0
) -> SequenceGroup:
    """A call of so many sequences, all of one prompt."""
    call = SequenceGroup(priority, prompt_len=len(prompt), client="")
    settings = GenerationSettings(GREEDY, max_tokens, (), len(prompt))
    call.sequences += [
        Sequence(call, array("i", prompt), Generation(settings, seed)) for seed in range(count)
    ]
    rig.scheduler.submit(call)
    return call


def num_admitted(call: SequenceGroup) -> int:
    return sum(one.admission_order > 0 for one in call.sequences)


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs"])
def test_a_small_call_waits_for_a_free_row_and_not_for_all_results_of_another_one(
    policy: PolicyName,
) -> None:
    rig = Rig(SchedulerConfig(num_pages=256, max_rows=2, policy=policy))
    many = call_of_many(rig, [5, 6], count=40, max_tokens=4)
    for _ in range(6):
        rig.step()
    small = rig.gen([90, 1], 2)
    before = num_admitted(many)
    while not small.admission_order:
        rig.step()
    assert num_admitted(many) <= before + 2
    rig.run()


def test_calls_of_one_client_that_have_been_served_alike_go_on_side_by_side() -> None:
    rig = Rig(SchedulerConfig(num_pages=256, max_rows=2))
    first = call_of_many(rig, [5, 6], count=40, max_tokens=4)
    for _ in range(20):
        rig.step()
    second, before = call_of_many(rig, [7, 8], count=40, max_tokens=4), num_admitted(first)
    for _ in range(80):
        rig.step()
    assert abs(num_admitted(first) - before - num_admitted(second)) <= 4


def test_results_of_a_call_have_their_part_beside_a_stream_of_small_calls() -> None:
    rig = Rig(SchedulerConfig(num_pages=256, max_rows=1, ageing=1e6))
    many = call_of_many(rig, [5, 6], count=6, max_tokens=2)
    for number in range(120):
        rig.gen([90, number % 50], 1)
        rig.step()
    assert num_admitted(many) == 6


def test_the_next_call_of_a_program_in_memory_goes_before_a_new_program() -> None:
    rig = Rig(SchedulerConfig(num_pages=256, max_rows=1))
    first = rig.gen([5, 6], 8)
    new = rig.gen([7, 8], 1)
    while first.num_generated < 8:
        rig.step()
    going_on = SequenceGroup(prompt_len=2, program=first.group.program, client="")
    settings = GenerationSettings(GREEDY, 1, (), 2)
    going_on.sequences.append(Sequence(going_on, array("i", [5, 7]), Generation(settings, 0)))
    rig.scheduler.submit(going_on)
    rig.run()
    assert going_on.sequences[0].admission_order < new.admission_order


def test_a_priority_goes_before_turns() -> None:
    rig = Rig(SchedulerConfig(num_pages=256, max_rows=1))
    many = call_of_many(rig, [5, 6], count=10, max_tokens=2, priority=1)
    rig.step()
    rig.step()
    small = rig.gen([90, 1], 1)
    rig.run()
    assert small.admission_order > max(one.admission_order for one in many.sequences)


def test_a_short_prompt_is_read_while_a_long_one_of_the_same_client_is() -> None:
    rig = Rig(SchedulerConfig(num_pages=256, token_budget=8))
    long = rig.gen([number % 50 for number in range(400)], 1)
    rig.step()
    rig.step()
    short = rig.gen([90, 1, 2], 2)
    other = rig.gen([91, 1, 2], 2)
    for _ in range(4):
        rig.step()
    assert (short.num_generated, other.num_generated) == (2, 2)
    assert long.remaining > 300
    rig.run()


def test_two_long_prompts_of_one_client_are_read_side_by_side() -> None:
    rig = Rig(SchedulerConfig(num_pages=256, token_budget=8))
    first = rig.gen([number % 50 for number in range(400)], 1)
    rig.step()
    rig.step()
    second = rig.gen([90, *(number % 50 for number in range(400))], 1)
    for _ in range(30):
        rig.step()
    assert min(first.remaining, second.remaining) > 200
    rig.run()


def test_turns_never_let_the_next_result_of_a_call_wait_longer_than_its_bound() -> None:
    rig = Rig(SchedulerConfig(num_pages=256, max_rows=1, policy="lpm", ageing=40.0))
    many = call_of_many(rig, [5, 6], count=60, max_tokens=12)
    for _ in range(30):
        rig.step()
    victim = next(one for one in many.sequences if not one.admission_order)
    since = rig.scheduler.programs.turns.waited(victim)
    found = overtakers(rig, victim, priority=0)
    assert found
    bound = rig.scheduler.waiting.order.overtaking_bound(0)
    assert max(one.queued_at for one in found) <= since + bound


def test_who_has_its_turn_and_no_room_keeps_nobody_waiting() -> None:
    rig = Rig(SchedulerConfig(page_size=1, num_pages=48, max_rows=3))
    long = rig.gen([1] * 10, 30)
    many = call_of_many(rig, [5, 6], count=8, max_tokens=2)
    rig.step()
    rig.step()
    large = rig.gen([90, *range(19)], 18)
    rig.run()
    assert large.admission_order == 10, "there is no room for it before"
    assert not long.group.preemptions + many.preemptions
