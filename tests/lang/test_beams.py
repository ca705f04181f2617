"""Beam search as programs ask for it: plain, awaited and by operators, in forks, replayed, resumed,
explained, and refused by name where a service cannot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend
from lmprog.errors import InvalidParameter, NotSupported
from lmprog.lang.runs.run_replay import replay
from lmprog.simulation import oracle
from lmprog.testing import Scripted
from tests.backends.programs import FACTS, on
from tests.backends.scripted_api import ScriptedApi
from tests.lang.small_runtime import Small
from tests.lang.test_contests import settle

BEGIN = "once upon a time "


def likeliest(prompt: str, width: int, **changes: Any) -> list[str]:
    """The texts of the search written out."""
    sampling = wire.SamplingParams(**{"beams": wire.Beams(width), "n": width, **changes})
    return [one.text for one in oracle.beamed(prompt, wire.Generate(1, 2, sampling))]


@lmprog.function
async def found(s: lmprog.Branch, width: int) -> tuple[list[str], list[float | None], str]:
    s.append(BEGIN)
    line = s.beam(width, "line", 5, n=width, heal=False)
    assert await line == line.values[0]
    return line.values, [meta.score for meta in line.metas], s.text()


@pytest.mark.parametrize("width", [1, 4])
def test_the_likeliest_texts_are_found_and_the_branch_goes_on_from_the_first(
    backend: RuntimeBackend, width: int
) -> None:
    run = found.using(backend=backend, temperature=0.7, top_p=0.9).run(width)
    texts, scores, whole = run.value
    assert texts == likeliest(BEGIN, width, max_tokens=5)
    assert whole == BEGIN + texts[0]
    assert scores == sorted(scores, key=lambda score: -(score or 0.0))
    assert run.usage.prompt == len(BEGIN)
    assert run.usage.computed == len(BEGIN) + width * (5 - 1)


@lmprog.function
def by_operators(s: lmprog.Branch) -> str:
    s += BEGIN + lmprog.beam(3, "line", max_tokens=4, stop="a", heal=False)
    return str(s["line"])


def test_the_operator_spelling_has_it_too(backend: RuntimeBackend) -> None:
    wanted = likeliest(BEGIN, 3, max_tokens=4, stop=("a",))
    assert by_operators.using(backend=backend).run().value == wanted[0]


@lmprog.function
def in_forks(s: lmprog.Branch) -> list[str]:
    s.append(BEGIN)
    with s.fork(3) as branches:
        for number, branch in enumerate(branches):
            branch.append("abc"[number])
        lines = [branch.beam(2, max_tokens=5, heal=False) for branch in branches]
        return [line.value for line in lines]


def test_forks_search_side_by_side(small: Small, backend: RuntimeBackend) -> None:
    values = in_forks.using(backend=backend).run().value
    assert values == [likeliest(BEGIN + one, 2, max_tokens=5)[0] for one in "abc"]
    figures = settle(small)
    assert figures["pages_free"] + figures["pages_evictable"] == figures["pages"]


@lmprog.function
def judged(s: lmprog.Branch) -> tuple[list[str], str]:
    s.append(BEGIN)
    judge = lmprog.Judge(" is that good?", ("yes", "no"))
    line = s.beam(3, max_tokens=5, score=judge, heal=False)
    return line.values, s.text()


def test_a_judge_chooses_among_the_texts(backend: RuntimeBackend) -> None:
    texts, whole = judged.using(backend=backend).run().value
    assert sorted(texts) == sorted(likeliest(BEGIN, 3, max_tokens=5))
    assert whole == BEGIN + texts[0]


def test_a_run_with_a_search_is_replayed_and_traced(
    backend: RuntimeBackend, tmp_path: Path
) -> None:
    found.using(backend=backend).run(3).save(tmp_path / "run.json")
    replayed = replay(tmp_path / "run.json", backend)
    assert replayed.is_same
    assert replayed.num_tokens == 3 * 5
    assert "line = gen(at most 4 tokens, 3 beams)" in str(by_operators.trace())
    cost = by_operators.using(backend=backend).explain()
    assert (cost.calls[0].prompt, cost.calls[0].own) == (len(BEGIN), 3 * 4)


@lmprog.function
def paused(s: lmprog.Branch) -> str:
    s.append(BEGIN)
    assert len(s.beam(3, "line", 4, heal=False).value) == 4
    s.append(s.pause("and then?"))
    return s.gen(max_tokens=2, temperature=0).value


def test_a_resumed_run_has_what_a_search_had_found(
    small: Small, backend: RuntimeBackend, tmp_path: Path
) -> None:
    with pytest.raises(lmprog.Paused) as stopped:
        paused.using(backend=backend).run()
    stopped.value.checkpoint(tmp_path / "run")
    before = small.scheduler.stats.generated_tokens
    run = lmprog.resume(tmp_path / "run", paused, backend=backend, answer="x")
    assert run.text().startswith(BEGIN + likeliest(BEGIN, 3, max_tokens=4)[0] + "x")
    assert settle(small)["generated_tokens"] - before == 2, "the search was not done again"


@pytest.mark.parametrize(
    ("width", "options", "word"),
    [
        (0, {}, "width=0"),
        (129, {}, "width=129"),
        (2, {"length_penalty": 11}, "length_penalty=11"),
        (2, {"early_stopping": "sometimes"}, "early_stopping='sometimes'"),
        (2, {"score": "taste"}, "score='taste'"),
    ],
)
def test_values_outside_their_range_are_refused_at_once(
    width: int, options: dict[str, Any], word: str
) -> None:
    with pytest.raises(InvalidParameter, match=word):
        lmprog.beam(width, **options)


def test_more_results_than_texts_and_a_temperature_are_refused_by_the_runtime(
    backend: RuntimeBackend,
) -> None:
    @lmprog.function
    def asks(s: lmprog.Branch, options: dict[str, Any]) -> str:
        s.append("x")
        return s.beam(2, **options).value

    for options, word in (({"n": 3}, "n=3"), ({"temperature": 0.7}, "temperature=0.7")):
        with pytest.raises(lmprog.LmprogError, match=word):
            asks.using(backend=backend).run(options)


def test_a_double_answers_a_search_as_any_generation() -> None:
    with Scripted([["Oslo", "Bergen"]]) as scripted:
        assert found.using(backend=scripted).run(2).value[0] == ["Oslo", "Bergen"]


def test_an_api_without_beams_refuses_them_by_name() -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        with pytest.raises(NotSupported, match=r"beams=Beams\(width=3"):
            by_operators.using(backend=backend).run()
        assert api.requests == []


def test_a_judge_is_refused_where_none_can_be_asked() -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        with pytest.raises(NotSupported, match="judge"):
            best_of_two.using(backend=backend).run()
        assert api.requests == []


@lmprog.function
def best_of_two(s: lmprog.Branch) -> str:
    s.append("The capital of France is")
    return s.best_of(2, max_tokens=4, by=lmprog.Judge(" right?")).value
