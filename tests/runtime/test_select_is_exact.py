"""A select scores each option as transformers scores the whole text alone: on a real (small,
random) checkpoint, also where the tokenizer merges an option with the text before it."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from lmprog import wire
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.torch_engine.engine import TorchEngine
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.runtime.programs.select_scoring import make_ballot, read_scores
from lmprog.runtime.scheduling.generation import ScoredToken
from lmprog.runtime.text.tokenizer import HfTokenizer
from tests.model.checkpoints import Recipe
from tests.runtime.talk import Talk, text
from tests.text.checkpoints import byte_level

SCHEDULING = SchedulerConfig(page_size=16, num_pages=256)


@dataclass(frozen=True)
class Judged:
    """A checkpoint with its tokenizer, in our runtime and in transformers."""

    model: Any
    tokenizer: HfTokenizer
    engine: TorchEngine

    def logprobs(self, tokens: list[int]) -> list[float]:
        """Of each token given those before it; the first one has none."""
        with torch.no_grad():
            likely = self.model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        return [math.nan, *(float(likely[at, token]) for at, token in enumerate(tokens[1:]))]

    def tokens(self, whole: str) -> list[int]:
        return [*self.tokenizer.prefix, *self.tokenizer.encode(whole)]


@pytest.fixture(scope="module", params=["", "<s>"])
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    folder: Path = tmp_path_factory.mktemp("checkpoint")
    """Once with nothing before a text, and once with a token."""
    tokenizer = byte_level()
    if request.param:
        special = [(request.param, tokenizer.token_to_id(request.param))]
        tokenizer.post_processor = TemplateProcessing(
            single=f"{request.param} $A", special_tokens=special
        )
    model = Recipe("Llama", {"vocab_size": tokenizer.get_vocab_size()}).make(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = RuntimeConfig(
        model=str(folder),
        dtype="float32",
        threads=1,
        kv_memory_mb=16,
        scheduler=SCHEDULING,
        attention="reference",
    )
    return Judged(model, HfTokenizer(folder), load_engine(config))


PROMPT = "The qui"
"""Ends inside a word: "ck" and "n" merge with its last token, "t" does not."""
OPTIONS = ("ck brown fox", "ck", "n", " dog sleeps.", "t", "ck ", "the lazy dog", "\u00e9")
METHODS: list[wire.SelectMethod] = [
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
]


def chosen(judged: Judged, op: wire.Select, talk: Talk | None = None) -> wire.Chosen:
    talk = talk or Talk(
        judged.tokenizer, judged.engine, TorchSampler(), page_size=16, num_pages=256
    )
    replies = talk.ask(wire.Open(op.branch), text(op.branch, PROMPT), op)
    talk.ask(wire.Close(op.branch))
    (reply,) = [reply for reply in replies if isinstance(reply, wire.Chosen)]
    return reply


def scored_alone(judged: Judged) -> tuple[list[list[float]], list[list[float]]]:
    """Per option the log-probabilities of its tokens in the whole text, and without the text before
    it. Tokens that options share after the same ones have one value: transformers rounds texts of
    different lengths differently.

    Its tokens are those from the first place on in which any option changes the tokens of the text.
    """
    before = judged.tokens(PROMPT)
    wholes = [judged.tokens(PROMPT + option) for option in OPTIONS]
    first = min(
        next(at for at in range(len(whole)) if whole[at : at + 1] != before[at : at + 1])
        for whole in wholes
    )
    assert first < len(before), "an option merges with the text before it"
    alone = list(judged.tokenizer.prefix or judged.tokenizer.eos_ids[:1]) or before[:1]
    known: dict[tuple[int, ...], float] = {}
    given = [
        [
            known.setdefault(tuple(whole[: at + 1]), logprob)
            for at, logprob in enumerate(judged.logprobs(whole))
        ]
        for whole in wholes
    ]
    return (
        [one[first:] for one in given],
        [judged.logprobs(alone + whole[first:])[len(alone) :] for whole in wholes],
    )


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def by_hand(
    method: wire.SelectMethod, given: list[list[float]], alone: list[list[float]]
) -> tuple[list[float], int]:
    """The score of each option, and which one wins."""
    if method == "token_length_normalized":
        scores = [mean(one) for one in given]
    elif method == "unconditional_likelihood_normalized":
        scores = [
            mean([a - b for a, b in zip(*pair, strict=True)])
            for pair in zip(given, alone, strict=True)
        ]
    else:
        longest = max(map(len, given))
        rows = [one + [mean(one)] * (longest - len(one)) for one in given]
        return [sum(row) for row in rows], rows.index(max(rows))
    return scores, scores.index(max(scores))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_scores_as_each_text_alone(judged: Judged, method: wire.SelectMethod) -> None:
    given, alone = scored_alone(judged)
    expected, winner = by_hand(method, given, alone)
    reply = chosen(judged, wire.Select(1, 2, OPTIONS, method))
    assert reply.index == winner
    for option, logprobs, baseline in zip(reply.options, given, alone, strict=True):
        assert option.logprobs == pytest.approx(logprobs, abs=1e-4)
        if method == "unconditional_likelihood_normalized":
            assert option.baseline == pytest.approx(baseline, abs=1e-4)
    if method != "greedy_token_selection":  # whose scores only put the winner first
        assert [option.score for option in reply.options] == pytest.approx(expected, abs=1e-4)
        weights = [math.exp(score) for score in expected]
        shares = [weight / sum(weights) for weight in weights]
        assert [option.probability for option in reply.options] == pytest.approx(shares, abs=1e-4)


def test_rounding_does_not_choose_between_options_that_begin_alike() -> None:
    """Each is computed in a sequence of its own, the token that they share too."""
    before, options = array("i", [1]), [array("i", [1, 2]), array("i", [1, 2, 3])]
    for noise in (-1e-6, 0.0, 1e-6):
        ballot = make_ballot(before, options, None)
        short, long = (one.scoring for one in ballot.sequences)
        short.final_logprobs = (ScoredToken(2, -2.0),)
        long.logprobs = [ScoredToken(2, -2.0 + noise)]
        long.final_logprobs = (ScoredToken(3, -1.0),)
        first, second = read_scores(ballot, "greedy_token_selection", str)
        assert first.score < second.score


def test_drawn_options_have_the_distribution_of_their_scores_at_that_temperature(
    judged: Judged,
) -> None:
    given, alone = scored_alone(judged)
    scores, _ = by_hand("token_length_normalized", given, alone)
    weights = [math.exp(score / 0.5) for score in scores]
    talk = Talk(judged.tokenizer, judged.engine, TorchSampler(), page_size=16, num_pages=256)
    count = 150
    drawn = Counter(
        chosen(judged, wire.Select(seed, seed, OPTIONS, temperature=0.5, seed=seed), talk).index
        for seed in range(1, count + 1)
    )
    for index, weight in enumerate(weights):
        share = weight / sum(weights)
        deviation = math.sqrt(count * share * (1 - share))
        assert abs(drawn[index] - count * share) < 4 * deviation + 1, OPTIONS[index]


def test_options_scored_beside_other_calls_score_the_same(judged: Judged) -> None:
    """In one step with generations over the same text."""
    talk = Talk(judged.tokenizer, judged.engine, TorchSampler(), page_size=16, num_pages=256)
    single = chosen(judged, wire.Select(1, 2, OPTIONS))
    settings = wire.SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, n=3)
    talk.say(wire.Open(5), text(5, PROMPT), wire.Generate(5, 6, settings))
    talk.step()
    beside = chosen(judged, wire.Select(7, 8, OPTIONS), talk)
    for mine, other in zip(single.options, beside.options, strict=True):
        assert mine.score == pytest.approx(other.score, abs=1e-4)
