"""The queue of calls of many keys or addresses gives whose turn it is, and looks at few of them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from lmprog.server.fairness.dispatch import Dispatcher, FairQueue
from tests.server.test_fairness import Outlet, accounts, key, ops_of


class PlainQueue(FairQueue[Any]):
    """Looks at all flows each time."""

    def first(self) -> Any:
        return self.first_below(float("inf"), lambda _: 0.0)

    def first_below(self, most: float, held: Any) -> Any:
        flows = [flow for flow in self.flows if held(flow) < most]
        return min(flows, key=lambda flow: self.flows[flow][0][:2], default=None)


@pytest.mark.parametrize("seed", range(20))
def test_turns_are_those_that_looking_at_all_flows_gives(seed: int) -> None:
    """With weights that change, clients that leave, and far more flows than places."""
    dice = random.Random(seed)
    logs: list[list[tuple[str, int]]] = [[], []]
    fast, plain = Dispatcher(dice.choice((1, 8, 40)), lambda: 0.0), Dispatcher(8, lambda: 0.0)
    plain._window, plain._queue = fast._window, PlainQueue()
    outlets: list[tuple[Outlet, Outlet]] = []
    sent: list[int] = []
    for number in range(600):
        name = f"flow {int(dice.paretovariate(0.5)) % 60}"
        if dice.random() < 0.6:
            (flow,) = accounts(key(name, weight=dice.choice((0.5, 1.0, 3.0))))
            made = Outlet(logs[0], name), Outlet(logs[1], name)
            outlets.append(made)
            first, count = 100 * number, dice.choice((1, 1, 3, 40))
            fast.put(made[0], flow, ops_of(range(first, first + count)))
            plain.put(made[1], flow, ops_of(range(first, first + count)))
        elif dice.random() < 0.1 and outlets:
            one, other = outlets.pop(dice.randrange(len(outlets)))
            assert fast.leave(one) == plain.leave(other)
        elif sent:
            ended = sent.pop(dice.randrange(len(sent)))
            fast.ended(ended)
            plain.ended(ended)
        assert logs[0] == logs[1]
        sent = [call for _, call in logs[0] if call in fast._sent]
    while sent:
        fast.ended(sent[0])
        plain.ended(sent[0])
        assert logs[0] == logs[1]
        sent = list(fast._sent)
    assert fast.in_runtime == 0
    assert not fast._weights


def test_a_turn_does_not_look_at_all_flows() -> None:
    num_flows, asked = 2000, Counter[Any]()
    queue: FairQueue[int] = FairQueue()
    for number in range(3 * num_flows):
        queue.push(number % num_flows, 1.0, 1.0, number)

    def held(flow: Any) -> float:
        asked[flow] += 1
        return 1.0 if flow % 2 else 0.0

    for _ in range(num_flows // 2):
        queue.pop(queue.first_below(1.0, held))
    assert asked.total() <= 2 * num_flows
    for flow in range(1, num_flows, 2):
        queue.lighter(flow, 0.0)
    assert queue.first_below(0.5, lambda _: 0.0) == 1
