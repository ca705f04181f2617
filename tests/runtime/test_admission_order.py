"""Rules of the order in which waiting sequences are admitted."""

from __future__ import annotations

import pytest

from lmprog.config import PolicyName, SchedulerConfig
from lmprog.runtime.scheduling.sequence import Sequence
from lmprog.runtime.scheduling.waiting_queue import AdmissionOrder
from tests.runtime.rig import Rig


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
