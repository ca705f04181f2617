"""Where programs go: the longest known prefix, as long as its replica has room."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest

from lmprog import wire
from lmprog.fleet.members import Member
from lmprog.fleet.placement import (
    APART,
    ASSUMED_SPEED,
    BLOCK,
    BLOCK_TOKENS,
    COPY_USERS,
    FEWEST,
    USUAL_TOKENS,
    PrefixMemory,
    Speed,
    SpeedMeter,
    best,
    costs_of,
    keys_of,
    mark_of,
)
from lmprog.fleet.questions import Questions
from lmprog.fleet.replica_link import FIGURES_CALL, ReplicaLink
from lmprog.fleet.router import Replica, Router
from lmprog.launch.restarts import HangTimeouts


def plain_matched(
    sent: dict[int, list[list[int]]], keys: list[int], replicas: list[int]
) -> list[int]:
    """The twin: looks through everything that was sent."""
    found = []
    for replica in replicas:
        known = {key for one in sent[replica] for key in one}
        found.append(next((n for n, key in enumerate(keys) if key not in known), len(keys)))
    return found


SPEED = Speed(0.005, 0.0005)
PROMPT = list(range(1, 21))
"""Keys of 20 blocks: 320 tokens."""


def replicas(
    loads: list[int],
    *,
    slots: int = 64,
    speed: Speed = SPEED,
    written: float = 100.0,
    alike: dict[int, int] | None = None,
) -> list[Replica]:
    found = []
    for number, load in enumerate(loads):
        name = f"replica-{number}"
        one = Replica(name, number, slots, load, mark=mark_of(name), written=written)
        one.meter.speed = speed
        found.append(one)
    found[0].alike = alike or {}
    return found


def pick(
    matched: list[int], among: list[Replica], held: list[int] | None = None, mark: int = 1
) -> int:
    """Where PROMPT goes, of which each has so many blocks, beside so many others of its 256."""
    memory = PrefixMemory()
    for one, known, others in zip(among, matched, held or [0] * len(among), strict=True):
        memory.add(one.number, 256)
        memory.remember(one.number, PROMPT[:known])
        memory.remember(one.number, list(range(1000, 1000 + others)))
    return best(among, PROMPT, mark, memory)


def test_the_longest_prefix_wins_unless_the_others_there_cost_more() -> None:
    assert pick([0, 20, 10], replicas([0, 1, 0])) == 1
    assert pick([0, 20, 10], replicas([0, 60, 0])) == 2
    assert pick([20, 0], replicas([20, 0], written=1.0)) == 0, "they write too little for it"


def test_equal_matches_go_to_the_less_loaded_and_ties_are_as_good_as_drawn() -> None:
    assert pick([20, 20], replicas([4, 1])) == 1
    found = [pick([0, 0, 0], replicas([1, 1, 1]), mark=mark_of(str(n))) for n in range(300)]
    assert {found.count(index) > 60 for index in range(3)} == {True}


def test_loads_that_differ_by_chance_copy_no_prefix() -> None:
    draw = random.Random(5)
    families = [number % 2 for number in range(16) for _ in range(20)]  # each has its replica
    moved = 0
    for _ in range(100):
        draw.shuffle(families)
        loads = [0, 0]
        for home in families[:64]:  # so many at once
            matched = [20 * (home == index) for index in range(2)]
            index = pick(matched, replicas(loads, written=8.0))
            moved += index != home
            loads[index] += 1
    assert moved <= 3  # of 6,400


def test_a_full_replica_gets_nothing_while_others_have_slots() -> None:
    """To wait for one takes longer than to compute a prefix again."""
    assert pick([20, 0, 0], replicas([16, 7, 8], slots=8)) == 1
    assert pick([20, 0, 0], replicas([8, 8, 8], slots=8)) == 0


def test_an_idle_replica_is_never_left_out_for_a_busier_one_by_a_new_prefix() -> None:
    for mark in range(50):
        assert pick([0, 0], replicas([1, 0]), mark=mark) == 1


def test_of_nearly_equal_costs_the_replica_that_holds_least_gets_a_new_prefix() -> None:
    assert pick([0, 0], replicas([10, 9]), [100, 150]) == 0
    assert pick([0, 0], replicas([30, 9]), [100, 150]) == 1, "that one is busier"


def test_gateways_that_know_nothing_of_each_other_choose_alike() -> None:
    for number in range(50):
        mark = mark_of(f"prefix {number}")
        one = pick([0] * 5, replicas([7, 8, 7, 9, 8]), [128, 130, 128, 128, 130], mark)
        other = pick([0] * 5, replicas([9, 8, 8, 7, 9]), [130, 128, 128, 130, 128], mark)
        assert one == other


def test_a_prefix_is_copied_the_sooner_the_more_programs_begin_alike() -> None:
    crowd = [6, 0, 0]
    assert pick([20, 0, 0], replicas(crowd, written=60.0)) == 0
    assert pick([20, 0, 0], replicas(crowd, written=60.0, alike={PROMPT[0]: 6})) != 0
    assert pick([20, 0, 0], replicas(crowd, written=60.0, alike={7: 6})) == 0, "they do not"


def test_a_slow_replica_costs_as_much_more_and_one_that_is_apart_by_chance_does_not() -> None:
    among = replicas([2, 2, 2, 2])
    among[0].meter.speed = Speed(3 * SPEED.fixed, 3 * SPEED.token)
    among[1].meter.speed = Speed(SPEED.fixed * APART * 0.99, SPEED.token * APART * 0.99)
    slow, near, usual, _ = costs_of(among, 20, [0] * 4, 0)
    assert slow == pytest.approx(3 * usual)
    assert near == usual
    among[0].meter.speed = None  # nothing is known of it
    assert costs_of(among, 20, [0] * 4, 0) == [usual] * 4


def test_a_speed_is_known_after_some_figures_that_differ() -> None:
    meter = SpeedMeter()
    for _ in range(100):
        meter.take({"step_seconds": 0.01, "token_seconds": 0.001})
    assert meter.speed is None, "it has done nothing in between"
    for number in range(FEWEST):
        meter.take({"step_seconds": 0.01 + number % 2 * 0.02, "token_seconds": 0.001})
    assert meter.speed is not None
    assert meter.speed.fixed == pytest.approx(0.02, rel=0.2)
    assert meter.speed.token == pytest.approx(0.001)


def test_the_memory_says_what_its_twin_says(seed: int) -> None:
    draw = random.Random(seed)
    memory = PrefixMemory()
    sent: dict[int, list[list[int]]] = {}
    for _ in range(400):
        replica = draw.randrange(5)
        if draw.random() < 0.05:
            memory.forget(replica)
            sent.pop(replica, None)
        if replica not in sent:
            memory.add(replica, 10_000)
            sent[replica] = []
        text = "".join(draw.choices("ab", k=draw.randrange(5))).ljust(6, "c")
        keys = keys_of("".join(letter * BLOCK for letter in text), draw.choice(["", "salt"]))
        assert memory.matched(keys, list(sent)) == plain_matched(sent, keys, list(sent))
        memory.remember(replica, keys)
        sent[replica].append(keys)


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    memory = PrefixMemory()
    memory.add(0, 3)
    old, new = keys_of("a" * BLOCK * 2), keys_of("b" * BLOCK * 2)
    memory.remember(0, old)
    memory.remember(0, new)
    assert memory.matched(new, [0]) == [2]
    assert memory.matched(old, [0]) == [0]
    memory.forget(0)
    assert memory._holders == {}


def test_keys_are_the_same_in_every_process() -> None:
    code = "from lmprog.fleet.placement import keys_of; print(keys_of('né' * 64, 'salt'))"
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert said == {f"{keys_of('né' * 64, 'salt')}\n"}
    assert len(keys_of("\ud800" * BLOCK)) == 1, "whatever a program writes has keys"


def test_salts_share_no_prefix() -> None:
    assert set(keys_of("a" * 200, "one")) & set(keys_of("a" * 200, "two")) == set()


def test_texts_of_running_calls_are_asked_where_they_run() -> None:
    questions, loads = Questions(), {"busy": 5, "home": 1}
    assert questions.ask(wire.Inspect(1), loads) == ["busy"]
    assert questions.ask(wire.Inspect(2, texts_of=(7,)), loads, ["home"]) == ["home"]


def test_a_part_of_a_tree_is_asked_where_the_whole_was_seen() -> None:
    questions = Questions()
    assert questions.ask(wire.Inspect(1), {"one": 5, "two": 1}) == ["one"]
    assert questions.ask(wire.Inspect(2, below=3), {"one": 0, "two": 9}) == ["one"]
    assert questions.ask(wire.Inspect(3, below=3), {"two": 9}) == ["two"]


class HotPrompt:
    """A router whose replicas answer at once what they are asked; `clients` begin one program after
    the other with one prompt.
    """

    def __init__(self, num_replicas: int, clients: int) -> None:
        self.router = Router(random.Random(1))
        self.written = dict.fromkeys((f"replica-{n}" for n in range(num_replicas)), 0)
        welcome = wire.Welcome(wire.PROTOCOL_VERSION, "m", 9000, 64, 16, 5000, 1)
        for name in self.written:
            self.router.join(name, welcome, slots=64)
            self.router.take_figures(
                name, {"programs": 10.0, "generated_tokens": 1000.0}, is_silent=False
            )
        self.router.outgoing.clear()
        self.clients, self.number, self.computed = clients, 0, 0
        self.open: list[tuple[str, int]] = []

    def begin(self) -> None:
        self.number += 1
        number = self.number
        prompt = wire.Append(number, (wire.TextPiece("You are a helpful assistant. " * 100),))
        generate = wire.Generate(number, number, wire.SamplingParams(max_tokens=100, seed=1))
        self.router.take_ops([wire.Open(number, ""), prompt, generate])
        ((name, _),) = self.router.outgoing
        self.router.outgoing.clear()
        self.computed += not self.written[name]
        self.written[name] += 1
        self.open.append((name, number))

    def end(self, at: int) -> None:
        name, number = self.open.pop(at)
        self.router.take_ops([wire.Close(number)])
        self.router.take_replies(name, [wire.Failed(number, "cancelled", "", {})])
        self.router.outgoing.clear()

    def run(self, programs: int) -> None:
        draw = random.Random(2)
        for _ in range(programs):
            if len(self.open) == self.clients:
                self.end(draw.randrange(self.clients))
            self.begin()


def test_one_prompt_of_many_clients_is_served_by_all_replicas() -> None:
    hot = HotPrompt(4, 24)
    hot.run(600)
    assert hot.computed == 4, "each computes the prompt once: 596 of 600 find it, 599 of one"
    assert min(hot.written.values()) >= 0.8 * 150
    assert max(hot.written.values()) <= 1.2 * 150
    assert sum(hot.router.loads.values()) == 24
    while hot.open:
        hot.end(0)
    assert not any(one.alike for one in hot.router._replicas.values())


class MuteConnection:
    """Takes what it is sent, and never answers."""

    def send(self, ops: Sequence[wire.Op]) -> None:
        pass


def test_a_replica_is_silent_when_an_answer_is_late() -> None:
    member = Member("replica", lambda: None)  # type: ignore[arg-type,return-value]
    link = ReplicaLink(member, MuteConnection(), HangTimeouts(), 0.0)  # type: ignore[arg-type]
    assert link.look(0.1) is None
    assert not link.is_silent(0.5)
    assert link.is_silent(0.7)
    link.without_own([wire.Described(FIGURES_CALL, {"running": 0.0})], 0.8)
    assert not link.is_silent(5.0)


def test_a_silent_replica_gets_nothing_new_while_others_are_heard() -> None:
    hot = HotPrompt(2, 4)
    hot.run(1)
    first = hot.open[0][0]
    hot.router.take_figures(first, {}, is_silent=True)
    hot.run(40)
    assert hot.written[first] == 1
    for name in hot.written:
        hot.router.take_figures(name, {}, is_silent=True)
    hot.run(40)
    assert hot.written[first] > 1, "where all are silent they are as good as each other"


def plain_costs(candidates: list[Replica], blocks: int, matched: list[int]) -> list[float]:
    """The twin: each replica by itself, as the words of `costs_of` say."""
    known = sorted((sum(step_of(one)), one.meter.speed) for one in candidates if one.meter.speed)
    step, usual = known[(len(known) - 1) // 2] if known else (0.0, ASSUMED_SPEED)
    assert usual is not None
    written = sum(one.written for one in candidates) / len(candidates)
    alike = sum(one.alike.get(7, 0) for one in candidates)
    is_full = all(one.load >= one.slots for one in candidates)
    found = []
    for one, has in zip(candidates, matched, strict=True):
        is_apart = one.meter.speed and not step / APART < sum(step_of(one)) < step * APART
        fixed, token = one.meter.speed if one.meter.speed and is_apart else usual
        tokens = BLOCK_TOKENS * (blocks - max(matched))
        tokens += BLOCK_TOKENS / (1 + COPY_USERS * alike) * (max(matched) - has)
        together = written * (fixed + token * (2 * one.load + 1))
        if one.load >= one.slots:
            together *= 1 + (one.load - one.slots + 1) / one.slots if is_full else math.inf
        found.append(tokens * token * (1 + one.load) + together)
    return found


def step_of(one: Replica) -> tuple[float, float]:
    fixed, token = one.meter.speed or (0.0, 0.0)
    return fixed, USUAL_TOKENS * token


@pytest.mark.parametrize("seed", range(20))
def test_costs_are_those_of_the_twin(seed: int) -> None:
    draw = random.Random(seed)
    candidates = replicas([draw.randrange(9) for _ in range(12)], slots=draw.choice([1, 6, 9]))
    for one in candidates:
        speed = Speed(SPEED.fixed * draw.uniform(0.2, 4), SPEED.token * draw.uniform(0.2, 4))
        one.meter.speed = draw.choice([None, SPEED, speed])
        one.alike = {7: draw.randrange(3)}
        one.written = draw.uniform(1, 200)
    matched = [draw.choice([0, 0, 3, 20]) for _ in candidates]
    assert costs_of(candidates, 20, matched, 7) == pytest.approx(
        plain_costs(candidates, 20, matched)
    )


def test_a_decision_among_many_replicas_calls_little() -> None:
    """What it takes is bound by how much it calls, whatever else the machine does."""
    candidates, memory = replicas([at % 8 for at in range(64)]), PrefixMemory()
    for one in candidates:
        memory.add(one.number, 4096)
    memory.remember(5, PROMPT)
    memory.remember(40, PROMPT[:7])
    best(candidates, PROMPT, PROMPT[0], memory)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        best(candidates, PROMPT, PROMPT[0], memory)
    finally:
        sys.setprofile(None)
    assert calls < 64 * 4.5
