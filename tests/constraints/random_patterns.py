"""Random regular patterns, and texts that are likely to be near them."""

from __future__ import annotations

import random

ATOMS = [
    "a",
    "b",
    "c",
    "ab",
    "é",
    ".",
    r"\d",
    r"\w",
    r"\s",
    r"\W",
    "[ab]",
    "[^a]",
    "[a-cé]",
    "[^b-z]",
    "日",
    r"\n",
    r"\.",
    " ",
]
QUANTIFIERS = ["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "{,2}", "*?", "+?", "??", "{1,2}?"]
LETTERS = "aabbcc dé1日\nA.Z_"


def random_pattern(rng: random.Random, depth: int = 3, repeats: int = 2) -> str:
    """`repeats` bounds how deep quantifiers nest: the oracle, `re`, backtracks without end beyond
    that.
    """
    kind = rng.random() if repeats else rng.uniform(0, 0.75)
    if depth == 0 or kind < 0.35:
        return rng.choice(ATOMS)
    if kind < 0.6:
        return "".join(random_pattern(rng, depth - 1, repeats) for _ in range(rng.randint(1, 3)))
    if kind < 0.75:
        return (
            "("
            + "|".join(random_pattern(rng, depth - 1, repeats) for _ in range(rng.randint(1, 3)))
            + ")"
        )
    group = rng.choice(["(", "(?:", "(?i:", "(?s:"])
    return group + random_pattern(rng, depth - 1, repeats - 1) + ")" + rng.choice(QUANTIFIERS)


def random_text(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.choice([0, 1, 2, 3, 4, 5, 6, 8, 10])))
