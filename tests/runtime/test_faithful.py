"""A faithful text is as likely as if the model had been asked until its text fits: the weights by
themselves, on small languages; and the runtime's way there, with what goes with it.
"""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import pytest

from benchmarks.faithful import LANGUAGES, Language, RandomModel, Shares, variation
from lmprog import wire
from lmprog.errors import InvalidParameter
from lmprog.runtime.programs.beam_search import check_beams
from lmprog.runtime.programs.faithful import check_faithful
from lmprog.runtime.scheduling.particles import Particle, chosen, tree_of, weights
from tests.runtime.talk import Talk, done, failed, text

CAREFUL = ["(ab)*c", "(aa|ab|ba)*d", "a|bb|ccc|dddd"]
"""Languages in which a mask alone is far off."""


@pytest.mark.parametrize("pattern", CAREFUL)
def test_a_mask_changes_what_is_likely_and_32_texts_do_not(pattern: str) -> None:
    language = Language(pattern, RandomModel(LANGUAGES.index(pattern), 2.0))
    wanted, masked = language.exact()
    assert variation(masked, wanted) > 0.3
    assert variation(language.shares(32, 30), wanted) < 0.05


def test_two_rounds_find_what_the_mask_hides_and_one_does_not() -> None:
    """The first token that the mask prefers has hardly a way to end well."""

    class Hidden(RandomModel):
        def logits(self, tokens: array[int]) -> Any:
            likely = {(): (0, 6.0, 1), (0,): (3, -12.0, 3), (1,): (3, 0.0, 3)}
            found = np.zeros(8, np.float32)
            token, logit, _ = likely.get(tuple(tokens), (0, 0.0, 0))
            found[token] = logit
            return found

    language = Language("ad|bd", Hidden(0, 1.0))
    wanted, masked = language.exact()
    assert masked[b"bd"] < 0.01
    assert wanted[b"bd"] > 0.9
    assert language.shares(32, 20)[b"bd"] > 0.9
    firsts = [set(language.round(range(32), 100 * run, None)[1]) for run in range(20)]
    assert sum(b"bd" in texts for texts in firsts) < 10


def test_equal_texts_count_once_and_as_likely_as_the_model_finds_them() -> None:
    """All three texts of the language are among 32: then nothing is left to chance."""
    language = Language("ab|ba|cc", RandomModel(0, 1.0))
    wanted, _ = language.exact()
    found: Shares = {}
    texts, logarithms = language.kept(32, 5)
    odds = np.exp(np.array(logarithms) - max(logarithms))
    for one, share in zip(texts, (odds / odds.sum()).tolist(), strict=True):
        found[one] = found.get(one, 0.0) + share
    assert variation(found, wanted) < 0.03


def test_texts_less_likely_than_floats_can_say_are_compared() -> None:
    first = []
    for token, mass in ((1, -5.0), (2, -6.0)):
        particle = Particle()
        particle.drew(token, (math.log(0.5), 0.0))
        for _ in range(400):
            particle.drew(7, (-1.0, mass))
        first.append(particle)
    root = tree_of(first)
    assert root is not None
    one, other = weights(first, [], root)
    assert one - other == pytest.approx(400.0)
    assert chosen([one, other], 0.999) == 0


def test_the_point_chooses_by_the_weights() -> None:
    odds = [math.log(0.2), -math.inf, math.log(0.8)]
    assert [chosen(odds, point) for point in (0.1, 0.19, 0.21, 0.999)] == [0, 0, 2, 2]


# --- in the runtime


def asked(pattern: str, faithful: int, seed: int = 1, **more: Any) -> wire.Generate:
    options = {"temperature": 1.0, "seed": seed, "max_tokens": 6, "faithful": faithful}
    fields = {key: more.pop(key) for key in ("stream", "keep", "thought") if key in more}
    sampling = wire.SamplingParams(**{**options, **more})
    return wire.Generate(1, 2, sampling, wire.Regex(pattern), **fields)


def answer(op: wire.Generate, **changes: Any) -> wire.CallDone:
    return done(Talk(**changes).ask(wire.Open(1), text(1, "once upon"), op))[2]


def test_one_text_is_the_result_and_the_branch_goes_on_from_it() -> None:
    talk = Talk()
    replies = talk.ask(wire.Open(1), text(1, "once upon"), asked("[ab]*c|d[xy]", 8))
    (output,) = done(replies)[2].outputs
    told = talk.ask(wire.Read(1, 3))
    assert [one.text for one in told if isinstance(one, wire.TextIs)] == ["once upon" + output.text]
    assert done(replies)[2].usage.generated > len(output.tokens)


