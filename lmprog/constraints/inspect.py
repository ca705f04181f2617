"""Inspects a constraint without a model: membership, examples, the share of forced bytes.

Works on constraints compiled for any vocabulary; `byte_vocabulary()` needs no tokenizer. Examples
prefer letters and short texts, for readability. Uses the constraint's protocol only; builds
nothing.
"""

from __future__ import annotations

import functools
import random

from lmprog.constraints.constraint import Constraint, State
from lmprog.constraints.vocabulary import Vocabulary

_EXAMPLE_BYTES = 24
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789 ")


@functools.cache
def byte_vocabulary() -> Vocabulary:
    """End-of-sequence as token 0, and one token per byte."""
    return Vocabulary([None, *(bytes([byte]) for byte in range(256))], [0], use_cache=False)


def accepts(constraint: Constraint, text: str) -> bool:
    """Whether the whole text matches. Texts with lone surrogates never do."""
    state = constraint.advance_bytes(constraint.start, text.encode(errors="surrogatepass"))
    return state is not None and constraint.is_final(state)


def example(constraint: Constraint, vocabulary: Vocabulary, seed: int = 0) -> str:
    """A matching text: a random path to acceptance, a few bytes longer than the shortest known."""
    rng = random.Random(seed)
    state, out = constraint.start, bytearray()
    for left in range(constraint.distance(state) + _EXAMPLE_BYTES, 0, -1):
        row = constraint.mask(state, left)
        ids = (
            row.ids.tolist()
            if row.ids is not None
            else [t for t in range(len(vocabulary)) if row.allows(t)]
        )
        moves = [token for token in ids if vocabulary.bytes_of(token)]
        if not moves or (constraint.is_final(state) and rng.random() < 0.2):
            break
        plain = [token for token in moves if _PLAIN.issuperset(vocabulary.bytes_of(token) or b"\0")]
        token = rng.choice(plain if plain and rng.random() < 0.9 else moves)
        out += vocabulary.bytes_of(token) or b""
        state = constraint.advance(state, token)
    return out.decode()


def forced_share(constraint: Constraint, vocabulary: Vocabulary, samples: int = 8) -> float:
    """The fraction of the bytes of some examples that the constraint forces."""
    forced = total = 0
    for seed in range(samples):
        text = example(constraint, vocabulary, seed).encode()
        total += len(text)
        state: State | None = constraint.start
        at = 0
        while at < len(text) and state is not None:
            known = constraint.forced(state)
            forced += len(known)
            step = known or text[at : at + 1]
            at += len(step)
            state = constraint.advance_bytes(state, step)
    return forced / total if total else 0.0
