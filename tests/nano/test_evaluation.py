"""The shipped model keeps its bars on the fast subset of the evaluation, through lmprog programs,
two points lower for so few items."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.nano.test_shipped import NANO
from training.answerers import Programs
from training.document import Family
from training.evaluate import FAST, Score, ask
from training.items import BARS, draw_items
from training.long_prefixes import score


@pytest.fixture(scope="module")
def answerer() -> Iterator[Programs]:
    with Programs(NANO) as programs:
        yield programs


@pytest.mark.timeout(120)
@pytest.mark.parametrize("family", list(BARS))
def test_a_family_keeps_its_bar(answerer: Programs, family: Family) -> None:
    score = Score(family, tuple(ask(answerer, draw_items(family, FAST))))
    assert score.share >= BARS[family] - 0.02


@pytest.mark.timeout(120)
def test_few_shot_answers_hold_after_1300_tokens_of_examples_and_more() -> None:
    assert score(NANO, 15).share >= BARS[Family.FEW_SHOT] - 0.02