def test_equal_seeds_give_equal_texts_whatever_else_runs() -> None:
    op = asked("[ab]{2}[cd]{2}", 8)
    alone = answer(op).outputs
    talk = Talk()
    busy = wire.Generate(4, 5, wire.SamplingParams(temperature=1.0, max_tokens=9, seed=4))
    ops = (wire.Open(1), wire.Open(4), text(1, "once upon"), text(4, "a time"), busy, op)
    assert done(talk.ask(*ops))[2].outputs == alone
    others = {answer(asked("[ab]{2}[cd]{2}", 8, seed)).outputs[0].text for seed in range(9)}
    assert len(others) > 1


def test_the_runtime_keeps_what_the_weights_say() -> None:
    """Over many seeds the fake model's text is likelier, by its own log-probabilities, than what
    the mask alone takes.
    """

    def total(faithful: int) -> float:
        found = 0.0
        for seed in range(25):
            op = asked("[a-z]{3}0|[A-E]{4}|[ab]*c", faithful, seed, logprobs=0)
            (output,) = answer(op).outputs
            found += sum(one.logprob for one in output.logprobs)
        return found / 25

    assert total(16) > total(1) + 0.5


def test_forced_text_is_drawn_since_it_may_be_unlikely() -> None:
    reply = answer(asked("abc[de]", 2), is_forcing=True)
    assert (reply.usage.forced, reply.outputs[0].forced) == (0, ())


def test_drafts_change_nothing() -> None:
    op = asked("(abcab|bcabc)[ab]", 16, seed=3, max_tokens=6)
    assert answer(op, speculation="always").outputs == answer(op, speculation="off").outputs


def test_a_stream_has_the_text_in_one_piece_at_the_end() -> None:
    replies = Talk().ask(wire.Open(1), text(1, "once"), asked("[ab]*c|d[xy]", 8, stream=True))
    (delta,) = [one for one in replies if isinstance(one, wire.Delta)]
    assert delta.text == done(replies)[2].outputs[0].text


def test_the_empty_text_and_a_single_one_are_given() -> None:
    assert [answer(asked(one, 4)).outputs[0].text for one in ("", "abc")] == ["", "abc"]


def test_without_a_constraint_it_is_the_models_own_text() -> None:
    def plain(faithful: int) -> wire.CallDone:
        sampling = wire.SamplingParams(seed=1, max_tokens=6, faithful=faithful)
        return answer(wire.Generate(1, 2, sampling))

    assert plain(8).outputs == plain(1).outputs
    assert plain(8).usage.generated == plain(1).usage.generated


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("n", {"n": 2}),
        ("keep", {"keep": "best"}),
        ("top_p", {"top_p": 0.5}),
        ("top_k", {"top_k": 3}),
        ("min_p", {"min_p": 0.1}),
        ("repetition_penalty", {"repetition_penalty": 1.2}),
        ("temperature", {"temperature": 0.0}),
        ("thought", {"thought": wire.ThoughtLimit("", "x", "x", 2)}),
    ],
)
def test_what_does_not_go_with_it_is_refused_by_name(name: str, more: dict[str, Any]) -> None:
    op = asked("[ab]*c", 8, **more)
    with pytest.raises(InvalidParameter, match="with faithful=8") as refused:
        check_faithful(op)
    assert refused.value.details()["name"] == name
    reply = failed(Talk().ask(wire.Open(1), text(1, "once"), op))[2]
    assert (reply.code, reply.details["name"]) == ("invalid_parameter", name)


def test_a_beam_search_refuses_it() -> None:
    beams = wire.Beams(2)
    with pytest.raises(InvalidParameter, match="draws no texts"):
        check_beams(asked("[ab]*c", 8, beams=beams, temperature=0.0), beams)


def test_a_call_that_is_cancelled_between_its_rounds_leaves_nothing() -> None:
    talk = Talk()
    talk.say(wire.Open(1), text(1, "once upon"), asked("[ab]{6}", 8))
    for _ in range(6):
        talk.step()
    replies = talk.ask(wire.Cancel(2))
    assert set(failed(replies)) == {2}
    assert talk.scheduler.idle
