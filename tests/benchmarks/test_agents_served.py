"""Rules of the sessions of agents on a real model."""

from __future__ import annotations

import random
from array import array

from benchmarks.agent_sessions import Call, Session, common_length, teams
from benchmarks.agents_served import Begun, Side, as_programs, as_requests, kept, shortened

PAGES = 512


def of_one_agent(calls: Session) -> list[list[Call]]:
    return [[one for one in calls if one.agent == agent] for agent in {one.agent for one in calls}]


def test_what_an_agents_branch_keeps_all_of_its_later_calls_begin_with() -> None:
    (calls,) = teams(random.Random(3), 1)
    for call, length in zip(calls, kept(calls), strict=True):
        own = next(some for some in of_one_agent(calls) if any(one is call for one in some))
        at = next(number for number, one in enumerate(own) if one is call)
        later = [common_length(call.prompt, one.prompt) for one in own[at + 1 :]]
        assert length == min([len(call.prompt), *later])


def test_shorter_calls_share_what_the_long_ones_share() -> None:
    long = teams(random.Random(3), 2)
    short = shortened(long, 300, 0.5)
    assert max(len(one.prompt) + one.answer for calls in short for one in calls) in (299, 300)
    for calls, less in zip(long, short, strict=True):
        for own, mine in zip(of_one_agent(calls), of_one_agent(less), strict=True):
            for n in range(len(own) - 1):
                part = len(mine[n].prompt) / len(own[n].prompt)
                shared = common_length(own[n].prompt, own[n + 1].prompt)
                assert abs(common_length(mine[n].prompt, mine[n + 1].prompt) - part * shared) <= 2


def test_programs_and_requests_make_the_same_answers_long_and_find_what_they_share() -> None:
    common = array("i", range(200))
    own = [common + array("i", range(300, 300 + 20 * n)) for n in range(4)]
    sessions = [Begun(0.0, [Call(prompt, 4) for prompt in own])]
    asked, longest = as_requests(Side(are_named=True), "nano", PAGES, sessions)
    run = as_programs("nano", PAGES, sessions)
    whole = len(longest) * longest[0] * 16 * len(own)
    assert 200 < asked.computed < 0.7 * whole
    assert abs(run.computed - asked.computed) < 0.1 * whole
    assert len(asked.seconds) == len(run.seconds) == 1
