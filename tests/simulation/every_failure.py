"""Fails the first, second, third ... call of everything that can fail, one in each run of a world:
`python -m tests.simulation.every_failure`.

    python -m tests.simulation.every_failure [--points N] [--seed S] [--steps T] [--every E]

A run of a world without other faults is repeated, and each time one more call is let through before
one fails, until none is left to fail; then the next kind, then the next world. Wherever it strikes,
every call must get its one last reply, the text must be right or the error name its cause, the
invariants must hold after every step, and at the end every page must be free.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

from lmprog import wire
from lmprog.errors import GrammarError
from lmprog.runtime.programs.call_builder import CallBuilder
from lmprog.simulation.fake_engine import FakeStore
from lmprog.simulation.reply_checks import ReplyChecks
from lmprog.simulation.world import SimChannel, World, draw
from lmprog.transport.channel import Gone
from tests.simulation.constrained_failures import (
    CONSTRAINED_KINDS,
    Failure,
    strike_constrained,
)


def _raising(world: World, failure: Failure, error: Exception) -> Callable[[Any], Any]:
    """Wraps a method so that it raises; the world counts a fault."""

    def wrapped(original: Any) -> Any:
        def call(*given: Any) -> Any:
            if failure.strikes():
                world.engine.num_faults += 1
                raise error
            return original(*given)

        return call

    return wrapped


def fail_forward(world: World, failure: Failure) -> Any:
    """The engine raises, as where memory for a step is missing."""
    wrapped = _raising(world, failure, MemoryError("no memory for this step"))
    return mock.patch.object(world.engine, "forward", wrapped(world.engine.forward))


def fail_allocation(world: World, failure: Failure) -> Any:
    """No pages can be had for a sequence: it must wait, and nothing else may change."""
    original = world.scheduler._running.make_room

    def make_room(*given: Any) -> bool:
        return False if failure.strikes() else original(*given)

    return mock.patch.object(world.scheduler._running, "make_room", make_room)


def fail_sample(world: World, failure: Failure) -> Any:
    """The sampler raises."""
    wrapped = _raising(world, failure, RuntimeError("the sampler failed"))
    return mock.patch.object(world.sampler, "sample", wrapped(world.sampler.sample))


def fail_build(world: World, failure: Failure) -> Any:
    """A call cannot be compiled into sequences: only that call fails."""
    return _refused_once(world, failure, CallBuilder, "build")


@contextmanager
def _refused_once(world: World, failure: Failure, owner: type, name: str) -> Iterator[None]:
    wrapped = _raising(world, failure, GrammarError("too many states"))
    num_allowed, check = 1, ReplyChecks.check_failure

    def check_failure(self: ReplyChecks, issued: Any, reply: wire.Failed) -> None:
        nonlocal num_allowed
        if reply.code == GrammarError.code and failure.has_struck and num_allowed:
            num_allowed -= 1
            return
        check(self, issued, reply)

    with (
        mock.patch.object(owner, name, wrapped(getattr(owner, name))),
        mock.patch.object(ReplyChecks, "check_failure", check_failure),
    ):
        yield


def fail_send(world: World, failure: Failure) -> Any:
    """The first client of a batch of replies is gone, and with it what it should have had."""
    original = SimChannel.send

    def send(self: SimChannel, replies: list[tuple[bytes, wire.Reply]]) -> None:
        if replies and failure.strikes():
            gone = replies[0][0]
            replies = [one for one in replies if one[0] != gone]
            self.inbox.append((gone, Gone()))
            for at, client in enumerate(world.clients):
                if client.name == gone:
                    world.clients[at] = world._client(b"%s'" % gone)
        original(self, replies)

    return mock.patch.object(SimChannel, "send", send)


def fail_tier_write(world: World, failure: Failure) -> Any:
    """The disk is full: nothing is stored."""
    original = FakeStore.store

    def store(self: FakeStore, *what: Any) -> bool:
        return False if failure.strikes() else original(self, *what)

    return mock.patch.object(FakeStore, "store", store)


def lose_tier_write(world: World, failure: Failure) -> Any:
    """A write was torn, and nobody was told."""
    original = FakeStore.store

    def store(self: FakeStore, handle: int, *what: Any) -> bool:
        is_stored = original(self, handle, *what)
        if failure.strikes():
            self.kept[handle].contents = None
        return is_stored

    return mock.patch.object(FakeStore, "store", store)


def fail_tier_read(world: World, failure: Failure) -> Any:
    """Nothing of what is loaded can be read."""
    original = FakeStore.load

    def load(self: FakeStore, handles: Any, *what: Any) -> int:
        if failure.strikes():
            self.forget(handles, ())
        return original(self, handles, *what)

    return mock.patch.object(FakeStore, "load", load)


KINDS: list[Callable[[World, Failure], Any]] = [
    fail_allocation,
    fail_forward,
    fail_sample,
    fail_build,
    fail_send,
    fail_tier_write,
    lose_tier_write,
    fail_tier_read,
]


def world_without_faults(seed: int) -> World:
    """Busy, with little memory and a second tier."""
    scenario = draw(random.Random(seed))
    return World(
        seed, replace(scenario, faults=0.0, busy=0.8, num_handles=scenario.num_handles or 20)
    )


def strike(seed: int, kind: Callable[[World, Failure], Any], steps: int, at: int) -> bool:
    """One run; whether there was a call number `at` to fail. Raises AssertionError."""
    world, failure = world_without_faults(seed), Failure(at)
    with kind(world, failure):
        for _ in range(steps):
            world.step()
        world.settle()
    return failure.has_struck


def strike_all(seed: int, steps: int, every: int = 1) -> Counter[str]:
    """Fails every `every`-th call of each kind, one by one; returns the points by kind."""
    points: Counter[str] = Counter()
    trials: list[tuple[str, Callable[[int], bool]]] = [
        (kind.__name__, partial(strike, seed, kind, steps)) for kind in KINDS
    ] + [(kind.__name__, partial(strike_constrained, seed, kind)) for kind in CONSTRAINED_KINDS]
    for name, trial in trials:
        at = 1 + seed % every
        while _has_struck(f"seed {seed}, {steps} steps, {name} at call {at}", trial, at):
            points[name] += 1
            at += every
    return points


def _has_struck(what: str, trial: Callable[[int], bool], at: int) -> bool:
    try:
        return trial(at)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--every", type=int, default=1)
    asked = parser.parse_args()
    logging.getLogger("lmprog").setLevel(logging.CRITICAL + 1)
    points: Counter[str] = Counter()
    seed = asked.seed
    while points.total() < asked.points:
        points += strike_all(seed, asked.steps, asked.every)
        print(f"seed {seed}: {points.total():,} points", flush=True)
        seed += 1
    parts = ", ".join(f"{count:,} {name}" for name, count in points.items())
    print(
        f"{points.total():,} points in {seed - asked.seed} worlds, all clean: {parts}; "
        f"{time.process_time():.0f} s of processor time"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
