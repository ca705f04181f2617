"""Best of n, the quickest, the majority, and contests of calls: who wins, and that losers end in
the same step.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmprog import wire
from lmprog.runtime.programs.clients import GenerateRun
from lmprog.runtime.programs.result_selection import ResultSelector, majority
from lmprog.runtime.programs.select_scoring import softmax
from lmprog.simulation import oracle
from tests.runtime.talk import Talk, done, failed, text

PROMPT = "once upon a time"


def sampled(count: int, **changes: object) -> wire.SamplingParams:
    settings = {"temperature": 1.0, "seed": 7, "max_tokens": 12, "stop": ("a", "e"), "n": count}
    return wire.SamplingParams(**{**settings, **changes})  # type: ignore[arg-type]


def asked(
    talk: Talk, keep: wire.Keep, sampling: wire.SamplingParams, stream: bool = False
) -> list[wire.Reply]:
    gen = wire.Generate(1, 2, sampling, stream=stream, keep=keep)
    return talk.ask(wire.Open(1), text(1, PROMPT), gen, wire.Read(1, 3))


def all_of(sampling: wire.SamplingParams) -> list[oracle.Expected]:
    """Every result, as if nobody were ended early."""
    return [
        oracle.generated(PROMPT, wire.Generate(1, 2, sampling), (sampling.seed or 0) + index)
        for index in range(sampling.n)
    ]


def text_of(replies: list[wire.Reply]) -> str:
    (read,) = [reply for reply in replies if isinstance(reply, wire.TextIs)]
    return read.text


def free(talk: Talk) -> bool:
    """Nobody runs or waits, and every page can be had."""
    tree, pages = talk.scheduler.tree, talk.scheduler.pages
    return talk.scheduler.idle and pages.num_free + tree.num_evictable == pages.num_pages


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9), st.randoms())
def test_a_majority_is_told_when_no_result_to_come_can_change_it_and_never_before(
    texts: list[str], rng: random.Random
) -> None:
    order = list(range(len(texts)))
    rng.shuffle(order)
    sizes = Counter(texts)
    for count in range(len(texts) + 1):
        known = {index: texts[index] for index in order[:count]}
        left = len(texts) - count
        told = majority(known, left)
        counts = Counter(known.values()).most_common()
        second = counts[1][1] if len(counts) > 1 else 0
        assert (told is not None) == (bool(known) and (not left or counts[0][1] > second + left))
        if told is not None:
            assert sizes[texts[told]] == max(sizes.values())
            assert told == min(index for index in known if texts[index] == texts[told])


def test_white_space_around_makes_no_other_opinion() -> None:
    assert majority({0: "b", 1: "a", 2: "a"}, 0) == 1


def test_the_fastest_wins_and_the_others_end_in_the_same_step() -> None:
    talk = Talk()
    settings = sampled(5, max_tokens=30)
    lengths = [len(one.text) for one in all_of(settings)]
    assert len(set(lengths)) > 2
    talk.say(
        wire.Open(1), text(1, PROMPT), wire.Generate(1, 2, settings, stream=True, keep="fastest")
    )
    replies = talk.step()
    while not done(replies):
        assert not talk.scheduler.idle
        replies = talk.step()
    assert talk.scheduler.idle, "losers have left in the step that decided"
    answer = done(replies)[2]
    assert len(answer.outputs[0].text) == min(lengths)
    assert [reply.text for reply in replies if isinstance(reply, wire.Delta)] == [
        answer.outputs[0].text or []
    ][:1]
    assert answer.usage.generated < sum(lengths)
    assert text_of(talk.ask(wire.Read(1, 9))) == PROMPT + answer.outputs[0].text
    talk.ask(wire.Close(1))
    assert free(talk)


def test_the_majority_is_that_of_all_results_and_found_before_all_have_ended() -> None:
    settings = sampled(9, stop=tuple("abcdefgh"), max_tokens=25)
    everyone = [one.text.strip() for one in all_of(settings)]
    counts = Counter(everyone)
    talk = Talk()
    replies = asked(talk, "majority", settings)
    outputs = done(replies)[2].outputs
    assert counts[outputs[0].text.strip()] == max(counts.values())
    assert text_of(replies) == PROMPT + outputs[0].text


def test_a_clear_majority_ends_the_rest() -> None:
    """All results are equal, so the third of five decides; the other two are longer for a while and
    never end.
    """
    talk = Talk()
    answer = done(asked(talk, "majority", sampled(5, temperature=0.0)))[2]
    assert 3 <= len(answer.outputs) <= 5
    assert len({output.text for output in answer.outputs}) == 1


def test_the_best_has_the_highest_mean_of_log_probabilities() -> None:
    settings = sampled(6, logprobs=0)
    talk = Talk()
    plain = done(talk.ask(wire.Open(5), text(5, PROMPT), wire.Generate(5, 5, settings)))[5].outputs
    talk = Talk()
    replies = asked(talk, "best", settings)
    best = done(replies)[2].outputs[0]
    assert best in plain
    assert text_of(replies) == PROMPT + best.text
    unscored = done(asked(Talk(), "best", sampled(6)))[2].outputs
    assert unscored[0].text == best.text
    assert all(output.logprobs == () for output in unscored), "nobody asked for them"


def test_who_cannot_become_the_best_is_ended_and_it_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asking = [sampled(6, seed=seed, stop=tuple("abcdefghij")) for seed in range(25)]
    early = [done(asked(Talk(), "best", sampling))[2] for sampling in asking]
    monkeypatch.setattr(ResultSelector, "is_hopeless", lambda self, total: False)
    patient = [done(asked(Talk(), "best", sampling))[2] for sampling in asking]
    assert [one.outputs[0] for one in early] == [one.outputs[0] for one in patient]
    saved = [
        one.usage.generated - other.usage.generated
        for one, other in zip(patient, early, strict=True)
    ]
    assert min(saved) == 0
    assert max(saved) > 0


JUDGE = wire.Judge(" is that so?", ("yes", "no", "or not"))


def verdict(result: str) -> float:
    """How sure the judge is of one result, as a select in the same place would say."""
    asking = wire.Select(1, 2, JUDGE.choices)
    return softmax(oracle.scores(PROMPT + result + JUDGE.text, asking))[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_judge_says_which_is_the_best_and_leaves_no_trace(seed: int) -> None:
    settings = sampled(6, seed=seed)
    expected = max((one.text for one in all_of(settings)), key=verdict)
    talk = Talk()
    gen = wire.Generate(1, 2, settings, keep="best", judge=JUDGE)
    replies = talk.ask(wire.Open(1), text(1, PROMPT), gen, wire.Read(1, 3))
    answer = done(replies)[2]
    assert answer.outputs[0].text == expected
    assert len(answer.outputs) == 6
    assert text_of(replies) == PROMPT + expected
    later = wire.SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    more = done(talk.ask(text(1, "xyz"), wire.Generate(1, 10, later)))[10].outputs[0].text
    assert more == oracle.generated(PROMPT + expected + "xyz", wire.Generate(1, 10, later), 0).text
    assert answer.usage.computed > sum(len(one.text) for one in all_of(settings)), (
        "what the judge read is counted"
    )
    talk.ask(wire.Close(1))
    assert free(talk)


def test_a_judge_that_would_not_fit_is_refused_before_anything_is_computed() -> None:
    talk = Talk()
    gen = wire.Generate(1, 2, sampled(2), keep="best", judge=wire.Judge("x" * 180))
    assert failed(talk.ask(wire.Open(1), text(1, PROMPT), gen))[2].code == "context_overflow"
    assert talk.scheduler.stats.generated_tokens == 0


def test_a_judge_is_cancelled_with_its_call() -> None:
    talk = Talk(token_budget=8)
    talk.say(
        wire.Open(1),
        text(1, PROMPT),
        wire.Generate(1, 2, sampled(4, max_tokens=2), keep="best", judge=JUDGE),
    )
    talk.step()
    run = talk.interpreter.clients[b"me"].calls[2].run
    assert isinstance(run, GenerateRun)
    assert run.selector is not None
    while not run.selector.ballots:
        talk.step()
    assert not talk.scheduler.idle, "the judge's scorings run"
    talk.ask(wire.Cancel(2), wire.Close(1))
    assert free(talk)


@pytest.mark.parametrize("keep", ["best", "fastest", "majority"])
def test_a_branch_goes_on_from_what_was_kept_without_computing_it_again(keep: wire.Keep) -> None:
    talk = Talk()
    kept = done(asked(talk, keep, sampled(4)))[2].outputs[0]
    settings = wire.SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    later = done(talk.ask(text(1, "xyz"), wire.Generate(1, 10, settings)))[10]
    assert (
        later.outputs[0].text
        == oracle.generated(PROMPT + kept.text + "xyz", wire.Generate(1, 10, settings), 0).text
    )
    assert later.usage.cached >= len(PROMPT) - 1
    refused = failed(
        talk.ask(wire.Open(20), wire.Append(20, (wire.Ref(2, 1),)), wire.Generate(20, 21, settings))
    )
    assert 21 in refused, "only what was kept can be referred to"
    referred = talk.ask(wire.Open(30), wire.Append(30, (wire.Ref(2),)), wire.Read(30, 31))
    assert text_of(referred) == kept.text


def test_a_kept_one_that_is_cancelled_leaves_nothing() -> None:
    talk = Talk()
    talk.say(
        wire.Open(1),
        text(1, PROMPT),
        wire.Generate(1, 2, sampled(5, max_tokens=60, stop=()), keep="majority"),
    )
    talk.step()
    talk.ask(wire.Cancel(2), wire.Close(1))
    assert free(talk)


# --- contests of calls ----------------------------------------------------------------------------


def branches(
    talk: Talk,
    lengths: dict[int, int],
    rule: wire.ContestRule,
    prompts: dict[int, str] | None = None,
) -> None:
    """A branch and a call (100 more) for each number, of that length, and a contest of all."""
    for number, length in lengths.items():
        settings = wire.SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        prompt = (prompts or {}).get(number, PROMPT + "xyz"[number - 1])
        talk.say(
            wire.Open(number), text(number, prompt), wire.Generate(number, 100 + number, settings)
        )
    talk.say(wire.Contest(tuple(100 + number for number in lengths), rule))


def test_the_first_call_that_ends_well_ends_the_others_in_its_step() -> None:
    talk = Talk()
    branches(talk, {1: 30, 2: 9, 3: 30}, "first")
    replies = talk.step()
    while not done(replies):
        replies = talk.step()
    assert set(done(replies)) == {102}
    assert {call: reply.code for call, reply in failed(replies).items()} == {
        101: "cancelled",
        103: "cancelled",
    }
    assert talk.scheduler.idle
    mine = talk.interpreter.clients[b"me"].branches
    assert mine[1].pin is None
    assert mine[2].pin is not None, "only the winner's branch stands on something"


def test_a_call_that_fails_does_not_win() -> None:
    talk = Talk()
    branches(talk, {1: 199, 2: 9, 3: 12}, "first")
    replies = talk.until_idle()
    assert failed(replies)[101].code == "context_overflow"
    assert set(done(replies)) == {102}


def test_a_contest_that_comes_late_is_decided_at_once() -> None:
    talk = Talk()
    settings = wire.SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    talk.ask(wire.Open(1), text(1, PROMPT), wire.Generate(1, 101, settings))
    talk.say(
        wire.Open(2),
        text(2, PROMPT),
        wire.Generate(2, 102, sampled(1, max_tokens=90)),
        wire.Contest((101, 102)),
    )
    assert failed(talk.step())[102].code == "cancelled"
    assert talk.scheduler.idle


def test_a_majority_of_calls_ends_the_rest() -> None:
    talk = Talk()
    branches(talk, {1: 4, 2: 4, 3: 90}, "majority", {1: PROMPT, 2: PROMPT, 3: "something else"})
    replies = talk.until_idle()
    assert set(done(replies)) == {101, 102}
    assert failed(replies)[103].code == "cancelled"


def test_a_contest_of_unknown_calls_is_nobodys_business() -> None:
    talk = Talk()
    branches(talk, {1: 4}, "first")
    talk.say(wire.Contest((77, 78)))
    assert set(done(talk.until_idle())) == {101}
    talk.ask(wire.Close(1))
    assert free(talk)
