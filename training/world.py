"""The world: which documents there are and in what shares. A document is a function of its split
and number.

Knows the families and their shares; knows no tokens and no model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from training.document import Document, Family
from training.draw import Draw, Split
from training.tasks import (
    arithmetic,
    calls,
    classification,
    correction,
    dialogue,
    extraction,
    fewshot,
    reading,
    tagged,
    tools,
    writing,
)

Maker = Callable[[Draw], Document]

# What the evaluation draws, family by family. Fixed, so that figures of one month compare with
# those of another.
SHARES: Mapping[Maker, float] = {
    reading.reading: 16,
    extraction.extraction: 12,
    classification.sentiment: 4,
    classification.topic: 5,
    classification.shown_sentiment: 2,
    fewshot.few_shot: 13,
    fewshot.long_few_shot: 0.3,
    fewshot.mapping: 12,
    fewshot.copying: 7,
    fewshot.casing: 6,
    arithmetic.arithmetic: 18,
    arithmetic.steps: 2.5,
    arithmetic.check: 1.5,
    dialogue.memory: 8,
    dialogue.asked: 5,
    dialogue.told_by_system: 3,
    dialogue.small_talk: 0.7,
    tools.tools: 7,
    writing.tips: 1.2,
    writing.expansion: 1.5,
    writing.outline: 1,
    writing.one_tip: 1.2,
    writing.story: 1.2,
    writing.judge: 1,
    calls.calls: 8,
    correction.correction: 4,
    tagged.tagged: 3,
}
# What is trained on: set by the measured errors of the model so far, the weakest families get the
# most documents.
TRAINED_SHARES: Mapping[Maker, float] = {
    reading.reading: 60,
    extraction.extraction: 20,
    classification.sentiment: 4,
    classification.topic: 4,
    classification.shown_sentiment: 2,
    fewshot.few_shot: 13,
    fewshot.long_few_shot: 0.3,
    fewshot.mapping: 9,
    fewshot.copying: 5,
    fewshot.casing: 16,
    arithmetic.arithmetic: 12,
    arithmetic.steps: 2.5,
    arithmetic.check: 7,
    arithmetic.many_checks: 130,
    arithmetic.many_comparisons: 8,
    dialogue.memory: 9,
    dialogue.asked: 5,
    dialogue.told_by_system: 9,
    dialogue.small_talk: 0.7,
    tools.tools: 6,
    writing.tips: 1.2,
    writing.expansion: 1.5,
    writing.outline: 1,
    writing.one_tip: 1.2,
    writing.story: 1.2,
    writing.judge: 5,
    calls.calls: 34,
    correction.correction: 13,
    tagged.tagged: 30,
}
# What a young model is given instead: copying first, because everything else stands on it.
YOUNG_SHARES: Mapping[Maker, float] = {
    fewshot.copying: 40,
    fewshot.mapping: 15,
    fewshot.few_shot: 15,
    reading.reading: 10,
    extraction.extraction: 10,
    arithmetic.arithmetic: 5,
    dialogue.memory: 5,
    tools.tools: 3,
}
_MAKERS, _YOUNG_MAKERS = tuple(TRAINED_SHARES), tuple(YOUNG_SHARES)
_BOUNDS, _YOUNG_BOUNDS = (
    tuple(itertools.accumulate(shares.values())) for shares in (TRAINED_SHARES, YOUNG_SHARES)
)


def document(
    split: Split, number: int, maker: Maker | None = None, *, young: bool = False
) -> Document:
    """The document of that number: always the same one."""
    draw = Draw(f"{split.value}:{maker.__name__ if maker else ''}:{number}", split)
    makers, bounds = (_YOUNG_MAKERS, _YOUNG_BOUNDS) if young else (_MAKERS, _BOUNDS)
    made = (maker or draw.rng.choices(makers, cum_weights=bounds)[0])(draw)
    return tight(made) if split is Split.TRAIN and draw.chance(0.06) else made


def tight(doc: Document) -> Document:
    """The document without the space before its answers: programs forget it now and then."""
    segments = [replace(s, text=s.text.removeprefix(" ")) if s.answer else s for s in doc.segments]
    return Document(doc.family, tuple(segments))


def documents(split: Split, start: int = 0) -> Iterator[Document]:
    """All documents from a number on."""
    return (document(split, number) for number in itertools.count(start))


def makers_of(family: Family) -> list[Maker]:
    """The makers that write documents of a family."""
    return [maker for maker in SHARES if document(Split.TRAIN, 0, maker).family is family]
