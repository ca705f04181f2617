"""Two programs are compared row by row; several settings stand in one table; both are pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog.errors import InvalidParameter, ProgramError
from lmprog.testing import Scripted

ROWS = [{"word": f"w{index}"} for index in range(20)]


@lmprog.function
def plain(s: lmprog.Branch, word: str) -> str:
    s += f"Say {word}:"
    return s.gen(max_tokens=8).value


@lmprog.function
def other(s: lmprog.Branch, word: str) -> str:
    s += f"Please say {word}:"
    return s.gen(max_tokens=8).value


def say(prompt: str) -> str:
    word = prompt.rpartition("ay ")[2].rstrip(":")
    worse = word in ("w1", "w2", "w3", "w4", "w5", "w6") and prompt.startswith("Say")
    return "?" if worse or (word == "w9" and prompt.startswith("Please")) else word


def test_rows_are_paired_and_the_difference_has_an_interval_and_a_probability() -> None:
    with Scripted(say) as model:
        found = lmprog.compare(other.using(backend=model), plain.using(backend=model), ROWS, "word")
    assert found.difference == pytest.approx(0.25)
    assert found.interval.low < 0.25 < found.interval.high
    assert found.probability == pytest.approx(2 * (1 + 7) / 2**7)
    assert found.is_noise
    assert [one.index for one, _ in found.better] == [1, 2, 3, 4, 5, 6]
    assert [one.index for one, _ in found.worse] == [9]
    assert "6 got better, 1 worse" in str(found)
    assert [one.seed for one in found.a] == [one.seed for one in found.b]


def test_evaluations_that_are_there_are_compared_where_they_are_of_the_same_rows() -> None:
    with Scripted(say) as model:
        whole = lmprog.evaluate(plain.using(backend=model), ROWS, "word")
        part = lmprog.evaluate(plain.using(backend=model), ROWS[:3], "word")
        moved = lmprog.evaluate(plain.using(backend=model), [*ROWS[1:], ROWS[0]], "word")
        seeded = lmprog.evaluate(plain.using(backend=model, seed=3), ROWS, "word")
    assert lmprog.compare(whole, whole).difference == 0
    for wrong, why in ((part, "3"), (moved, "another one"), (seeded, "seeds 0 and 3")):
        with pytest.raises(ProgramError, match=why):
            lmprog.compare(whole, wrong)
    with pytest.raises(ProgramError, match="give both"):
        lmprog.compare(plain, whole)


def test_a_grid_has_every_combination_and_several_back_ends() -> None:
    with Scripted(say) as one, Scripted(lambda prompt: say(prompt.removeprefix("Say"))) as better:
        found = lmprog.grid(
            plain,
            ROWS,
            "word",
            temperature=[0, 0.5],
            backend={"one": one, "better": better},
        )
    assert len(found) == 4
    assert [each.label for each in found] == [
        "temperature=0, backend=better",
        "temperature=0.5, backend=better",
        "temperature=0, backend=one",
        "temperature=0.5, backend=one",
    ]
    assert found.best.score == 1.0
    assert str(found).count("computed") == 4
    with pytest.raises(InvalidParameter, match="a list of values"):
        lmprog.grid(plain, ROWS, "word", temperature=0)


def test_a_page_stands_by_itself_and_quotes_what_models_say(tmp_path: Path) -> None:
    def shouting(prompt: str) -> Any:
        return "<script>alert(1)</script>"

    with Scripted(shouting) as model:
        found = lmprog.evaluate(plain.using(backend=model), ROWS, "word")
        compared = lmprog.compare(found, found)
    page = found.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page
    assert "alert(1)</script>" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("data-behind=") == len(ROWS)
    assert "http" not in page, "it loads nothing"
    assert compared.to_html().count("<table class=rows") == 2
    assert found._repr_html_() in page
