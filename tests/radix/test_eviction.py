"""Rules of what is evicted first where a policy learns how soon nodes are used again."""

from __future__ import annotations

import random
import time

import pytest

from lmprog.radix import Node
from lmprog.radix.eviction import MOST_GHOSTS, ExpectedReuse, ReuseTimes, age_of
from tests.radix.bench import Bench, ints


class Served(Bench):
    """A tree of pages of one token that is asked for prompts."""

    def __init__(self, num_pages: int, policy: ExpectedReuse | None = None) -> None:
        super().__init__(num_pages, 1, policy)
        self.now = 0.0

    def ask(self, *tokens: int, after: float = 1.0) -> int:
        """How many of the tokens were found."""
        self.now += after
        self.tree.tick(self.now)
        match = self.tree.match(ints(*tokens))
        node = self.tree.lock(match.node, match.length)
        missing = len(tokens) - match.length
        self.tree.evict(missing - self.pages.num_free)
        inserted = self.tree.insert(ints(*tokens), [*match.pages, *self.fresh(missing)])
        self.tree.unlock(node)
        self.tree.ended(inserted.node, len(tokens) - 1)
        return match.length

    def has(self, *tokens: int) -> bool:
        return self.length(*tokens) == len(tokens)


def test_while_nothing_is_known_what_was_used_least_recently_goes() -> None:
    served = Served(6, ExpectedReuse(6))
    for first in (10, 20, 30):
        served.ask(first, first + 1)
    served.ask(40, 41)
    assert [served.has(n, n + 1) for n in (10, 20, 30, 40)] == [False, True, True, True]
    served.check()


def test_a_kind_that_returns_is_kept_longer_than_one_that_does_not() -> None:
    """Conversations return after ten questions of others, each of which is asked once."""
    found = {}
    for name, policy in (("LRU", None), ("expected reuse", ExpectedReuse(16))):
        served = Served(16, policy)
        number, talk, hits = 1000, [1, 2, 3], 0
        for turn in range(60):
            hits += served.ask(*talk)
            talk = [*talk, 100 + turn] if len(talk) < 8 else [200 + turn, 2, 3]
            for _ in range(10):
                number += 10
                served.ask(number, number + 1)
        served.check()
        found[name] = hits
    assert found["LRU"] == 0
    assert found["expected reuse"] > 60


def test_it_never_finds_much_less_than_lru() -> None:
    """Made to fool it: what was learned turns into its contrary again and again."""
    for seed in range(1):
        dice = random.Random(seed)
        asked: list[list[int]] = []
        number = 10
        for block in range(30):
            talks = []
            for _ in range(40):
                number += 10
                talk = [number, number + 1, number + 2]
                talks.append(talk)
                asked.append(talk)
                if block % 2 and dice.random() < 0.9:
                    asked.append([*talk, number + 3])
                elif len(talks) > 6:
                    asked.append(talks[-6])
        found = []
        for policy in (None, ExpectedReuse(24)):
            served = Served(24, policy)
            found.append(sum(served.ask(*tokens) for tokens in asked))
        total = sum(map(len, asked))
        assert found[1] >= found[0] - 0.005 * total, (seed, found, total)


def test_where_lru_finds_more_it_is_used_for_a_while() -> None:
    policy = ExpectedReuse(8)
    policy._lead, policy._asked = -10.0, 60.0
    node = Bench(8, 1).add(1, 2)
    policy.ended(node, 1, 1.0)
    assert policy.is_lru
    assert policy.worth(node, 5.0) == node.used
    for n in range(100):
        policy.ended(node, 1, 2.0 + n)
    assert not policy.is_lru


def test_what_is_below_a_victim_goes_before_it() -> None:
    served = Served(12, ExpectedReuse(12))
    served.ask(1, 2, 3)
    for n in range(4):
        served.ask(1, 2, 10 + n)
    served.tree.tick(1e6)
    assert served.tree.evict(3) == 3
    assert served.has(1, 2)
    served.check()


def test_evicted_nodes_are_remembered_within_bounds() -> None:
    policy = ExpectedReuse(4)
    served = Served(4, policy)
    served.ask(1, 2)
    for n in range(10, 40, 10):
        served.ask(n, n + 1)
    assert not served.has(1, 2)
    served.ask(1, 2, 3)
    node = served.tree.match(ints(1, 2, 3)).node
    assert node.past is not None
    assert node.past.turn == 2  # it went on where it had ended, though that had been evicted
    assert len(policy._ghosts) <= MOST_GHOSTS


