"""Whole programs on a model with recurrent layers: forks, selections, beams and samples have the
values that they have with the cache off, in little memory and with few slots."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.runtime.assembly import assemble
from lmprog.runtime.engine.model import resolution
from lmprog.transport import LocalRuntimeChannel
from tests.house import ROOT
from tests.model.checkpoints import RECURRENT, Recipe
from tests.runtime.runtime_thread import serving

NANO = ROOT / "lmprog" / "nano"
TOPICS = ("cats", "cars", "cats", "the sea")

pytestmark = pytest.mark.skipif(
    not (NANO / "tokenizer.json").exists(), reason="the shipped tokenizer is not in this checkout"
)


@lmprog.function
def points(s: Any, topic: str) -> None:
    """Every way in which branches part and go on."""
    s += f"Tell me about {topic}. " + lmprog.gen("start", max_tokens=9, temperature=0)
    for number, fork in enumerate(forks := s.fork(3)):
        fork += f" Point {number}: " + lmprog.gen("point", max_tokens=6, temperature=0)
    for fork in forks:
        s += fork["point"]
    s += " It is " + lmprog.select("kind", ["red", "green", "blue, or so"])
    s += " and " + lmprog.gen("stopped", max_tokens=9, temperature=0, stop=["e", "a"])
    s += " then " + lmprog.gen("many", max_tokens=5, n=3, temperature=0.8, seed=5)
    s += " so " + lmprog.beam(3, "beam", max_tokens=4)


@pytest.fixture(scope="module", params=["lfm2", "qwen3_next", "granitemoehybrid"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp(request.param)
    recipe = RECURRENT[request.param]
    Recipe(recipe.family, recipe.fields | {"vocab_size": 2048}).make(made)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(NANO / name, made)
    return made


def values(folder: Path, **scheduling: Any) -> list[tuple[Any, ...]]:
    """What the program gives for each topic, all at once."""
    scheduler = SchedulerConfig(**{"num_pages": 512, **scheduling})
    config = RuntimeConfig(str(folder), dtype="float32", threads=1, scheduler=scheduler)
    channel = LocalRuntimeChannel()
    loop, _ = assemble(config, channel)
    assert loop.scheduler.tables.states is not None
    with serving(loop, channel) as backend:
        runs = points.run_batch([{"topic": topic} for topic in TOPICS], backend=backend)
        names = ("start", "kind", "stopped", "many", "beam")
        found = [(run.text(), *(run[name] for name in names)) for run in runs]
    assert not loop.scheduler.stats.failed_steps
    return found


def test_programs_give_what_they_give_without_a_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = values(folder, share=False)
    assert plain[0] == plain[2] != plain[1]
    assert values(folder) == plain
    assert values(folder, num_pages=24, token_budget=32, speculation="always") == plain
    monkeypatch.setattr(resolution, "STATES_OF_MEMORY", 1e-9)
    monkeypatch.setattr(resolution, "FEWEST_STATES", 3)
    assert values(folder) == plain
