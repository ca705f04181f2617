"""Adapters in engines: equal to weights that the adapter was merged into, whatever else is in the
batch.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from lmprog.config import RuntimeConfig
from lmprog.runtime.engine.engine import load_engine
from tests.adapters.peft_files import Made, write_adapter, write_merged
from tests.model.checkpoints import NATIVE, VOCABULARY, Recipe
from tests.model.conftest import generated
from tests.model.driver import AnyEngine, Driver

MADES = {
    "all": Made(),
    "attention-stabilized": Made(3, 5.0, ("q_proj", "v_proj"), use_rslora=True, seed=2),
    "patterns": Made(
        8,
        4.0,
        rank_pattern={"layers.1.self_attn.k_proj": 5, "down_proj": 16},
        alpha_pattern={"up_proj": 11.0},
        seed=3,
    ),
    "feed-forward": Made(40, 80.0, ("gate_proj", "down_proj"), dtype=torch.bfloat16, seed=4),
}


class Mixed(Driver):
    """Drives sequences of several adapters in one batch. `numbers` has each prompt's."""

    numbers: dict[tuple[int, ...], int] = {}  # noqa: RUF012

    def _batch(self, parts: Any) -> Any:
        batch = super()._batch(parts)
        numbers = [self.numbers[tuple(one.prompt)] for one, _, _ in parts]
        return replace(batch, adapters=np.array(numbers, np.int32))


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [
        [draw.randrange(VOCABULARY) for _ in range(draw.choice([1, 3, 20, 65]))]
        for _ in range(count)
    ]


def engine_of(base: Path, folders: dict[str, Path], **config: Any) -> AnyEngine:
    lora = tuple(f"{name}={folder}" for name, folder in folders.items())
    return load_engine(RuntimeConfig(model=str(base), kv_memory_mb=16, lora=lora, **config))


def made_base(recipe: Recipe, folder: Path) -> Path:
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    recipe.make(folder)
    return folder


def judge(folder: Path) -> Any:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return model.eval()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_base(NATIVE["llama"], tmp_path_factory.mktemp("llama") / "base")


@pytest.fixture(scope="module")
def judges(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The base, and each of `MADES` merged into it, as transformers has them."""
    folder = tmp_path_factory.mktemp("merged")
    merged = [write_merged(base, folder / name, made) for name, made in MADES.items()]
    return [judge(one) for one in (base, *merged)]


@pytest.fixture(scope="module")
def folders(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(base, folder / name, made) for name, made in MADES.items()}


@pytest.mark.parametrize("chunk", [0, 7])
def test_several_adapters_in_one_batch_are_each_equal_to_merged_weights(
    base: Path, judges: list[Any], folders: dict[str, Path], chunk: int
) -> None:
    engine = engine_of(base, folders, engine="torch")
    assert list(engine.adapters) == list(MADES)
    driver, asked = Mixed(engine, 16), prompts(12)
    driver.numbers = {tuple(one): index % len(judges) for index, one in enumerate(asked)}
    for one, found in zip(asked, driver.greedy(asked, 10, chunk), strict=True):
        wanted = generated(judges[driver.numbers[tuple(one)]], one)
        assert found.new == wanted.new
        assert (found.logprobs - wanted.logprobs).abs().max() < 1e-4


def test_adapters_change_what_is_said(judges: list[Any]) -> None:
    """What the test above compares: models that differ."""
    said = {tuple(generated(one, [5, 9, 2]).new) for one in judges}
    assert len(said) == len(judges)
