"""Bugs planted into the real core: the simulation finds each of them, and says how to replay it."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lmprog import wire
from lmprog.radix import RadixTree
from lmprog.runtime import policy
from lmprog.runtime.branch import Branch
from lmprog.runtime.calls import CallBuilder
from lmprog.runtime.endings import Endings
from lmprog.runtime.interpreter import Interpreter
from lmprog.runtime.pagetable import PageTables
from lmprog.runtime.request import LaneState
from lmprog.runtime.scheduler import Scheduler
from lmprog.runtime.simulation.main import Violation, run_world

Patch = pytest.MonkeyPatch
WORLDS = 60


def a_shared_page_is_written(patch: Patch) -> None:
    patch.setattr(PageTables, "_shares_part", lambda self, lane: False)


def copies_are_forgotten(patch: Patch) -> None:
    original = PageTables.finish
    patch.setattr(PageTables, "finish", lambda self: ((), original(self)[1]))


def mirrors_are_forgotten(patch: Patch) -> None:
    original = PageTables.finish
    patch.setattr(PageTables, "finish", lambda self: (original(self)[0], ()))


def a_match_is_a_token_too_long(patch: Patch) -> None:
    original = RadixTree.match

    def match(self: RadixTree, tokens: array[int], salt: str = "", limit: int | None = None) -> Any:
        found = original(self, tokens, salt, limit)
        end = len(tokens) if limit is None else min(limit, len(tokens))
        longer = found.length < end and found.length % self._page_size and found.length < found.node.end
        return replace(found, length=found.length + 1) if longer else found

    patch.setattr(RadixTree, "match", match)


def salts_are_ignored(patch: Patch) -> None:
    original = RadixTree.match, RadixTree.insert
    patch.setattr(RadixTree, "match", lambda self, tokens, salt="", limit=None: original[0](self, tokens, "", limit))
    patch.setattr(RadixTree, "insert", lambda self, tokens, pages, salt="": original[1](self, tokens, pages, ""))


def prefixes_are_not_locked(patch: Patch) -> None:
    patch.setattr(RadixTree, "lock", lambda self, node, length=None: node)
    patch.setattr(RadixTree, "unlock", lambda self, node: None)


def a_failed_step_stays_in_the_tree(patch: Patch) -> None:
    patch.setattr(PageTables, "_discard", lambda self, lane, start: None)


def own_pages_leak(patch: Patch) -> None:
    original = PageTables._release

    def release(self: PageTables, lane: Any) -> None:
        lane.pages = lane.pages[: lane.shared]
        original(self, lane)

    patch.setattr(PageTables, "_release", release)


def a_preempted_lane_is_lost(patch: Patch) -> None:
    def preempt(self: Scheduler, lane: Any) -> None:
        self.seated.remove(lane)
        self.tables.leave(lane, pin=False)
        lane.state = LaneState.WAITING

    patch.setattr(Scheduler, "preempt", preempt)


def a_call_is_answered_twice(patch: Patch) -> None:
    original = Endings.reply

    def reply(self: Endings, ongoing: Any, said: wire.Reply, outcome: Any) -> None:
        original(self, ongoing, said, outcome)
        self.say(ongoing.client, said)

    patch.setattr(Endings, "reply", reply)


def a_cancelled_call_is_not_answered(patch: Patch) -> None:
    original = Endings.fail
    patch.setattr(
        Endings, "fail", lambda self, one, error: None if error.code == "cancelled" else original(self, one, error)
    )


def a_fork_forgets_pending_text(patch: Patch) -> None:
    original = Branch.birth

    def birth(self: Branch, parent: Branch | None = None) -> None:
        original(self, parent)
        self.pending = ""

    patch.setattr(Branch, "birth", birth)


def a_client_that_is_gone_is_kept(patch: Patch) -> None:
    patch.setattr(Interpreter, "_forget_client", lambda self, client_id: None)


def waiting_is_not_bounded(patch: Patch) -> None:
    patch.setattr(policy, "lpm", lambda lane, number, ageing: (*policy._class(lane), float(-lane.matched), b"", number))


def all_results_of_n_have_one_seed(patch: Patch) -> None:
    original = CallBuilder._gen

    def gen(self: CallBuilder, ongoing: Any, op: wire.Gen, now: float) -> Any:
        call = original(self, ongoing, op, now)
        for lane in call.lanes:
            lane.task.seed = call.lanes[0].task.seed
        return call

    patch.setattr(CallBuilder, "_gen", gen)


def what_never_fits_is_accepted(patch: Patch) -> None:
    patch.setattr(Scheduler, "check_fits", lambda self, num_tokens, max_tokens: None)


BUGS: list[Callable[[Patch], None]] = [
    a_shared_page_is_written,
    copies_are_forgotten,
    mirrors_are_forgotten,
    a_match_is_a_token_too_long,
    salts_are_ignored,
    prefixes_are_not_locked,
    a_failed_step_stays_in_the_tree,
    own_pages_leak,
    a_preempted_lane_is_lost,
    a_call_is_answered_twice,
    a_cancelled_call_is_not_answered,
    a_fork_forgets_pending_text,
    a_client_that_is_gone_is_kept,
    waiting_is_not_bounded,
    all_results_of_n_have_one_seed,
    what_never_fits_is_accepted,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_simulation_finds(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    logging.getLogger("lmprog").setLevel(logging.CRITICAL)
    bug(monkeypatch)
    found: list[str] = []
    for seed in range(WORLDS):
        try:
            run_world(seed, 200)
        except (Violation, LookupError, ValueError, TypeError) as error:
            found.append(f"{type(error).__name__} at seed {seed}: {str(error)[:160]}")
            break
    assert found, f"{WORLDS} worlds ran without noticing"
    print(found[0])


def test_without_a_bug_the_same_worlds_hold() -> None:
    logging.getLogger("lmprog").setLevel(logging.CRITICAL)
    for seed in range(10):
        run_world(seed, 200)
