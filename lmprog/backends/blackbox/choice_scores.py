"""Scores a select from log-probabilities that an API returned: which choice wins, and with what
probability.

The same three methods as in the runtime. Knows numbers only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from lmprog import wire


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """For each choice, its tokens' log-probabilities after the prompt and, if the method needs
    them, without it.
    """

    logprobs: tuple[tuple[float, ...], ...]
    baselines: tuple[tuple[float, ...], ...]
    usage: wire.Usage


def chosen(op: wire.Select, scored: ChoiceScore) -> wire.Chosen:
    """The best choice at temperature 0; else a sample drawn with the op's seed."""
    scores = _scores(op.method, scored)
    best = max(range(len(scores)), key=scores.__getitem__)
    if op.temperature > 0:
        drawn = _softmax([score / op.temperature for score in scores])
        best = random.Random(op.seed).choices(range(len(scores)), drawn)[0]
    baselines = scored.baselines or tuple(() for _ in scores)
    options = tuple(
        wire.ScoredChoice(score, probability, logprobs, baseline)
        for score, probability, logprobs, baseline in zip(
            scores, _softmax(scores), scored.logprobs, baselines, strict=True
        )
    )
    return wire.Chosen(op.call, best, options, scored.usage)


def _scores(method: wire.SelectMethod, scored: ChoiceScore) -> list[float]:
    means = [_mean(logprobs) for logprobs in scored.logprobs]
    if method == "unconditional_likelihood_normalized":
        return [
            mean - _mean(baseline) for mean, baseline in zip(means, scored.baselines, strict=True)
        ]
    if method == "greedy_token_selection":
        return _greedy(scored.logprobs, means)
    return means


def _greedy(logprobs: Sequence[Sequence[float]], means: Sequence[float]) -> list[float]:
    """Sums over tokens, with shorter choices padded with their mean. The choice that wins token by
    token gets the highest score.
    """
    longest = max(len(tokens) for tokens in logprobs)
    padded = [
        [*tokens, *[mean] * (longest - len(tokens))]
        for tokens, mean in zip(logprobs, means, strict=True)
    ]
    winner = max(range(len(padded)), key=padded.__getitem__)
    scores = [sum(row) for row in padded]
    top = max(scores)
    return [
        top if index == winner else min(score, top - 1e-9) for index, score in enumerate(scores)
    ]


def _mean(logprobs: Sequence[float]) -> float:
    return sum(logprobs) / len(logprobs) if logprobs else -math.inf


def _softmax(scores: Sequence[float]) -> list[float]:
    top = max(scores)
    if top == -math.inf:
        return [1.0 / len(scores)] * len(scores)
    weights = [math.exp(score - top) for score in scores]
    return [weight / sum(weights) for weight in weights]
