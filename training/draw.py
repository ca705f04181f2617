"""Seeded choices that respect the split: what is held out for evaluation is never drawn for
training.

Names, words and number pairs are held out by a hash of themselves; wordings by their place in a
`Wording`. Knows nothing of tasks.
"""

from __future__ import annotations

import enum
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from training import words

T = TypeVar("T")

_ONSETS = words.words_of(
    "b c d f g h j k l m n p r s t v w z y qu bl br ch cl cr dr fl fr gl gr kl kn pl pr sc "
    "sh sk sl sm sn sp st str "
    "sw th tr tw wh"
)
_VOWELS = words.words_of("a e i o u a e i o u a e i o u ai ou ea oa ee oo ie y ow")
_CODAS = words.words_of("n r l m s t k nd x th")
_LISTED = tuple(
    word.lower()
    for word in (*words.PEOPLE, *words.TOWNS, *words.SINGULARS, *words.TRADES, *words.FOODS)
)

_EXTENDED = (*_LISTED, *words.COLOURS, *words.HOBBIES, *words.ANIMALS)


class Split(enum.Enum):
    """Which half of the world is drawn: for training, or held out for evaluation."""

    TRAIN = "train"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Wording:
    """Ways to say one thing. `held` ones are kept for evaluation; where there are none, `train`
    serves both.
    """

    train: tuple[str, ...]
    held: tuple[str, ...] = ()


def ways(*train: str, held: Sequence[str] = ()) -> Wording:
    """A `Wording` from its sentences."""
    return Wording(train, tuple(held))


def is_held(text: str) -> bool:
    """Whether this name (or pair of numbers, as text) belongs to the evaluation: one in eight
    does.
    """
    return zlib.crc32(text.lower().encode()) % 8 == 0


class Draw:
    """A random source for one document of one split."""

    def __init__(self, seed: str, split: Split = Split.TRAIN) -> None:
        self.rng = random.Random(seed)
        self.split = split

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.rng.random() < probability

    def one(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[int(self.rng.random() * len(options))]

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """`count` different options in random order."""
        return self.rng.sample(list(options), count)

    def number(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + int(self.rng.random() * (high - low + 1))

    def template(self, wording: Wording) -> str:
        """One way of saying it, from this split."""
        if self.split is Split.HELD and wording.held:
            return self.one(wording.held)
        return self.one(wording.train)

    def say(self, wording: Wording, **values: object) -> str:
        """One way of saying it, filled in."""
        return self.template(wording).format(**values)

    def spelled(self, syllables: int) -> str:
        """A random lower-case word: of syllables, or, two in five, of parts of listed words, so
        that every token of the vocabulary comes to be copied."""
        if self.chance(0.4):
            return self._pieced(self.number(1, syllables + 1))
        parts = [self.one(_ONSETS) + self.one(_VOWELS) for _ in range(syllables)]
        if self.chance(0.2):
            parts[0] = self.one("aeiouy")  # names such as Ada begin with a vowel
        if self.chance(0.1):
            parts.append(
                "".join(self.one("abcdefghijklmnopqrstuvwxyz") for _ in range(self.number(2, 4)))
            )
        closed = self.chance(0.5) or len("".join(parts)) < 3
        return "".join(parts) + (self.one(_CODAS) if closed else "")

    def _pieced(self, count: int) -> str:
        """Parts of `count` listed words, at least two letters in all."""
        word = ""
        while count > 0 or len(word) < 2:
            listed = self.one(_LISTED)
            start = self.number(0, len(listed) - 1) if self.chance(0.5) else 0
            word += listed[start : start + self.number(1, 5)]
            count -= 1
        return word

    def extended(self) -> str:
        """A listed word with one to three letters before or behind it: its tokens are met, the
        word itself is not.
        """

        def make() -> str:
            few = "".join(self.one("abcdefghijklmnopqrstuvwxyz") for _ in range(self.number(1, 3)))
            listed = self.one(_EXTENDED)
            return listed + few if self.chance(0.8) else few + listed

        return self.of_split(make)

    def of_split(self, make: Callable[[], str]) -> str:
        """The first word made that belongs to this split."""
        while True:
            word = make()
            if is_held(word) == (self.split is Split.HELD):
                return word

    def word(self) -> str:
        """A random lower-case word of this split."""
        return self.of_split(
            lambda: self.spelled(self.number(1, 3)) if self.chance(0.9) else self.spelled(2) + "en"
        )

    def person(self) -> str:
        """A first name: listed or spelled."""
        return self.of_split(
            lambda: (
                self.one(words.PEOPLE)
                if self.chance(0.4)
                else self.spelled(self.number(1, 2)).capitalize()
            )
        )

    def town(self) -> str:
        """A town: listed, spelled, or spelled with a town's ending."""

        def make() -> str:
            kind = self.rng.random()
            if kind < 0.3:
                return self.one(words.TOWNS)
            stem = self.spelled(self.number(1, 2))
            return (stem + self.one(words.TOWN_ENDINGS) if kind < 0.6 else stem).capitalize()

        return self.of_split(make)

    def title(self) -> str:
        """A two-word title."""
        return self.of_split(
            lambda: f"{self.one(words.TITLE_FIRST)} {self.one(words.TITLE_SECOND)}"
        )

    def listed(self, options: Sequence[str]) -> str:
        """An entry of a closed list, or now and then a word nobody knows in its place."""
        return self.word() if self.chance(0.12) else self.one(options)

    def distinct(self, make: Callable[[], T], count: int) -> list[T]:
        """`count` different results of `make`."""
        found: list[T] = []
        while len(found) < count:
            item = make()
            if item not in found:
                found.append(item)
        return found

    def pair(self, operator: str, limit: int = 99) -> tuple[int, int]:
        """Two operands of this split; a difference is rarely negative."""
        while True:
            low = self.number(0, limit) if self.chance(0.9) else self.number(0, 20)
            high = self.number(0, limit)
            if operator == "-" and low < high and not self.chance(0.1):
                low, high = high, low
            if is_held(f"{low} {operator} {high}") == (self.split is Split.HELD):
                return low, high
