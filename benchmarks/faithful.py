"""What masks do to the distribution of texts, and what `faithful=k` leaves of it.

    python -m benchmarks.faithful
    python -m benchmarks.faithful --particles 8,32 --scale 3

53 small regular languages over four letters; a random model that gives every text its own normal
logits (`--scale`: their deviation), over single letters and three pairs. What the model would write
if it were asked until its text fits is summed up over all texts. Beside it, as total variation: what
the mask alone writes, and what is kept of `k` texts, the mean of `--runs` draws of all of them. Each
text is drawn by the runtime's own tasks, masks and requests, and by the plain sampler. The chances
of each run's texts are added up, not single draws of one, so that less is left of chance.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from statistics import median
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from benchmarks import runner
from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import Constraint
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from lmprog.runtime.scheduling.logits_requests import sample_request
from lmprog.runtime.scheduling.particles import Particle, TextPlace, chosen, tree_of, weights
from lmprog.simulation.plain_sampler import PlainSampler

PATTERNS = """ab|ba|cc; a*b; (ab)*c; a{1,4}|b{1,4}; [ab]*c; [abcd]{3}; a[bc]d|b[cd]a|d[ab]c;
(aa|ab|ba)*d; [abc]{2,4}; a?b?c?d; (ab|cd){1,3}; [ab]*a[ab]; a(b*|c*)d; (a|bc|ddd)*a; d[abc]*d;
abc|bcd|cda|dab; a|ab|abc|abcd; a*|b*c|c*d; [bcd]*a; (a[bc]){1,3}; [bc]*d?; ([ab][cd])*;
abcd|abdc|acbd|dcba; a[bcd]{0,3}b; (ab?c?)*d; [ad]{4}; [ab]{2}[cd]{2}; aab*|bbc*|ccd*; [ac]*[bd];
a{2}|b{3}|c{4}|d{5}; (ab|ba|cd|dc){2}; c*a{0,2}c; [abcd]{0,3}; b(a|cd)*b; a(a|b(a|b[ab])); (aaa|bbb)?c;
[abc]*d[abc]?; [ab]*c[ab]; dd*|ab; a[abcd]{2}d; ([abcd]a)*; [abcd]{1,2}(ab|c); a*b*c*d;
[ad]{1,2}b[ad]{1,2}; abab|baba|abba; (ab|bc){0,2}a; [ab]{2}|[cd]{4}; a(bc|cb){1,2}; (c|dd)(a|bb);
b*ab*ab*; (ad|bc)?(da|cb); a|bb|ccc|dddd; [abd]*c"""
LANGUAGES = [one.strip() for one in PATTERNS.split(";")]
PIECES = (b"a", b"b", b"c", b"d", b"ab", b"bc", b"cd", None)
END = len(PIECES) - 1
MOST = 6
"""Tokens of a text."""
VOCABULARY = Vocabulary(PIECES, (END,), use_cache=False)
Shares = dict[bytes, float]


class RandomModel:
    """Its logits depend on all tokens before them, and on the seed."""

    def __init__(self, seed: int, scale: float) -> None:
        self._seed, self._scale = seed, scale
        self._known: dict[bytes, NDArray[np.float32]] = {}

    def logits(self, tokens: array[int]) -> NDArray[np.float32]:
        key = tokens.tobytes()
        if key not in self._known:
            rng = np.random.default_rng([self._seed, *tokens])
            self._known[key] = rng.normal(0, self._scale, len(PIECES)).astype(np.float32)
        return self._known[key]


class Language:
    """The texts of a pattern, as a model writes them."""

    def __init__(self, pattern: str, model: RandomModel) -> None:
        self._model = model
        self._constraint: Constraint = compile_constraint(wire.Regex(pattern), VOCABULARY)
        self._sampler = PlainSampler()

    def _task(self, sampling: wire.SamplingParams, seed: int) -> Generation:
        settings = GenerationSettings(sampling, MOST, (END,), 0, self._constraint)
        return Generation(settings, seed)

    def exact(self) -> tuple[Shares, Shares]:
        """How likely each text is: as the model would write it, and under the mask alone."""
        wanted, masked = defaultdict[bytes, float](float), defaultdict[bytes, float](float)
        open_ = [(self._task(wire.SamplingParams(), 0), array("i"), 1.0, 1.0)]
        while open_:
            task, tokens, likely, drawn = open_.pop()
            if task.finish is not None:
                wanted[text_of(tokens)] += likely
                masked[text_of(tokens)] += drawn
                continue
            mask = task.mask()
            assert mask is not None
            odds = np.exp(self._model.logits(tokens).astype(np.float64))
            odds /= odds.sum()
            mass = odds[mask.tokens].sum()
            for token in mask.tokens.tolist():
                after, longer = task.copy(), tokens[:]
                after.accept(token, longer)
                open_.append((after, longer, likely * odds[token], drawn * odds[token] / mass))
        total = sum(wanted.values())
        return {text: one / total for text, one in wanted.items()}, dict(masked)

    def draw(self, particle: Particle, sampling: wire.SamplingParams, seed: int) -> bytes:
        task, tokens = self._task(sampling, seed), array("i")
        task.particle = particle
        task.start(tokens)
        while task.finish is None:
            request = sample_request(tokens, task, 0)
            results = self._sampler.sample(self._model.logits(tokens)[None], (request,), ())
            (found,) = results.samples
            assert found is not None
            assert found.odds is not None
            particle.drew(found.token, found.odds)
            task.accept(found.token, tokens)
        return text_of(tokens)

    def round(
        self, numbers: range, seed: int, root: TextPlace | None
    ) -> tuple[list[Particle], list[bytes]]:
        sampling = wire.SamplingParams(faithful=2)
        made = [Particle(root) for _ in numbers]
        texts = [
            self.draw(one, sampling, seed + number)
            for one, number in zip(made, numbers, strict=True)
        ]
        return made, texts

    def kept(self, num_all: int, seed: int) -> tuple[list[bytes], list[float]]:
        """The texts of one run, and the weight of each, as `runtime.programs.faithful` has them."""
        num_first = (num_all + 1) // 2
        first, texts = self.round(range(num_first), seed, None)
        root = tree_of(first)
        second, more = self.round(range(num_first, num_all), seed, root)
        return texts + more, weights(first, second, root)

    def shares(self, num_all: int, num_runs: int) -> Shares:
        """How likely each text is kept."""
        found = defaultdict[bytes, float](float)
        for run in range(num_runs):
            texts, logarithms = self.kept(num_all, run * 1000)
            odds = np.exp(np.array(logarithms) - max(logarithms))
            for text, one in zip(texts, (odds / odds.sum()).tolist(), strict=True):
                found[text] += one / num_runs
        return dict(found)

    def one(self, num_all: int, seed: int, point: float) -> bytes:
        texts, logarithms = self.kept(num_all, seed)
        return texts[chosen(logarithms, point)]


def text_of(tokens: array[int]) -> bytes:
    return b"".join(PIECES[token] or b"" for token in tokens)


def variation(one: Shares, other: Shares) -> float:
    """The total variation between two distributions."""
    return sum(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in {*one, *other}) / 2


@runner.command
def main(
    *,
    particles: Annotated[runner.Ints, "texts of which one is kept, by commas"] = (8, 32),
    runs: Annotated[int, "draws of all texts"] = 100,
    scale: Annotated[float, "deviation of the logits"] = 2.0,
) -> None:
    sides = ["mask", *map(str, particles)]
    runner.head("language", *sides, texts=1)
    found: list[list[float]] = []
    for seed, pattern in enumerate(LANGUAGES):
        language = Language(pattern, RandomModel(seed, scale))
        wanted, masked = language.exact()
        row = [variation(masked, wanted)]
        row += [variation(language.shares(count, runs), wanted) for count in particles]
        found.append(row)
        runner.say(pattern, *(f"{one:.3f}" for one in row))
    columns = list(zip(*found, strict=True))
    runner.say("median", *(f"{median(one):.3f}" for one in columns))
    runner.say("greatest", *(f"{max(one):.3f}" for one in columns))
    runner.say("at most 0.05", *(str(sum(one <= 0.05 for one in column)) for column in columns))
