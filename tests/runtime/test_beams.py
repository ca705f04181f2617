"""Beam search is transformers' `generate(num_beams=...)`: the same tokens and scores, on a real
(small, random) checkpoint; a step of the engine for a token of all texts together; what lost is
given up at once.
"""

from __future__ import annotations

import itertools
import random
from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from lmprog import wire
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import NotSupported
from lmprog.lang.ops.best_of import beam_options
from lmprog.native import compiler
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.native.sampler import NativeSampler
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.runtime.programs.beam_search import Beam, BeamRun, BeamSearch, check_beams
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from lmprog.runtime.text.tokenizer import HfTokenizer
from lmprog.simulation import oracle
from tests.model.checkpoints import Recipe
from tests.runtime.talk import Talk, done, failed, text
from tests.sampler.examples import CHANGES
from tests.text.checkpoints import byte_level

PROMPT = "The quick brown fox"
NUM_NEW = 9
Early = bool | Literal["never"]


@dataclass(frozen=True)
class Beamed:
    """A checkpoint with its tokenizer, in our runtime and in transformers."""

    model: Any
    tokenizer: HfTokenizer
    engine: Any
    sampler: Any
    frequent: tuple[int, ...] = ()
    """Tokens that texts of a search have, so that they may end them."""

    def talk(self, **changes: Any) -> Talk:
        return Talk(self.tokenizer, self.engine, self.sampler, **{"num_pages": 256, **changes})

    def searched(self, beams: wire.Beams, ends: tuple[int, ...], n: int) -> list[Found]:
        """By our runtime."""
        sampling = wire.SamplingParams(
            max_tokens=NUM_NEW, stop_token_ids=ends, beams=beams, n=n, ignore_eos=True
        )
        ops = (wire.Open(1), text(1, PROMPT), wire.Generate(1, 2, sampling))
        replies = self.talk().ask(*ops)
        (answer,) = done(replies).values()
        return [(list(one.tokens), one.score or 0.0) for one in answer.outputs]

    def wanted(self, beams: wire.Beams, ends: tuple[int, ...], n: int) -> list[Found]:
        """By transformers."""
        prompt = [*self.tokenizer.prefix, *self.tokenizer.encode(PROMPT)]
        with torch.no_grad():
            made = self.model.generate(
                torch.tensor([prompt]),
                num_beams=beams.width,
                num_return_sequences=n,
                length_penalty=beams.length_penalty,
                early_stopping=beams.early_stopping,
                max_new_tokens=NUM_NEW,
                eos_token_id=list(ends) or None,
                pad_token_id=0,
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
            )
        found = []
        for tokens, score in zip(made.sequences.tolist(), made.sequences_scores, strict=True):
            own = tokens[len(prompt) : len(prompt) + NUM_NEW]
            own = list(itertools.takewhile(lambda token: token not in ends, own))
            found.append((own, float(score)))
        return found


Found = tuple[list[int], float]


@pytest.fixture(scope="module", params=["torch", "native"])
def beamed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Beamed:
    if request.param == "native" and compiler() is None:
        pytest.skip("needs a C++ compiler")
    folder: Path = tmp_path_factory.mktemp("checkpoint")
    tokenizer = byte_level()
    model = Recipe("Llama", {"vocab_size": tokenizer.get_vocab_size()}).make(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = RuntimeConfig(
        model=str(folder),
        engine=request.param,
        dtype="float32",
        threads=1,
        kv_memory_mb=16,
        scheduler=SchedulerConfig(page_size=4, num_pages=256),
    )
    engine: Any = load_engine(config)
    sampler: Any = NativeSampler(engine) if request.param == "native" else TorchSampler()
    made = Beamed(model, HfTokenizer(folder), engine, sampler)
    texts = [tokens for tokens, _ in made.wanted(wire.Beams(8), (), 8)]
    seen = dict.fromkeys(tokens[at] for at in (3, 1, 5) for tokens in texts)
    return replace(made, frequent=tuple(seen)[:3])


@pytest.mark.parametrize("early", [False, True, "never"])
@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0, -0.5])
def test_tokens_and_scores_are_those_of_transformers(
    beamed: Beamed, penalty: float, early: Early
) -> None:
    num_ended = 0
    for width, num_ends in ((2, 0), (3, 1), (4, 2), (7, 3)):
        ends, beams = beamed.frequent[:num_ends], wire.Beams(width, penalty, early)
        wanted = beamed.wanted(beams, ends, width)
        got = beamed.searched(beams, ends, width)
        assert [tokens for tokens, _ in got] == [tokens for tokens, _ in wanted], beams
        assert [score for _, score in got] == pytest.approx(
            [score for _, score in wanted], abs=1e-4
        )
        num_ended += sum(len(tokens) < NUM_NEW for tokens, _ in wanted)
    assert num_ended, "some texts ended before the limit"


