"""Random context-free grammars, each as GBNF and as Lark; small ones, so that texts near them are
soon found.
"""

from __future__ import annotations

import random

NAMES = ["start", "p", "q", "r"]
LITERALS = ["a", "b", "ab", "c", "(", ")", "é"]
CLASSES = ["[ab]", "[^ab()]", "[a-c]"]
ROUNDS = ["", "", "", "", "*", "+", "?"]


def random_grammar(rng: random.Random) -> tuple[str, str]:
    """Every rule has a way that ends; many begin with themselves, contain themselves, or may be
    empty.
    """
    count = rng.randint(1, len(NAMES))
    gbnf, lark = [], []
    for name in NAMES[:count]:
        ways = [
            [_item(rng, NAMES[:count], 0.4) for _ in range(rng.randint(1, 3))]
            for _ in range(rng.randint(0, 2))
        ]
        ways.append(
            [_item(rng, [], 0) for _ in range(rng.randint(0 if rng.random() < 0.2 else 1, 2))]
        )
        if rng.random() < 0.15:
            ways.append([(name, name, ""), *(_item(rng, [], 0) for _ in range(rng.randint(1, 2)))])
        rng.shuffle(ways)
        shown = [" ".join(item[0] + item[2] for item in way) or '""' for way in ways]
        gbnf.append(
            f"{'root' if name == 'start' else name} ::= {' | '.join(shown)}".replace(
                "start", "root"
            )
        )
        lark.append(
            f"{name}: {' | '.join(' '.join(item[1] + item[2] for item in way) for way in ways)}"
        )
    return "\n".join(gbnf) + "\n", "\n".join(lark) + "\n"


def _item(rng: random.Random, names: list[str], references: float) -> tuple[str, str, str]:
    """As GBNF, as Lark, how often."""
    if names and rng.random() < references:
        name = rng.choice(names)
        return name, name, rng.choice(ROUNDS)
    if rng.random() < 0.75:
        text = f'"{rng.choice(LITERALS)}"'
        return text, text, rng.choice(ROUNDS)
    one = rng.choice(CLASSES)
    return one, f"/{one}/", rng.choice(ROUNDS)


def mutated(rng: random.Random, text: str) -> str:
    """A text near `text`."""
    at = rng.randint(0, len(text))
    kind = rng.randrange(3)
    letter = rng.choice("abc()é")
    return text[:at] + (letter if kind else "") + text[at + (kind != 1) :]
