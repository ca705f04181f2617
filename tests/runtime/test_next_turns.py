"""Rules of next turns that are computed before they are asked."""

from __future__ import annotations

import json

import pytest

from lmprog import wire
from lmprog.runtime.programs import early_texts
from lmprog.runtime.scheduling.plan import Plan
from lmprog.wire import Append, Close, Conversation, Generate, Open
from tests.runtime.talk import GREEDY, ME, Talk, done, text

ASKED = [
    {"role": "user", "content": "what is there to be said of the sea, and of all that is in it"}
]
ANSWER = {"role": "assistant", "content": "it is salt and deep, and nobody owns it, which is good"}
MORE = {"role": "user", "content": "and of the land"}


def written(*messages: dict[str, str]) -> Conversation:
    return Conversation(json.dumps([*ASKED, *messages]))


FOLLOWING = written(ANSWER, {"role": "user", "content": wire.UNSAID})


def first_turn(talk: Talk, following: Conversation | None = FOLLOWING, branch: int = 1) -> None:
    """The answer generated is another text than what the template writes of it."""
    turn = "" if following is None else None
    opened = Open(branch, turn=turn)
    talk.ask(opened, Append(branch, (written(),)), Generate(branch, branch, GREEDY))
    talk.ask(Close(branch, next=following))


def second_turn(talk: Talk, branch: int = 2) -> wire.CallDone:
    asked = Append(branch, (written(ANSWER, MORE),))
    return done(talk.ask(Open(branch), asked, Generate(branch, branch, GREEDY)))[branch]


def test_the_next_turn_is_computed_as_the_template_writes_it_and_the_answer_is_the_same() -> None:
    ahead, plain = Talk(num_pages=256), Talk(num_pages=256)
    first_turn(ahead)
    stats = ahead.scheduler.stats
    assert stats.ahead_tokens > len(ANSWER["content"]) - 8
    first_turn(plain, None)
    assert plain.scheduler.stats.ahead_tokens == 0, "only where it is asked for"
    computed = stats.computed_tokens
    one, other = second_turn(ahead), second_turn(plain)
    assert one.outputs == other.outputs
    assert one.usage.cached >= other.usage.cached + stats.ahead_tokens - 4
    assert stats.computed_tokens - computed <= len(MORE["content"]) + 24
    assert (stats.ahead_used_tokens, stats.ahead_wasted_tokens) == (stats.ahead_tokens, 0)
    ahead.scheduler.check()


def test_what_no_prompt_begins_with_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_texts, "MOST_EXPECTED", 1)
    talk = Talk(num_pages=256)
    first_turn(talk)
    first = talk.scheduler.stats.ahead_tokens
    other = {"role": "user", "content": "no, it is not so at all, and never was"}
    first_turn(talk, written(other, {"role": "user", "content": wire.UNSAID}), branch=3)
    stats = talk.scheduler.stats
    assert 0 < first < stats.ahead_tokens
    assert (stats.ahead_used_tokens, stats.ahead_wasted_tokens) == (0, first)


def test_steps_of_others_are_the_same_with_it() -> None:
    rows = []
    for following in (None, FOLLOWING):
        talk, plans = Talk(num_pages=256, max_chunk=8), list[Plan]()
        talk.scheduler.hooks.planned.append(lambda plan, _, plans=plans: plans.append(plan))
        talk.say(Open(1), Append(1, (written(),)), Generate(1, 1, GREEDY))
        talk.until_idle()
        talk.say(Close(1, next=following))
        for number in (5, 6, 7):
            talk.say(Open(number), text(number, "abc " * number), Generate(number, number, GREEDY))
        talk.until_idle()
        own = [[row for row in plan.rows if not row.sequence.group.goes_on] for plan in plans]
        mixed = [plan for plan in plans if len(plan.rows) > 1]
        assert all(not row.sequence.group.goes_on for plan in mixed for row in plan.rows)
        rows.append([[(row.start, row.end) for row in each] for each in own if each])
        assert (talk.scheduler.stats.ahead_tokens > 0) == (following is not None)
    assert rows[0] == rows[1]


def test_it_takes_free_pages_only_and_keeps_none() -> None:
    talk = Talk(num_pages=26)
    first_turn(talk)
    stats = talk.scheduler.stats
    assert stats.evicted_pages == stats.ahead_tokens == 0, "there are none"
    assert not talk.interpreter.is_working
    roomy = Talk(num_pages=256)
    first_turn(roomy)
    assert roomy.scheduler.stats.ahead_tokens
    assert roomy.scheduler.tree.num_pinned == 0


def test_who_asked_for_it_pays() -> None:
    costs = []
    for following in (None, FOLLOWING):
        talk = Talk(num_pages=256)
        first_turn(talk, following)
        costs.append(talk.scheduler.shares.served((ME, "")))
    assert costs[1] > costs[0]


def test_a_client_that_asks_for_many_pushes_out_its_own() -> None:
    talk = Talk(num_pages=2048)
    for branch in range(10, 40):
        talk.say(Open(branch), Close(branch, next=FOLLOWING))
    talk.loop.step()
    early = talk.interpreter._early
    assert len(early.next_turns._turns) <= early_texts.MOST_OF_CLIENT
    talk.until_idle()
    assert not early.is_waiting


def test_a_turn_computed_ahead_is_a_turn_of_its_session() -> None:
    talk = Talk(num_pages=256)
    talk.ask(Open(1, turn=""), Append(1, (written(),)), Generate(1, 1, GREEDY))
    talk.ask(Close(1, next=FOLLOWING))
    (number,) = talk.scheduler.sessions.numbers
    talk.say(Open(2, turn=""), Append(2, (written(ANSWER, MORE),)), Generate(2, 2, GREEDY))
    talk.until_idle()
    talk.ask(Close(2))
    assert talk.scheduler.sessions.numbers == {number}
    talk.scheduler.check()


def test_early_texts_and_next_turns_are_computed_one_after_the_other() -> None:
    talk = Talk(num_pages=512)
    first_turn(talk)
    before = talk.scheduler.stats.ahead_tokens
    talk.say(Open(8), Append(8, (wire.TextPiece("one two three four " * 6),), early=True))
    talk.say(Open(9), Close(9, next=written(MORE, {"role": "user", "content": wire.UNSAID})))
    talk.until_idle()
    assert talk.scheduler.stats.ahead_tokens > before
    assert talk.scheduler.tree.num_pinned, "the early text is there, too"
    assert talk.scheduler.idle
    assert not talk.interpreter.is_working
    talk.scheduler.check()
