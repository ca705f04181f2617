"""The world: which documents there are and in what shares. A document is a function of its split and number.

Knows the families and their shares; knows no tokens and no model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

from training.document import Document, Family
from training.draw import Draw, Split
from training.tasks import arithmetic, classification, dialogue, extraction, fewshot, reading, tools, writing

Maker = Callable[[Draw], Document]

# The shares were set by measured errors of a first model: the weakest families get the most documents.
SHARES: Mapping[Maker, float] = {
    reading.reading: 14,
    extraction.extraction: 12,
    classification.sentiment: 4,
    classification.topic: 5,
    classification.shown_sentiment: 2,
    fewshot.few_shot: 10,
    fewshot.long_few_shot: 1.5,
    fewshot.mapping: 4,
    fewshot.copying: 5,
    arithmetic.arithmetic: 13,
    arithmetic.steps: 2.5,
    arithmetic.check: 1.5,
    dialogue.memory: 7,
    dialogue.asked: 5,
    dialogue.told_by_system: 2,
    dialogue.small_talk: 0.7,
    tools.tools: 7,
    writing.tips: 2.5,
    writing.expansion: 2.5,
    writing.outline: 1,
    writing.one_tip: 1.2,
    writing.story: 1.2,
    writing.judge: 1.5,
}
_MAKERS = tuple(SHARES)
_BOUNDS = tuple(itertools.accumulate(SHARES.values()))


def document(split: Split, number: int, maker: Maker | None = None) -> Document:
    """The document of that number: always the same one."""
    draw = Draw(f"{split.value}:{maker.__name__ if maker else ''}:{number}", split)
    return (maker or draw.rng.choices(_MAKERS, cum_weights=_BOUNDS)[0])(draw)


def documents(split: Split, start: int = 0) -> Iterator[Document]:
    """All documents from a number on."""
    return (document(split, number) for number in itertools.count(start))


def makers_of(family: Family) -> list[Maker]:
    """The makers that write documents of a family."""
    return [maker for maker in SHARES if document(Split.TRAIN, 0, maker).family is family]