# --- on the fake model

LONG = "once upon a time there was a word"
BEAMS = wire.Beams(4)


def sampling(**changes: Any) -> wire.SamplingParams:
    given = {"max_tokens": 12, "beams": BEAMS, "ignore_eos": True, **changes}
    return wire.SamplingParams(**given)


def asked(talk: Talk, sampling: wire.SamplingParams, **op: Any) -> wire.CallDone:
    replies = talk.ask(wire.Open(1), text(1, LONG), wire.Generate(1, 2, sampling, **op))
    return done(replies)[2]


def free(talk: Talk) -> int:
    """Pages that hold nothing."""
    return talk.scheduler.pages.num_free


def test_all_texts_go_on_in_one_step_and_nothing_is_computed_again() -> None:
    talk = Talk()
    answer = asked(talk, sampling())
    stats = talk.scheduler.stats
    assert stats.steps == 12, "one for each token; the first has the prompt"
    assert answer.usage.prompt == len(LONG)
    assert stats.computed_tokens == len(LONG) + 11 * BEAMS.width == answer.usage.computed
    assert answer.usage.generated == 12
    assert stats.generated_tokens == 12
    assert (stats.looked_up_tokens, stats.cached_tokens) == (len(LONG), 0), "one prompt, new"


def test_who_goes_on_with_the_branch_pays_for_what_is_new() -> None:
    talk = Talk()
    answer = asked(talk, sampling())
    before = talk.scheduler.stats.computed_tokens
    talk.ask(text(1, "x"), wire.Generate(1, 3, wire.SamplingParams(max_tokens=1)))
    assert talk.scheduler.stats.computed_tokens - before == 2, "the last token, and x"
    read = next(one for one in talk.ask(wire.Read(1, 4)) if isinstance(one, wire.TextIs))
    assert read.text.startswith(LONG + answer.outputs[0].text + "x")