def test_a_part_of_a_prompt_that_others_begin_with_is_no_end_of_a_request() -> None:
    served = Served(32, ExpectedReuse(32))
    served.ask(1, 2, 3, 4, 5)
    served.ask(1, 2, 13, 14, 15)
    upper = served.tree.match(ints(1, 2)).node
    past = upper.past
    assert past is not None
    assert (past.turn, past.users) == (0, 2)
    served.ask(1, 2, 13, 14, 15, 16)
    after = served.tree.match(ints(1, 2)).node.past
    assert after is not None
    assert after.users == 2  # who goes on is no other user


def test_the_worth_of_an_age_is_uses_in_a_second_as_long_as_it_is_best() -> None:
    times = ReuseTimes()
    times.left = 10_000.0
    times.note(1.0)
    times.note(1e6)
    times.reuses[age_of(10.0)] = 5000.0
    soon, late = times.worth(age_of(9.0)), times.worth(age_of(100.0))
    assert soon > times.worth(age_of(0.0)) > 10 * late
    assert 0.05 < soon < 1.0


def test_what_was_left_a_short_time_ago_says_nothing_of_what_happens_later() -> None:
    """Half of the pages are used again after 100 seconds; of 200 seconds the last hundred are of
    pages that cannot have been yet."""
    times = ReuseTimes()
    for second in range(1, 201):
        times.left += 100.0
        times.note(float(second))
    times.reuses[age_of(100.0)] = 5000.0
    assert 0.4 < times.chances()[age_of(100.0)] < 0.6


def test_a_kind_of_which_little_is_known_is_taken_for_like_the_others() -> None:
    """Once more the likelier, the more often there was one."""
    every = ReuseTimes()
    every.left = 10_000.0
    every.note(1.0)
    every.note(1e6)
    every.reuses[age_of(10.0)] = 3000.0
    one, two = ReuseTimes(every, 1.0), ReuseTimes(every, 1.5)
    age = age_of(9.0)
    assert 0.9 * every.worth(age) < one.worth(age) < 1.1 * every.worth(age)
    assert 1.2 * one.worth(age) < two.worth(age) < 2.0 * one.worth(age)
    one.left = 1e5
    one.note(1.0)
    one.note(1e6)
    assert one.worth(age) < 0.1 * every.worth(age)  # it never was, and that is known now


def test_an_end_that_the_next_request_did_not_go_on_from_is_worth_less() -> None:
    """Nobody is known to have come back to one; here a third of the other ends are gone on from."""
    policy = ExpectedReuse(600)
    served = Served(600, policy)
    for n in range(10, 1000, 10):
        served.ask(n, n + 1, n + 2)
        if n % 30 == 0:
            served.ask(n - 30, n - 29, n - 27)
    left, other = (served.tree.match(ints(900, 901, end)).node for end in (902, 903))
    assert left.parent is other.parent
    assert policy.worth(left, served.now) < 0.5 * policy.worth(other, served.now)
    for node in (left, other):
        served.tree.pin(node)
    served.ask(900, 901, 905)
    served.check()  # pinned ones wait in one queue, children before their parents


def test_what_comes_back_of_a_shortened_node_is_counted() -> None:
    policy = ExpectedReuse(8)
    served = Served(8, policy)
    served.ask(1, 2, 3, 4)
    assert served.tree.evict(2) == 2
    served.ask(1, 2, 3, 4, 5, 6)
    assert sum(policy._all.reuses) == 4.0


@pytest.mark.parametrize("num_nodes", [5_000])
def test_a_decision_costs_little_in_a_large_tree(num_nodes: int) -> None:
    """Five microseconds of processor time, the least of several rounds, beside LRU's own."""
    seconds = {}
    for name, policy in (("LRU", None), ("expected reuse", ExpectedReuse(num_nodes))):
        bench = Bench(num_nodes, 1, policy)
        nodes: list[Node] = []
        for number in range(num_nodes):
            bench.tree.tick(number / 100)
            nodes.append(bench.add(number))
            if number % 3:
                bench.tree.ended(nodes[-1], 0)
        order, rounds = bench.tree._refs.order, []
        for n in range(20):
            bench.tree.tick(num_nodes / 100 + n)
            began = time.process_time()
            for _ in range(200):
                order.next_victim()
            rounds.append((time.process_time() - began) / 200)
            bench.tree.evict(200)
        seconds[name] = min(rounds)
    assert seconds["expected reuse"] < max(5e-6, 25 * seconds["LRU"]), seconds
