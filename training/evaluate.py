"""The evaluation of the shipped model on held-out worlds, greedily, and its table.

The questions come from `training.items`; who answers them is an `Answerer`. Knows neither the
runtime nor the network.
"""

from __future__ import annotations

import argparse
import collections
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from training.answerers import Answerer, Programs, Transformers
from training.document import Family
from training.items import BARS, Item, draw_items

FAST = 30  # items a family in the fast subset: 7 families, 210 items


@dataclass(frozen=True, slots=True)
class Outcome:
    """An item and what was said to it."""

    item: Item
    said: str

    @property
    def right(self) -> bool:
        """Whether it was the answer."""
        return self.item.right(self.said)


@dataclass(frozen=True, slots=True)
class Score:
    """A family's outcomes."""

    family: Family
    outcomes: tuple[Outcome, ...]

    @property
    def share(self) -> float:
        """Right answers over all."""
        return sum(outcome.right for outcome in self.outcomes) / len(self.outcomes)

    def kinds(self) -> Mapping[str, tuple[int, int]]:
        """Right and asked, by kind."""
        counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
        for outcome in self.outcomes:
            counts[outcome.item.kind][0] += outcome.right
            counts[outcome.item.kind][1] += 1
        return {kind: (right, asked) for kind, (right, asked) in sorted(counts.items())}


def ask(answerer: Answerer, items: Sequence[Item]) -> list[Outcome]:
    """Put the items to the answerer: choices by selection, JSON under its schema, the rest
    freely.
    """
    chosen = [item for item in items if item.choices]
    shaped = [item for item in items if item.schema is not None]
    free = [item for item in items if not item.choices and item.schema is None]
    said = (
        answerer.choose([i.prompt for i in chosen], [i.choices for i in chosen]) if chosen else []
    )
    said += (
        answerer.fill([i.prompt for i in shaped], [i.schema or {} for i in shaped])
        if shaped
        else []
    )
    said += answerer.say([i.prompt for i in free], [i.stop for i in free]) if free else []
    return [Outcome(item, text) for item, text in zip([*chosen, *shaped, *free], said, strict=True)]


def evaluate(answerer: Answerer, count: int, start: int = 0, *, quiet: bool = False) -> list[Score]:
    """All families that have a bar, `count` items each, from document number `start` on."""
    bar = tqdm(BARS, disable=quiet)
    return [Score(family, tuple(ask(answerer, draw_items(family, count, start)))) for family in bar]


def table(scores: Sequence[Score]) -> str:
    """The scores in Markdown, with their bars."""
    lines = ["| family | items | right | bar | by kind |", "|---|---:|---:|---:|---|"]
    for score in scores:
        kinds = ", ".join(
            f"{kind or 'all'} {right}/{asked}" for kind, (right, asked) in score.kinds().items()
        )
        bar = BARS[score.family]
        mark = "" if score.share >= bar else " (below)"
        lines.append(
            f"| {score.family.value} | {len(score.outcomes)} | {score.share:.1%}{mark} | "
            f"{bar:.0%} | {kinds} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table; with `--wrong`, also write every wrong answer to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, default=Path(__file__).parent.parent / "lmprog" / "nano"
    )
    parser.add_argument("--through", choices=("lmprog", "transformers"), default="lmprog")
    parser.add_argument("--count", type=int, default=500, help="items a family")
    parser.add_argument(
        "--start",
        type=int,
        default=0,
        help="number of the first document, for questions never read",
    )
    parser.add_argument("--fast", action="store_true", help=f"only {FAST} items a family")
    parser.add_argument(
        "--wrong", type=Path, help="a file for the wrong answers, one JSON object a line"
    )
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with (Programs if options.through == "lmprog" else Transformers)(options.model) as answerer:
        scores = evaluate(answerer, FAST if options.fast else options.count, options.start)
    print(table(scores))
    print(
        f"\n{sum(len(s.outcomes) for s in scores)} items in {time.monotonic() - began:.0f} s "
        f"through {options.through}"
    )
    if options.wrong:
        with options.wrong.open("w") as file:
            for outcome in (o for score in scores for o in score.outcomes if not o.right):
                item = outcome.item
                row = {
                    "family": item.family.value,
                    "kind": item.kind,
                    "prompt": item.prompt,
                    "right": item.answer,
                }
                file.write(json.dumps({**row, "said": outcome.said}) + "\n")


if __name__ == "__main__":
    main()
