"""The shipped model keeps its bars on the fast subset of the evaluation, through lmprog programs, two points lower for
so few items."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.nano.test_shipped import NANO
from training.answerers import Programs
from training.document import Family
from training.evaluate import FAST, Score, ask
from training.items import BARS, draw_items

# Families that do not reach their bar yet; docs/nano.md says by how much. Remove a name once it does.
SHORT_OF_THE_BAR = frozenset({Family.READING, Family.EXTRACTION})


@pytest.fixture(scope="module")
def answerer() -> Iterator[Programs]:
    with Programs(NANO) as programs:
        yield programs


@pytest.mark.timeout(120)
@pytest.mark.parametrize("family", list(BARS))
def test_a_family_keeps_its_bar(answerer: Programs, family: Family, request: pytest.FixtureRequest) -> None:
    if family in SHORT_OF_THE_BAR:
        request.applymarker(pytest.mark.xfail(reason="below the bar: see docs/nano.md", strict=True))
    score = Score(family, tuple(ask(answerer, draw_items(family, FAST))))
    assert score.share >= BARS[family] - 0.02
