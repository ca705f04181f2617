"""Rules of the order in which waiting sequences are admitted."""

from __future__ import annotations

import pytest

from lmprog.config import PolicyName, SchedulerConfig
from lmprog.runtime.scheduling.policy import AdmissionOrder
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
