"""The scoring of a select: the sequences that score its options, and what their log-probabilities
mean.

Each option is tokenised together with the text before it, so that an option that merges with that
text is scored with the tokens it would have there. Scoring begins for all options at the first
token in which any of them differs from the text alone. Options that differ only in their last token
share a sequence.

Pure: tokens and numbers in, numbers out. What takes long with many options is a generator, which
yields after each piece of it and returns the result.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lmprog.runtime.scheduling.generation import Scoring
from lmprog.runtime.scheduling.sampling_requests import uniform
from lmprog.wire import ScoredChoice, SelectMethod


@dataclass(frozen=True, slots=True)
class ScoredSequence:
    """The tokens of one sequence and its scoring."""

    tokens: array[int]
    scoring: Scoring


@dataclass(frozen=True, slots=True)
class OptionPlace:
    """Where one option is scored: the index of a sequence, and of one of its final tokens."""

    sequence: int
    final: int


@dataclass(frozen=True, slots=True)
class Ballot:
    """The sequences of a select. `places[i]` is option i after the text, `baselines[i]` without it
    (empty where the method does not need that).
    """

    sequences: tuple[ScoredSequence, ...]
    places: tuple[OptionPlace, ...]
    baselines: tuple[OptionPlace, ...]
    first: int
    """Position of the first scored token."""
    tokens: tuple[tuple[int, ...], ...]
    """The scored tokens of each option."""


Made = TypeVar("Made")
NO_BALLOT = Ballot((), (), (), 0, ())
"""Of a select whose options are not known as tokens yet."""


def at_once(pieces: Generator[None, None, Made]) -> Made:
    """All pieces one after the other."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            made: Made = end.value
            return made


def make_ballot(
    before: array[int], options: Sequence[array[int]], alone: tuple[int, ...] | None
) -> Ballot:
    """See `ballot_pieces`."""
    return at_once(ballot_pieces(before, options, alone))


def ballot_pieces(
    before: array[int], options: Sequence[array[int]], alone: tuple[int, ...] | None
) -> Generator[None, None, Ballot]:
    """The sequences that score `options` (each with the text's tokens) after the tokens `before`.

    `alone`: what precedes an option that is scored without the text; None where none is.
    """
    first = len(before)
    for option in options:
        first = min(first, _common(before[:first], option), len(option) - 1)
        yield
    first = max(1, first)
    drafts: dict[bytes, _Draft] = {}
    places, baselines = list[OptionPlace](), list[OptionPlace]()
    for option in options:
        places.append(_place(drafts, option, first))
        yield
    for option in options if alone is not None else ():
        assert alone is not None
        own = array("i", alone) + option[first:]
        baselines.append(_place(drafts, own, len(alone)))
        yield
    made = tuple(
        ScoredSequence(draft.tokens, Scoring(draft.first, tuple(draft.finals)))
        for draft in drafts.values()
    )
    scored = tuple(tuple(option[first:]) for option in options)
    return Ballot(made, tuple(places), tuple(baselines), first, scored)


def read_scores(
    ballot: Ballot, method: SelectMethod, name_of: Callable[[int], str]
) -> tuple[ScoredChoice, ...]:
    """See `score_pieces`."""
    return at_once(score_pieces(ballot, method, name_of))


def score_pieces(
    ballot: Ballot, method: SelectMethod, name_of: Callable[[int], str]
) -> Generator[None, None, tuple[ScoredChoice, ...]]:
    """Scores, probabilities and log-probabilities of all options, once all sequences are scored.
    `name_of` gives a token's text.
    """
    given, alone = list[list[float]](), list[list[float]]()
    for place in ballot.places:
        given.append(_logprobs(ballot, place))
        yield
    for place in ballot.baselines:
        alone.append(_logprobs(ballot, place))
        yield
    if method == "unconditional_likelihood_normalized":
        scores = [
            _mean([a - b for a, b in zip(x, y, strict=True)])
            for x, y in zip(given, alone, strict=True)
        ]
    elif method == "greedy_token_selection":
        scores = _greedy_scores((yield from _alike(ballot.tokens, given)))
    else:
        scores = [_mean(logprobs) for logprobs in given]
    probabilities = softmax(scores)
    baselines: list[list[float]] = alone or [[]] * len(given)
    found = []
    for score, probability, logprobs, baseline, tokens in zip(
        scores, probabilities, given, baselines, ballot.tokens, strict=True
    ):
        named = tuple([(token, name_of(token)) for token in tokens])
        found.append(ScoredChoice(score, probability, tuple(logprobs), tuple(baseline), named))
        yield
    return tuple(found)


def choose(choices: Sequence[ScoredChoice], temperature: float, seed: int) -> int:
    """The best option, or one drawn from the options' probabilities at `temperature`."""
    scores = [choice.score for choice in choices]
    if temperature == 0.0:
        return max(range(len(scores)), key=scores.__getitem__)
    left = uniform(seed, 0)
    for index, probability in enumerate(softmax([score / temperature for score in scores])):
        left -= probability
        if left < 0.0:
            return index
    return len(scores) - 1


def softmax(scores: Sequence[float]) -> list[float]:
    """Probabilities proportional to exp(score)."""
    top = max(scores)
    if top == -math.inf:
        return [1.0 / len(scores)] * len(scores)
    weights = [math.exp(score - top) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]


def _common(a: array[int], b: array[int]) -> int:
    """Length of the common prefix, by halving: whole runs are compared at once."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class _Draft:
    index: int
    tokens: array[int]
    first: int
    finals: list[int]


def _place(drafts: dict[bytes, _Draft], tokens: array[int], first: int) -> OptionPlace:
    inner, final = tokens[:-1], tokens[-1]
    key = first.to_bytes(8, "little") + inner.tobytes()
    draft = drafts.setdefault(key, _Draft(len(drafts), inner, first, []))
    if final not in draft.finals:
        draft.finals.append(final)
    return OptionPlace(draft.index, draft.finals.index(final))


def _logprobs(ballot: Ballot, place: OptionPlace) -> list[float]:
    scoring = ballot.sequences[place.sequence].scoring
    return [scored.logprob for scored in scoring.logprobs] + [
        scoring.final_logprobs[place.final].logprob
    ]


@dataclass(frozen=True, slots=True)
class _Scored:
    """A token after given others, and those that follow it in any option."""

    logprob: float
    following: dict[int, _Scored]


def _alike(
    options: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]
) -> Generator[None, None, list[list[float]]]:
    """The log-probabilities, with one value where several options have the same token after the
    same ones. Each was computed for itself, so that rounding may part them.
    """
    first: dict[int, _Scored] = {}
    made = []
    for option, values in zip(options, logprobs, strict=True):
        place, row = first, []
        for token, value in zip(option, values, strict=True):
            scored = place.setdefault(token, _Scored(value, {}))
            row.append(scored.logprob)
            place = scored.following
        made.append(row)
        yield
    return made


def _greedy_scores(options: Sequence[Sequence[float]]) -> list[float]:
    """Options compared token by token, shorter ones padded with their mean; the score of an option
    is the sum of its padded log-probabilities, raised above all others' for the one that wins token
    by token."""
    longest = max(len(option) for option in options)
    padded = [[*option, *[_mean(option)] * (longest - len(option))] for option in options]
    winner = max(range(len(padded)), key=lambda index: padded[index])
    scores = [sum(row) for row in padded]
    scores[winner] = max(scores)
    return [
        score if index == winner else min(score, scores[winner] - 1e-9)
        for index, score in enumerate(scores)
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
