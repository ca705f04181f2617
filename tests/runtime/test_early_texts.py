"""Rules of texts that come in parts and are computed before a call asks for what follows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lmprog import wire
from lmprog.runtime.programs import early_texts
from lmprog.runtime.scheduling.plan import Plan
from lmprog.wire import Close, Generate, Open, TextPiece
from tests.runtime.talk import GREEDY, Talk, done, text

WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen "


def part(branch: int, words: str = WORDS) -> wire.Append:
    return wire.Append(branch, (TextPiece(words),), early=True)


def answered(talk: Talk, call: int) -> wire.CallDone:
    return done(talk.ask(Generate(1, call, GREEDY)))[call]


def test_what_has_come_is_computed_before_a_call_and_the_answer_is_the_same() -> None:
    early, late = Talk(), Talk()
    early.ask(Open(1), part(1))
    computed = early.scheduler.stats.computed_tokens
    assert computed > len(WORDS) // 2
    early.ask(part(1))
    assert early.scheduler.stats.computed_tokens > computed + len(WORDS) // 2
    assert early.scheduler.tree.num_pinned > 2 * len(WORDS) // 4 - 4, "the branch pins it"
    late.ask(Open(1), text(1, WORDS), text(1, WORDS))
    assert late.scheduler.stats.computed_tokens == 0, "only where it is said to be early"
    one, other = answered(early, 1), answered(late, 1)
    assert one.outputs == other.outputs
    assert one.usage.prompt == other.usage.prompt
    assert one.usage.cached > other.usage.cached == 0
    assert one.usage.cached + one.usage.computed == other.usage.computed


def test_no_step_of_anybody_has_a_row_for_it() -> None:
    talk = Talk(num_pages=256)
    plans: list[Plan] = []
    talk.scheduler.hooks.planned.append(lambda plan, _: plans.append(plan))
    talk.say(Open(2), text(2, "abc "), Generate(2, 1, GREEDY))
    while not talk.scheduler.running:
        talk.step()
    talk.say(Open(1), *[part(1)] * 3)
    talk.until_idle()
    rows = [[row.sequence.group.goes_on for row in plan.rows] for plan in plans if plan.rows]
    assert [True] in rows
    assert all(each == [True] or not any(each) for each in rows)
    assert rows.index([True]) > max(at for at, each in enumerate(rows) if each == [False])


def test_it_takes_free_pages_only() -> None:
    talk = Talk(num_pages=24)
    talk.ask(Open(2), text(2, "x" * 60), Generate(2, 1, GREEDY))
    num_free = talk.scheduler.pages.num_free
    assert num_free < len(WORDS) // 4 + 2
    computed = talk.scheduler.stats.computed_tokens
    talk.ask(Open(1), part(1))
    assert talk.scheduler.stats.computed_tokens == computed
    assert talk.scheduler.stats.evicted_pages == 0


def test_a_call_or_the_end_of_the_branch_may_come_meanwhile() -> None:
    for num_steps in range(4):
        talk = Talk(num_pages=256)
        talk.say(Open(1), part(1), part(1))
        for _ in range(num_steps):
            talk.step()
        assert done(talk.ask(Generate(1, 1, GREEDY)))[1].outputs
        talk.say(part(1))
        for _ in range(num_steps):
            talk.step()
        talk.ask(Close(1))
        assert talk.scheduler.idle
        assert not talk.interpreter.is_working
        assert talk.scheduler.tree.num_pinned == 0


def test_what_is_not_said_yet_and_what_follows_it_is_not_computed() -> None:
    talk, plain = Talk(), Talk()
    talk.ask(Open(1), part(1, WORDS + wire.UNSAID + WORDS))
    plain.ask(Open(1), part(1, WORDS))
    computed = talk.scheduler.stats.computed_tokens
    assert len(WORDS) // 2 < computed <= plain.scheduler.stats.computed_tokens


def test_a_text_of_any_length_is_tokenised_and_computed_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(early_texts, "IN_PART", 70)
    early, late = Talk(num_pages=256), Talk(num_pages=256)
    lengths: list[int] = []
    tokenise = early.interpreter._early._tokenise
    monkeypatch.setattr(
        early.interpreter._early,
        "_tokenise",
        lambda branch: (tokenise(branch), lengths.append(len(branch.tokens)))[0],
    )
    text_of_both = WORDS * 2
    early.ask(Open(1), part(1, text_of_both))
    computed = early.scheduler.stats.computed_tokens
    assert len(text_of_both) - 30 < computed <= len(text_of_both)
    assert all(after - before <= 70 for before, after in pairwise([0, *lengths]))
    late.ask(Open(1), text(1, text_of_both))
    assert answered(early, 1).outputs == answered(late, 1).outputs


def test_who_has_early_texts_pays_for_reading_them() -> None:
    charged = []
    for is_early in (False, True):
        talk, work = Talk(num_pages=256), list[tuple[bytes, str]]()
        talk.scheduler.shares.work = lambda client, _, work=work: work.append(client)  # type: ignore[method-assign, misc]
        words = part(1) if is_early else text(1, WORDS)
        talk.ask(Open(1, account="a key"), words)
        charged.append(sum(account == "a key" for _, account in work))
    assert charged[0] + 2 <= charged[1], "reading it, and its step"