def test_losers_pages_are_free_at_once_and_all_others_in_the_end() -> None:
    talk = Talk(page_size=2)
    talk.say(wire.Open(1), text(1, LONG), wire.Generate(1, 2, sampling()))
    prompt_pages, most = -(-len(LONG) // 2), 0
    for _ in range(11):
        talk.step()
        most = max(most, 64 - free(talk) - prompt_pages)
    assert most <= 2 * BEAMS.width * 3, "no more than what the texts under way differ in"
    answer = done(talk.until_idle())[2]
    winner = -(-(len(LONG) + len(answer.outputs[0].tokens)) // 2)
    assert 64 - free(talk) <= winner + 1, "what is left is the winner's"
    talk.ask(wire.Close(1, forget=True))
    assert talk.scheduler.tree.num_pinned == 0


def test_a_text_keeps_its_last_beginning_and_no_earlier_ones() -> None:
    talk = Talk()
    talk.say(wire.Open(1), text(1, LONG), wire.Generate(1, 2, sampling()))
    for _ in range(6):
        talk.step()
    run = talk.interpreter.clients[b"me"].calls[2].run
    assert isinstance(run, BeamRun)
    assert len(run.search.running) == BEAMS.width
    for beam in run.search.running:
        assert beam.before is not None
        assert beam.before.before is None
    assert set(run.pins) == {beam.before for beam in run.search.running}


def test_a_cancelled_search_leaves_nothing_pinned_and_fails_its_call_once() -> None:
    talk = Talk()
    talk.say(wire.Open(1), text(1, LONG), wire.Generate(1, 2, sampling()))
    for _ in range(4):
        talk.step()
    assert failed(talk.ask(wire.Cancel(2)))[2].code == "cancelled"
    assert talk.scheduler.idle
    talk.ask(wire.Close(1))
    assert talk.scheduler.tree.num_pinned == 0


def test_with_hardly_any_memory_and_others_beside_it_the_same_is_found() -> None:
    wanted = asked(Talk(), sampling(n=4)).outputs
    talk = Talk(num_pages=14, token_budget=9)
    other = wire.SamplingParams(temperature=1.0, seed=1, max_tokens=15, n=3, ignore_eos=True)
    talk.say(
        *(wire.Open(7), text(7, "another prompt"), wire.Generate(7, 8, other)),
        *(wire.Open(1), text(1, LONG), wire.Generate(1, 2, sampling(n=4))),
    )
    answers = done(talk.until_idle())
    assert answers[2].outputs == wanted
    assert talk.scheduler.stats.preemptions > 0
    assert len(answers[8].outputs) == 3


def test_a_search_under_way_is_not_refused_where_others_wait() -> None:
    talk = Talk(max_waiting=4)
    talk.say(wire.Open(1), text(1, LONG), wire.Generate(1, 2, sampling(beams=wire.Beams(6))))
    assert done(talk.until_idle())[2].outputs


def test_it_is_the_search_written_out_with_ends_stops_and_least_lengths() -> None:
    rng = random.Random(3)
    for _ in range(40):
        early: Early = rng.choice([False, True, "never"])
        beams = wire.Beams(rng.randrange(1, 6), rng.choice([1.0, 0.0, 2.5, -1.0]), early)
        given = sampling(
            max_tokens=rng.randrange(1, 10),
            min_tokens=rng.choice([0, 2]),
            stop=rng.choice([(), ("a", "e", "no")]),
            ignore_eos=rng.random() < 0.5,
            n=beams.width,
            beams=beams,
        )
        wanted = oracle.beamed(LONG, wire.Generate(1, 2, given))
        got = asked(Talk(), given).outputs
        assert [(one.text, one.finish) for one in got] == [
            (one.text, one.finish) for one in wanted
        ], given
        assert [one.score for one in got] == pytest.approx([one.score for one in wanted])


@pytest.mark.parametrize("width", [1, 3, 8])
def test_texts_are_the_likeliest_that_a_constraint_allows(width: int) -> None:
    talk = Talk(is_forcing=True)
    given = sampling(n=width, beams=wire.Beams(width, early_stopping="never"), ignore_eos=False)
    answer = asked(talk, given, constraint=wire.Regex("(ab|c|ba?)d[xyz]"))
    texts = [start + "d" + end for start in ("ab", "c", "b", "ba") for end in "xyz"]
    ranked = sorted(texts, key=scored, reverse=True)
    assert [one.text for one in answer.outputs] == ranked[:width] if width == 8 else True
    assert {one.text for one in answer.outputs} <= set(texts)
    for one in answer.outputs:
        assert one.score == pytest.approx(scored(one.text))
        assert one.finish == "constraint"
        assert one.forced == (), "every token was compared"


def scored(answer: str) -> float:
    """Its mean log-probability, of the whole vocabulary."""
    return oracle.scores(LONG, wire.Select(1, 2, (answer,)))[0]


def test_a_constraint_of_fewer_texts_gives_fewer_results() -> None:
    talk = Talk()
    ops = (wire.Open(1), text(1, LONG), wire.Open(3))
    gen = wire.Generate(1, 2, sampling(n=4), constraint=wire.Choices(("ab", "cd")))
    late = wire.Append(3, (wire.Ref(2, 3),))
    replies = talk.ask(*ops, gen, late, wire.Read(3, 4))
    assert sorted(one.text for one in done(replies)[2].outputs) == ["ab", "cd"]
    assert failed(replies)[4].code == "unknown_name"


def test_a_text_that_the_budget_shapes_says_so() -> None:
    given = sampling(max_tokens=3)
    (output,) = asked(Talk(), given, constraint=wire.Regex("![a-z]*!")).outputs
    assert output.text.endswith("!")
    assert output.finish == "length"


def test_log_probabilities_add_up_to_the_score() -> None:
    (output,) = asked(Talk(), sampling(logprobs=2)).outputs
    assert [one.token for one in output.logprobs] == list(output.tokens)
    assert all(len(one.top) == 2 for one in output.logprobs)
    total = sum(one.logprob for one in output.logprobs)
    assert output.score == pytest.approx(total / 12)


def test_results_are_streamed_when_they_are_known() -> None:
    talk = Talk()
    gen = wire.Generate(1, 2, sampling(n=2), stream=True)
    replies = talk.ask(wire.Open(1), text(1, LONG), gen)
    deltas = [(one.index, one.text) for one in replies if isinstance(one, wire.Delta)]
    assert deltas == [(at, one.text) for at, one in enumerate(done(replies)[2].outputs)]


def test_a_judge_chooses_among_the_complete_texts() -> None:
    judge = wire.Judge(" is that so?", ("yes", "no"))
    texts = [one.text for one in asked(Talk(), sampling(n=4)).outputs]
    talk = Talk()
    answer = asked(talk, sampling(n=4), keep="best", judge=judge, stream=True)

    def verdict(result: str) -> float:
        asking = wire.Select(1, 2, judge.choices)
        yes, no = oracle.scores(LONG + result + judge.text, asking)
        return yes - no

    assert sorted(one.text for one in answer.outputs) == sorted(texts)
    assert answer.outputs[0].text == max(texts, key=verdict)
    (read,) = [one for one in talk.ask(wire.Read(1, 4)) if isinstance(one, wire.TextIs)]
    assert read.text == LONG + answer.outputs[0].text
    talk.ask(wire.Close(1))
    assert talk.scheduler.tree.num_pinned == 0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"n": 5}, "n=5"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 0.5}, "temperature"),
        ({"top_p": 0.5}, "top_p"),
        ({"repetition_penalty": 1.5}, "repetition_penalty"),
        ({"logit_bias": ((1, 2.0),)}, "logit_bias"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
def test_what_a_search_has_no_place_for_is_refused_by_name(
    changes: dict[str, Any], word: str
) -> None:
    talk = Talk()
    talk.say(wire.Open(1), text(1, LONG), wire.Generate(1, 2, sampling(**changes)))
    found = failed(talk.until_idle())[2]
    assert found.code in ("invalid_parameter", "not_supported")
    assert word in found.message


def test_every_option_that_shapes_sampling_is_refused_and_a_beam_call_asks_for_none() -> None:
    """The table says which; a line that is added to it is refused before anybody thinks of beams."""
    shaping = {
        name: line
        for name, line in wire.SAMPLING_OPTIONS.items()
        if line.option.role in ("draw", "edit")
    }
    assert shaping
    given = beam_options(3, {})
    for name, line in shaping.items():
        value = getattr(CHANGES[name], name)
        assert value not in line.asks_for_nothing
        op = wire.Generate(1, 2, sampling(**{name: value}))
        with pytest.raises(NotSupported, match=name):
            check_beams(op, BEAMS)
        if line.option.role == "draw":
            assert given[name] in line.asks_for_nothing


# --- how long a search goes on


def searched(penalty: float, early: Early, ends: list[float]) -> list[list[int]]:
    """The best texts of width 2, where step by step the likeliest text ends with these
    log-probabilities, and goes on with -0.1; all others are hardly likely.
    """
    given = wire.SamplingParams(max_tokens=100)
    task = Generation(GenerationSettings(given, 100, (0,), 1), 0)
    search = BeamSearch(wire.Beams(2, penalty, early), Beam(array("i", [5]), task, None), 1)
    for end in ends:
        if search.is_over:
            break
        best = sorted([(1, -0.1), (0, end), (2, -7.0), (3, -8.0)], key=lambda one: -one[1])
        other = ((1, -9.0), (2, -9.5), (3, -10.0), (0, -11.0))
        search.take([tuple(best) if 2 not in beam.tokens else other for beam in search.running])
    return [beam.tokens.tolist()[1:] for beam in search.complete]


@pytest.mark.parametrize("penalty", [-0.5, -1.0, -2.0])
def test_a_search_that_never_stops_early_goes_on_though_length_is_punished(penalty: float) -> None:
    """Where longer texts score worse, the best that a text can become is what it is now, and not
    what it would be at its longest: that bound would end the search before the text that wins.
    """
    ends = [-3.0, -3.0, -0.01]
    assert searched(penalty, "never", ends)[0] == [1, 1]
    assert searched(penalty, True, ends)[0] == [], "the first to be complete"


def test_a_snapshot_shows_the_texts_under_way_as_a_generation() -> None:
    talk = Talk()
    talk.say(wire.Open(1), text(1, LONG), wire.Generate(1, 2, sampling()))
    for _ in range(4):
        talk.step()
    talk.say(wire.Inspect(9))
    (seen,) = [one for one in talk.step() if isinstance(one, wire.Snapshot)]
    shown = [*seen.running, *seen.waiting]
    assert len(shown) == BEAMS.width
    assert {(one.kind, one.max_tokens) for one in shown} == {("gen", 12)}
    assert {one.generated for one in shown} <= {3, 4}
