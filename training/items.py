"""The questions of the evaluation: taken from documents of the held-out split. Knows no model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.document import END, Document, Family
from training.draw import Draw, Split
from training.world import SHARES, document, makers_of

# The least share of right answers that the shipped model has to reach, by family.
BARS: Mapping[Family, float] = {
    Family.READING: 0.95,
    Family.EXTRACTION: 0.95,
    Family.CLASSIFICATION: 0.95,
    Family.FEW_SHOT: 0.85,
    Family.ARITHMETIC: 0.90,
    Family.DIALOGUE: 0.90,
    Family.TOOLS: 0.90,
    Family.CALLS: 0.80,
    Family.CORRECTION: 0.70,
    Family.TAGGED: 0.90,
}


@dataclass(frozen=True, slots=True)
class Item:
    """One question: everything before an answer of a document, and that answer without its
    ending.
    """

    family: Family
    kind: str
    prompt: str
    answer: str
    stop: str
    choices: tuple[str, ...]
    schema: Mapping[str, object] | None

    def right(self, said: str) -> bool:
        """Whether what was said is the answer; JSON is compared as values, in order."""
        if self.schema is not None:
            try:
                return list(json.loads(said).items()) == list(json.loads(self.answer).items())
            except (ValueError, AttributeError):
                return False
        return said.strip() == self.answer.strip()


def items_of(doc: Document) -> list[Item]:
    """All judged answers of a document as items."""
    found: list[Item] = []
    prompt = ""
    for segment in doc.segments:
        if segment.judged:
            stop = END if segment.text.endswith(END) else "\n"
            answer = segment.text.removesuffix(stop)
            found.append(
                Item(
                    doc.family, segment.kind, prompt, answer, stop, segment.choices, segment.schema
                )
            )
        prompt += segment.text
    return found


def draw_items(family: Family, count: int, start: int = 0) -> list[Item]:
    """`count` items, each from a document of its own, makers by their shares, always the same
    ones.
    """
    makers = makers_of(family)
    weights = [SHARES[maker] for maker in makers]
    found: list[Item] = []
    number = start
    while len(found) < count:
        draw = Draw(f"items:{family.value}:{number}")
        maker = draw.rng.choices(makers, weights)[0]
        choice = items_of(document(Split.HELD, number, maker))
        if choice:
            found.append(draw.one(choice))
        number += 1
    return found


def by_length(items: Sequence[Item], size: int) -> list[list[Item]]:
    """Items in groups of about one length."""
    ordered = sorted(items, key=lambda item: len(item.prompt))
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]
