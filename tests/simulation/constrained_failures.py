"""Fails one mask, or one compile, among constrained calls: only its own call may notice."""

from __future__ import annotations

import random
from functools import cache
from typing import Any
from unittest import mock

from lmprog import wire
from lmprog.errors import GrammarError
from lmprog.runtime.programs.call_constraints import CallConstraints
from lmprog.runtime.scheduling.generation import Generation
from tests.runtime.talk import Talk, text

NUM_CALLS = 8
BASE = 100
"""A branch without calls, which others are forks of."""


class Failure:
    """Strikes at call number `at` of what it is planted in; calls are numbered from 1."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.has_struck = False

    def strikes(self) -> bool:
        """Whether this call is the one."""
        self._left -= 1
        self.has_struck = self.has_struck or not self._left
        return not self._left


def fail_mask(failure: Failure) -> Any:
    """A constraint exceeds its limits while a mask is made."""
    original = Generation.mask

    def mask(self: Generation) -> Any:
        if failure.strikes():
            raise GrammarError("too many states")
        return original(self)

    return mock.patch.object(Generation, "mask", mask)


def fail_compile(failure: Failure) -> Any:
    """A constraint cannot be compiled."""
    original = CallConstraints._made

    def made(self: CallConstraints, constraint: wire.Constraint, check: Any) -> Any:
        if failure.strikes():
            raise GrammarError("no")
        return original(self, constraint, check)

    return mock.patch.object(CallConstraints, "_made", made)


CONSTRAINED_KINDS = [fail_mask, fail_compile]


def ops_of(seed: int) -> list[wire.Op]:
    """Calls with constraints of their own, some on forks, some of several results."""
    dice = random.Random(seed)
    ops: list[wire.Op] = [wire.Open(BASE), text(BASE, "a common beginning ")]
    for number in range(1, NUM_CALLS + 1):
        first, last = sorted(dice.sample("abcdefghijkl", 2))
        pattern = f"[{first}-{last}]{{{dice.randrange(1, 4)},{dice.randrange(4, 9)}}} ?"
        sampling = wire.SamplingParams(
            temperature=dice.choice([0.0, 1.0]),
            seed=dice.randrange(99),
            max_tokens=12,
            n=dice.choice([1, 1, 3]),
        )
        if dice.random() < 0.5:
            ops.append(wire.Fork(BASE, (number,)))
        else:
            ops += [wire.Open(number), text(number, "".join(dice.choices("abc ", k=9)))]
        ops.append(
            wire.Generate(number, number, sampling, wire.Regex(pattern), stream=dice.random() < 0.5)
        )
    return ops


def answers(seed: int) -> dict[int, tuple[str, ...]]:
    """Texts by call; a failed call has its code. At the end nothing is held."""
    # A draft whose constraint fails is left out, and nobody is to notice; whether there are any
    # depends on measured times.
    talk = Talk(num_pages=24, speculation="off")
    found: dict[int, tuple[str, ...]] = {}
    for reply in talk.ask(*ops_of(seed)):
        if isinstance(reply, wire.CallDone | wire.Failed):
            assert reply.call not in found, "a call is answered once"
            done = isinstance(reply, wire.CallDone)
            found[reply.call] = tuple(one.text for one in reply.outputs) if done else (reply.code,)
    talk.ask(*(wire.Close(number) for number in range(1, NUM_CALLS + 1)), wire.Close(BASE))
    assert talk.scheduler.tree.num_evictable == talk.scheduler.tree.num_cached
    talk.scheduler.tree.clear()
    assert talk.scheduler.pages.num_free == talk.scheduler.pages.num_pages
    return found


@cache
def _answers_without_failure(seed: int) -> dict[int, tuple[str, ...]]:
    return answers(seed)


def strike_constrained(seed: int, kind: Any, at: int) -> bool:
    """Whether there was a call number `at` to fail. Raises AssertionError."""
    expected, failure = _answers_without_failure(seed), Failure(at)
    with kind(failure):
        found = answers(seed)
    assert len(found) == NUM_CALLS, "every call is answered"
    changed = [call for call in found if found[call] != expected[call]]
    assert len(changed) == failure.has_struck, f"calls {changed} noticed"
    assert all(found[call] == (GrammarError.code,) for call in changed)
    return failure.has_struck
