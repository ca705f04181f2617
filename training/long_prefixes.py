"""Whether answers hold after a long few-shot prefix, 1,300 to 1,800 tokens of examples, through
lmprog programs.

Held-out documents, one question of each. Knows nothing of training.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from training.answerers import Programs
from training.document import Family
from training.draw import Split
from training.evaluate import Score, ask
from training.items import Item, items_of
from training.tasks.fewshot import long_few_shot
from training.world import document

LENGTHS = range(1300, 1800)


def long_items(count: int, tokenizer: Tokenizer) -> list[Item]:
    """The last question of the first documents whose prompts are as long; always the same ones."""
    found: list[Item] = []
    for number in itertools.count():
        items = items_of(document(Split.HELD, number, long_few_shot))
        if items and len(tokenizer.encode(items[-1].prompt).ids) in LENGTHS:
            found.append(items[-1])
        if len(found) == count:
            return found
    raise AssertionError("counting has no end")


def score(model: Path, count: int) -> Score:
    """Asks them of the model in that folder."""
    items = long_items(count, Tokenizer.from_file(str(model / "tokenizer.json")))
    with Programs(model) as answerer:
        return Score(Family.FEW_SHOT, tuple(ask(answerer, items)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print how many are right, and by kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, default=Path(__file__).parent.parent / "lmprog" / "nano"
    )
    parser.add_argument("--count", type=int, default=60)
    options = parser.parse_args(arguments)
    found = score(options.model, options.count)
    kinds = ", ".join(f"{kind} {right}/{asked}" for kind, (right, asked) in found.kinds().items())
    print(
        f"{sum(outcome.right for outcome in found.outcomes)} of {len(found.outcomes)} right "
        f"({kinds})"
    )


if __name__ == "__main__":
    main()
