"""A model small enough to enumerate: it writes texts with given weights, in its tokenizer's own
tokens.

Its tokenizer merges pairs of pieces in a fixed order, as byte pair encoding does. Every path of a
generation is walked, so what comes out is the exact distribution over texts, not a sample of it.
"""

from __future__ import annotations

import copy
import random
from array import array
from collections.abc import Sequence

from lmprog.constraints.constraint import Constraint
from lmprog.runtime.scheduling.generation import Forcing, Generation, GenerationSettings
from lmprog.runtime.text.tokenizer import ByteStream
from lmprog.wire import SamplingParams

PROMPT = "ab"
PLAIN = SamplingParams()


class PairTokenizer:
    """Letters a, b, c, then one token per merge, then the end. See
    `runtime.tokenizer.Tokenizer`.
    """

    prefix: tuple[int, ...] = ()

    def __init__(self, merges: Sequence[tuple[str, str]]) -> None:
        self.merges = list(dict.fromkeys(merges))
        self.pieces = list(dict.fromkeys([*"abc", *(left + right for left, right in self.merges)]))
        self.eos_ids: tuple[int, ...] = (len(self.pieces),)

    @property
    def vocab_size(self) -> int:
        return len(self.pieces) + 1

    def encode(self, text: str, start: bool = True) -> list[int]:
        parts = list(text)
        for left, right in self.merges:
            at = 0
            while at + 1 < len(parts):
                if (parts[at], parts[at + 1]) == (left, right):
                    parts[at : at + 2] = [left + right]
                at += 1
        return [self.pieces.index(part) for part in parts]

    def encode_quoting(
        self, text: str, quoted: Sequence[tuple[int, int]], start: bool = True
    ) -> list[int]:
        return self.encode(text, start)

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        return "".join(self.token_text(token) for token in tokens)

    def token_text(self, token: int) -> str:
        return self.pieces[token] if token < len(self.pieces) else ""

    def token_bytes(self, token: int) -> bytes | None:
        return self.pieces[token].encode() if token < len(self.pieces) else None

    def is_special(self, token: int) -> bool:
        return self.token_bytes(token) is None

    def stream(self) -> ByteStream:
        return ByteStream([self.token_bytes(token) for token in range(self.vocab_size)])


def random_tokenizer(rng: random.Random, num_merges: int = 9) -> PairTokenizer:
    pieces, merges = list("abc"), list[tuple[str, str]]()
    for _ in range(num_merges):
        pair = rng.choice(pieces), rng.choice(pieces)
        if len("".join(pair)) <= 4 and "".join(pair) not in pieces:
            merges.append(pair)
            pieces.append("".join(pair))
    return PairTokenizer(merges)


def keeps_prompt(tokenizer: PairTokenizer, text: str) -> bool:
    """Whether the prompt's tokens are the same with `text` behind it."""
    prompt = tokenizer.encode(PROMPT)
    return tokenizer.encode(PROMPT + text)[: len(prompt)] == prompt


class SmallModel:
    """Writes `weights`' texts after the prompt, tokenised as one piece with it."""

    def __init__(self, tokenizer: PairTokenizer, weights: dict[str, float]) -> None:
        self.tokenizer = tokenizer
        self.prompt = tokenizer.encode(PROMPT)
        self.written = {
            (*self.written_as(text), tokenizer.eos_ids[0]): weight
            for text, weight in weights.items()
        }

    def written_as(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(PROMPT + text)[len(self.prompt) :])

    def next(self, tokens: Sequence[int]) -> dict[int, float]:
        """The weight of each next token; {} after tokens that it would never have written."""
        found: dict[int, float] = {}
        before = tuple(tokens)
        for written, weight in self.written.items():
            if written[: len(before)] == before and len(written) > len(before):
                found[written[len(before)]] = found.get(written[len(before)], 0.0) + weight
        return found


class SpellingModel:
    """Gives every token some weight, so that texts are also written in other tokens than the
    tokenizer's own."""

    def __init__(self, tokenizer: PairTokenizer, seed: int) -> None:
        self.tokenizer = tokenizer
        self.prompt = tokenizer.encode(PROMPT)
        self._seed = seed

    def next(self, tokens: Sequence[int]) -> dict[int, float]:
        rng = random.Random(f"{self._seed} {list(tokens)}")
        return {token: rng.expovariate(1.0) for token in range(self.tokenizer.vocab_size)}


class LeftItsPath(Exception):
    """The generation stands where this model has no opinion."""


def distribution(
    model: SmallModel | SpellingModel,
    constraint: Constraint,
    forcing: Forcing | None,
    sampling: SamplingParams = PLAIN,
) -> tuple[dict[str, float], int]:
    """The probability of each text, and how many tokens were forced over all paths."""
    settings = GenerationSettings(
        sampling, 200, model.tokenizer.eos_ids, len(model.prompt), constraint, forcing
    )
    found: dict[str, float] = {}
    num_forced = 0
    first, tokens = Generation(settings, 0), array("i", model.prompt)
    first.start(tokens)
    paths = [(first, tokens, 1.0)]
    while paths:
        task, tokens, chance = paths.pop()
        written = tokens[len(model.prompt) :]
        if task.finish is not None:
            text = model.tokenizer.decode(written)
            found[text] = found.get(text, 0.0) + chance
            num_forced += task.forced
            continue
        mask = constraint.mask(task.guide, task.left)
        weights = {
            token: weight for token, weight in model.next(written).items() if mask.allows(token)
        }
        if not weights:
            raise LeftItsPath(model.tokenizer.decode(written))
        total = sum(weights.values())
        for token, weight in weights.items():
            other, longer = copy.copy(task), tokens[:]
            other.accept(token, longer)
            paths.append((other, longer, chance * weight / total))
    return found, num_forced
