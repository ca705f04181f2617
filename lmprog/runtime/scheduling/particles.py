"""Texts drawn under a mask, and how likely one of them is to be chosen so that the mask leaves no
trace.

A mask gives what it forbids to what it allows, token by token, and so prefers texts that begin
well and have few ways to end well. The texts that are wanted are those of a model that is asked
again and again, without a mask, until its text fits. So several are drawn, the *particles*, and one
of the different ones is chosen: as likely as the model finds it, over how likely it was to be among
them. The first half shows where the mask takes much; the second half is drawn so that it goes there
less (adaptive sampling with approximate expected futures; Park and others, 2024).

All numbers are logarithms: long texts are less likely than floats can say. Pure: tokens and numbers
in, numbers out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from lmprog.wire import SamplingParams


@dataclass(eq=False, slots=True)
class TextPlace:
    """Where particles have been, in the tree of their tokens."""

    mass: float
    """How likely the model goes on from here as the mask allows it."""
    fits: float = 0.0
    """How likely its text fits from here, where all that was not seen does."""
    after: dict[int, tuple[float, TextPlace]] = field(default_factory=dict)
    """By the next token: how likely the model finds it, and where it leads."""

    def nudges(self, temperature: float) -> dict[int, float]:
        """What is added to the logits of the tokens after it that fit less than they promise."""
        known = [(token, after.fits) for token, (_, after) in self.after.items() if after.fits]
        return {token: temperature * fits for token, fits in known}


@dataclass(frozen=True, slots=True)
class Step:
    """A token was drawn, with its `SampleResult.odds`."""

    token: int
    drawn: float
    mass: float


class Particle:
    """One text. `place` is where it stands in the tree that those before it have left; None where
    they never were.
    """

    __slots__ = ("place", "steps")

    def __init__(self, place: TextPlace | None = None) -> None:
        self.place = place
        self.steps: list[Step] = []

    def copy(self) -> Particle:
        """For tokens that may not come: without the steps of those that came."""
        return Particle(self.place)

    def drew(self, token: int, odds: tuple[float, float]) -> None:
        """A token was drawn; `odds` as in `SampleResult`."""
        self.steps.append(Step(token, *odds))

    def took(self, token: int) -> None:
        """It has gone on."""
        if self.place is not None:
            found = self.place.after.get(token)
            self.place = None if found is None else found[1]

    def asked(self, sampling: SamplingParams) -> SamplingParams:
        """How its next token is sampled."""
        nudges = {} if self.place is None else self.place.nudges(sampling.temperature)
        if not nudges:
            return sampling
        for token, bias in sampling.logit_bias:
            nudges[token] = nudges.get(token, 0.0) + bias
        return sampling.biased(nudges)


def tree_of(particles: Iterable[Particle]) -> TextPlace | None:
    """What particles that began without a tree have seen; None where they had nothing to draw."""
    root: TextPlace | None = None
    for particle in particles:
        if not particle.steps:
            return None
        place = root = root or TextPlace(particle.steps[0].mass)
        path = []
        for step, mass in zip(particle.steps, _masses_after(particle.steps), strict=True):
            path.append(place)
            likely = step.drawn + step.mass
            place = place.after.setdefault(step.token, (likely, TextPlace(mass)))[1]
        for one in reversed(path):
            one.fits = _fits(one)
    return root


def _masses_after(steps: list[Step]) -> list[float]:
    """After each step; a text that has ended fits."""
    return [*[step.mass for step in steps[1:]], 0.0]


def _fits(place: TextPlace) -> float:
    """The mass that the mask allows, less what is known to be lost later."""
    kept = [likely + after.fits for likely, after in place.after.values()]
    unseen = 1.0 - sum([math.exp(likely - place.mass) for likely, _ in place.after.values()])
    if unseen > 1e-9:
        kept.append(place.mass + math.log(unseen))
    return _sum(kept)


def weights(first: list[Particle], second: list[Particle], root: TextPlace | None) -> list[float]:
    """Of each particle, in their order: the logarithm of how likely it is to be chosen, up to what
    is added to all. Minus infinity where an earlier one is the same text.
    """
    found: list[float] = []
    known: set[tuple[int, ...]] = set()
    for particle in (*first, *second):
        text = tuple([step.token for step in particle.steps])
        if text in known:
            found.append(-math.inf)
            continue
        known.add(text)
        likely, chances = _chances(particle, None if len(found) < len(first) else root)
        if len(found) < len(first):
            chances = (chances[0], likely - (0.0 if root is None else root.fits))
        found.append(likely - _is_among(chances, (len(first), len(second))))
    return found


def _chances(particle: Particle, place: TextPlace | None) -> tuple[float, tuple[float, float]]:
    """How likely the model writes the text, and how likely it is drawn in the first round and in
    its own, which has gone by the tree whose root is `place`.
    """
    likely = first = own = 0.0
    for step in particle.steps:
        own += step.drawn
        if place is None:
            likely, first = likely + step.drawn + step.mass, first + step.drawn
            continue
        after = place.after.get(step.token)
        here = step.drawn + place.fits if after is None else after[0]
        likely, first = likely + here, first + here - place.mass
        place = None if after is None else after[1]
    return likely, (first, own)


def _is_among(chances: tuple[float, float], counts: tuple[int, int]) -> float:
    """The logarithm of how likely a text is drawn at all, by its chance in each draw."""
    never = 0.0
    for chance, count in zip(chances, counts, strict=True):
        if count and chance >= -1e-12:
            return 0.0
        never += count * math.log1p(-math.exp(chance)) if count else 0.0
    if never < -1e-6:
        return math.log(-math.expm1(never))
    drawn = [c + math.log(n) for c, n in zip(chances, counts, strict=True) if n]
    return _sum(drawn)


def _sum(logarithms: list[float]) -> float:
    best = max(logarithms)
    return best + math.log(sum([math.exp(one - best) for one in logarithms]))


def chosen(logarithms: list[float], point: float) -> int:
    """The number of the weight at which `point`, in (0, 1), points."""
    best = max(logarithms)
    shares = [math.exp(one - best) for one in logarithms]
    rest = point * sum(shares)
    for number, share in enumerate(shares):
        rest -= share
        if rest < 0:
            return number
    return shares.index(max(shares))
