"""Beam search as `transformers` decides it: which texts go on, by which tokens, and which are
complete.

The search begins with one text and takes what may follow each text under way, all at once, token by
token. Texts are compared by the sums of their tokens' log-probabilities, which are equally many for
all under way; complete ones by their scores, for which the length counts too (`wire.Beams`).

Pure: tokens and numbers in, texts out. Knows no sequences of the scheduler, no pages, no replies.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice

from lmprog.errors import InvalidParameter, NotSupported
from lmprog.runtime.scheduling.generation import Generation, ScoredToken
from lmprog.runtime.scheduling.sampling_requests import Likely
from lmprog.runtime.text.stream import TextStream
from lmprog.wire import SAMPLING_OPTIONS, Beams, Generate


@dataclass(eq=False, slots=True)
class Beam:
    """One text."""

    tokens: array[int]
    """The prompt's and its own."""
    task: Generation
    """In its state after them."""
    stream: TextStream | None
    """Its text, where that may end it; None where only tokens do."""
    total: float = 0.0
    """The sum of its tokens' log-probabilities."""
    before: Beam | None = None
    """What it is the continuation of; None at the start, and once others go on from it."""

    @property
    def is_complete(self) -> bool:
        return self.task.finish is not None or (self.stream is not None and self.stream.is_stopped)

    def followed_by(self, scored: ScoredToken) -> Beam:
        """May raise what a constraint raises that exceeds its limits."""
        tokens, task = self.tokens[:], self.task.copy()
        stream = None if self.stream is None else self.stream.copy()
        task.logprobs = self.task.logprobs
        num_seam_tokens = task.num_seam_tokens
        added = task.accept(scored.token, tokens)
        if task.settings.sampling.logprobs is not None and task.num_seam_tokens == num_seam_tokens:
            task.logprobs = [*task.logprobs, scored]
        if stream is not None and added:
            stream.push(scored.token)
        return Beam(tokens, task, stream, self.total + scored.logprob, self)


class BeamSearch:
    """The texts of one search. `num_ends`: how many tokens end a text."""

    def __init__(self, rules: Beams, start: Beam, num_ends: int) -> None:
        self._rules = rules
        self._most_steps = start.task.settings.max_tokens
        self.num_likely = max(2, 1 + num_ends) * rules.width
        """So many tokens after a text can matter: as many as could end one, and one that goes on,
        for each text."""
        self.running = [start]
        """Equally long, the likeliest first."""
        self.complete: list[Beam] = []
        """The best first, at most `width`."""
        self.num_steps = 0
        """Tokens decided, ends included."""
        if start.is_complete:  # the constraint allows the empty text only
            self.running, self.complete = [], [start]

    @property
    def is_over(self) -> bool:
        return not self.running

    def score(self, beam: Beam) -> float:
        """By which a complete text is compared."""
        return self._scored(beam, max(1, beam.task.steps))

    def take(self, likely: Sequence[Likely]) -> None:
        """Goes a token on. `likely` has for each text under way what may follow it, the likeliest
        first, `num_likely` or all there are. May raise what a constraint raises that exceeds its
        limits.
        """
        width, going, ended = self._rules.width, list[Beam](), list[Beam]()
        for rank, (index, scored) in enumerate(self._ranked(likely)):
            if len(going) == width:
                break
            beam = self.running[index].followed_by(scored)
            if not beam.is_complete:
                going.append(beam)
            elif rank < width:
                ended.append(beam)
        for beam in self.running:
            beam.before = None  # else every text would keep all its beginnings
        self.num_steps += 1
        self.complete = sorted([*self.complete, *ended], key=self.score, reverse=True)[:width]
        self.running = going if going and self._may_improve(going[0]) else []

    def _ranked(self, likely: Sequence[Likely]) -> Iterator[tuple[int, ScoredToken]]:
        """The likeliest continuations of all texts: whose they are, and by which token."""

        def of(index: int, total: float) -> Iterator[tuple[float, int, int, float]]:
            for token, logprob in likely[index]:
                yield -(total + logprob), index, token, logprob

        each = [of(index, beam.total) for index, beam in enumerate(self.running)]
        num_top = self.running[0].task.settings.sampling.logprobs or 0
        for _, index, token, logprob in islice(merge(*each), self.num_likely):
            yield index, ScoredToken(token, logprob, likely[index][:num_top])

    def _may_improve(self, best: Beam) -> bool:
        """Whether the search goes on, of whose texts under way `best` is the likeliest."""
        if len(self.complete) < self._rules.width:
            return True
        early, penalty = self._rules.early_stopping, self._rules.length_penalty
        if early is True:
            return False
        length = self._most_steps if early == "never" and penalty > 0.0 else self.num_steps
        return self._scored(best, length) > self.score(self.complete[-1])

    def _scored(self, beam: Beam, length: int) -> float:
        return beam.total / math.pow(length, self._rules.length_penalty)


def check_beams(op: Generate, beams: Beams) -> None:
    """Raises `InvalidParameter` or `NotSupported` for what does not go with a beam search."""
    sampling = op.sampling
    if sampling.n > beams.width:
        raise InvalidParameter(
            f"a beam search of width {beams.width} has at most {beams.width} results, and "
            f"n={sampling.n} were asked for.",
            name="n",
            value=sampling.n,
            allowed=f"x <= {beams.width}",
        )
    if sampling.max_tokens == 0:
        raise InvalidParameter(
            "a beam search decides at least one token, and max_tokens is 0.",
            name="max_tokens",
            value=0,
            allowed="1 <= x",
        )
    for name, line in SAMPLING_OPTIONS.items():
        if not line.option.is_for_beams and getattr(sampling, name) not in line.asks_for_nothing:
            raise NotSupported(
                f"a beam search compares the model's own log-probabilities, and {name}="
                f"{getattr(sampling, name)!r} has no meaning there; leave it out."
            )
    if op.keep != "first" and op.judge is None:
        raise NotSupported(
            f"keep={op.keep!r}: the first result of a beam search is its best; leave it out."
        )
