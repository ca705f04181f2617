"""Whole programs on models with recurrent layers, or with windows: forks, selections, beams and samples have the
values that they have with the cache off, in little memory and with few slots."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog.backends.client import describe
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.runtime.assembly import assemble
from lmprog.runtime.engine.model import resolution
from lmprog.runtime.tier import second_tier, tier_questions
from lmprog.runtime.tier.storing import PageWorth
from lmprog.transport import LocalRuntimeChannel
from tests.house import ROOT
from tests.model.checkpoints import FOREIGN, RECURRENT, Recipe
from tests.model.predicting import saved
from tests.runtime.runtime_thread import serving

NANO = ROOT / "lmprog" / "nano"
TOPICS = ("cats", "cars", "cats", "the sea")

pytestmark = pytest.mark.skipif(
    not (NANO / "tokenizer.json").exists(), reason="the shipped tokenizer is not in this checkout"
)


@lmprog.function
def points(s: Any, topic: str) -> list[Any]:
    """Every way in which branches part and go on; log-probabilities."""
    s += f"Tell me about {topic}. "
    gens = [start := s.gen("start", max_tokens=9, temperature=0, logprobs=3)]
    s += start
    for number, fork in enumerate(forks := s.fork(3)):
        fork += f" Point {number}: "
        gens.append(fork.gen("point", max_tokens=6, temperature=0, logprobs=3))
    for fork in forks:
        s += fork["point"]
    s += " It is " + lmprog.select("kind", ["red", "green", "blue, or so"])
    s += " and " + lmprog.gen("stopped", max_tokens=9, temperature=0, stop=["e", "a"])
    s += " then "
    gens.append(s.gen("many", max_tokens=5, n=3, temperature=0.8, seed=5, logprobs=0))
    s += " so " + lmprog.beam(3, "beam", max_tokens=4)
    return [[(one.logprob, one.top) for meta in gen.metas for one in meta.logprobs] for gen in gens]


@pytest.fixture(scope="module", params=["lfm2", "qwen3_next", "granitemoehybrid"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tokenizer(RECURRENT[request.param], tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tokenizer(FOREIGN["gemma3"], tmp_path_factory.mktemp("gemma3"))


def with_tokenizer(recipe: Recipe, made: Path) -> Path:
    Recipe(recipe.family, recipe.fields | {"vocab_size": 2048}).make(made)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(NANO / name, made)
    return made


@pytest.fixture(autouse=True)
def _as_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store and a processor cost while the suite runs is chance."""
    monkeypatch.setattr(PageWorth, "_is_worth", lambda self, saved, cost: True)
    monkeypatch.setattr(tier_questions, "FIND_SECONDS", 30.0)
    monkeypatch.setattr(second_tier, "SHARED_LOAD_SECONDS", 30.0)


Values = list[tuple[Any, ...]]


def values(folder: Path, rounds: int = 1, fields: Any = None, **scheduling: Any) -> Values:
    """What the program gives for each topic, all at once, and its log-probabilities. Of the last
    round, all of which give the same.
    """
    return told(folder, rounds, fields, **scheduling)[0]


def told(
    folder: Path, rounds: int, fields: Any, **scheduling: Any
) -> tuple[Values, dict[str, float]]:
    scheduler = SchedulerConfig(**{"num_pages": 512, **scheduling})
    config = RuntimeConfig(
        str(folder), dtype="float32", threads=1, scheduler=scheduler, **(fields or {})
    )
    channel = LocalRuntimeChannel()
    loop, _ = assemble(config, channel)
    assert loop.scheduler.tables.states or loop.scheduler.tables.windows
    found: list[Values] = []
    with serving(loop, channel) as backend:
        for _ in range(rounds):
            runs = points.run_batch([{"topic": topic} for topic in TOPICS], backend=backend)
            found.append([_of(run) for run in runs])
        figures = describe(backend)
    assert not loop.scheduler.stats.failed_steps
    assert all(one == found[0] for one in found)
    return found[-1], figures


def _of(run: Any) -> tuple[Any, ...]:
    names = ("start", "kind", "stopped", "many", "beam")
    return (run.text(), *(run[name] for name in names), run.value, run["kind"].scores)


def test_programs_give_what_they_give_without_a_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities to the last bit."""
    plain = values(folder, share=False)
    assert plain[0] == plain[2] != plain[1]
    assert values(folder) == plain
    assert values(folder, num_pages=24, token_budget=32, speculation="always") == plain
    monkeypatch.setattr(resolution, "STATES_OF_MEMORY", 1e-9)
    monkeypatch.setattr(resolution, "FEWEST_STATES", 3)
    assert values(folder) == plain


@pytest.mark.parametrize("store", ["own", "machine", "folder"])
def test_programs_give_the_same_while_states_come_and_go_in_a_second_tier(
    folder: Path, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in hardly any slots, with drafts, and in a runtime that finds what another has left."""
    plain = values(folder, share=False)
    fields = {"kv_disk_mb": 64, "kv_disk_folder": str(tmp_path), "kv_store": store}
    first, warm = told(folder, 2, fields, num_pages=24)
    assert first == plain
    again, cold = told(folder, 1, fields, num_pages=24)
    assert again == plain
    assert cold["tier_pages_loaded"] > 0 == cold["tier_pages_lost"]
    if store == "own":
        assert cold["tier_pages_found"] > 50
        assert 2 * cold["computed_tokens"] <= warm["computed_tokens"] + 500
    monkeypatch.setattr(resolution, "STATES_OF_MEMORY", 1e-9)
    monkeypatch.setattr(resolution, "FEWEST_STATES", 3)
    assert values(folder, 2, fields, num_pages=24, speculation="always") == plain


def test_programs_give_the_same_with_drafts_of_a_layer_of_the_model(tmp_path: Path) -> None:
    """Also in little memory, and while what it keeps comes and goes in a second tier."""
    folder = tmp_path / "model"
    folder.mkdir()
    saved(folder, "qwen3_next", vocab_size=2048)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(NANO / name, folder)
    plain = values(folder, share=False)
    own = {"draft_model": "mtp"}
    found, figures = told(folder, 1, own, speculation="always")
    assert found == plain
    assert figures["drafted_tokens"] > 100
    assert values(folder, 2, own, speculation="auto") == plain
    assert values(folder, fields=own, num_pages=24, token_budget=32, speculation="always") == plain
    own |= {"kv_disk_mb": 64, "kv_disk_folder": str(tmp_path)}
    assert values(folder, 2, own, num_pages=24, speculation="always") == plain
    again, figures = told(folder, 1, own, num_pages=24, speculation="always")
    assert again == plain
    assert figures["tier_pages_found"] > 50


def test_programs_give_the_same_while_frames_come_and_go_in_a_second_tier(
    windowed: Path, tmp_path: Path
) -> None:
    """Also with drafts, and in a runtime that finds what another has left."""
    plain = values(windowed, share=False)
    fields = {"kv_disk_mb": 64, "kv_disk_folder": str(tmp_path)}
    first, warm = told(windowed, 2, fields, num_pages=24)
    assert first == plain
    again, cold = told(windowed, 1, fields, num_pages=24)
    assert again == plain
    assert cold["tier_pages_loaded"] > 0 == cold["tier_pages_lost"]
    assert cold["tier_pages_found"] > 50
    assert 2 * cold["computed_tokens"] <= warm["computed_tokens"]
    assert values(windowed, 2, fields, num_pages=24, speculation="always") == plain
