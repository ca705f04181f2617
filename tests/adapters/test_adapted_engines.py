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
from tests.model.checkpoints import (
    FOREIGN,
    FURTHER,
    LATER,
    LAYERED,
    NATIVE,
    VARIANTS,
    VOCABULARY,
    Recipe,
)
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


@pytest.fixture(scope="module")
def judged(judges: list[Any]) -> list[Any]:
    """What they say after a dozen prompts, each after its own ones."""
    return [generated(judges[at % len(judges)], one) for at, one in enumerate(prompts(12))]


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("chunk", [0, 7])
def test_several_adapters_in_one_batch_are_each_equal_to_merged_weights(
    base: Path, judged: list[Any], folders: dict[str, Path], chunk: int, engine: str
) -> None:
    made = engine_of(base, folders, engine=engine, threads=2 if engine == "native" else 1)
    assert list(made.adapters) == list(MADES)
    driver, asked = Mixed(made, 16), prompts(12)
    driver.numbers = {tuple(one): index % (1 + len(MADES)) for index, one in enumerate(asked)}
    for wanted, found in zip(judged, driver.greedy(asked, 10, chunk), strict=True):
        assert found.new == wanted.new
        assert (found.logprobs - wanted.logprobs).abs().max() < 1e-4


JOINED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
GLM = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj")
FAMILIES = {
    "qwen2": (NATIVE["qwen2"], Made(seed=5)),
    "qwen3": (NATIVE["qwen3"], Made(33, 20.0, seed=6)),
    "biases": (VARIANTS["llama-biases"], Made(seed=7)),
    "phi3": (FOREIGN["phi3"], Made(5, 5.0, JOINED, strength=0.15, seed=8)),
    "gemma2": (FOREIGN["gemma2"], Made(strength=0.1, seed=9)),
    "olmo2": (FOREIGN["olmo2"], Made(seed=10)),
    "granite": (FURTHER["granite"], Made(seed=11)),
    "glm4": (LATER["glm4"], Made(3, 5.0, GLM, strength=0.1, seed=14)),
    "gemma4": (LAYERED["gemma4"], Made(strength=0.1, seed=12)),
    "gemma4-shared": (LAYERED["gemma4-shared"], Made(strength=0.1, seed=13)),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_architecture_is_equal_to_merged_weights(name: str, tmp_path: Path) -> None:
    """What norms, scales, biases and joined products mean for an adapter. The torch decoder has
    some of these families only."""
    recipe, made = FAMILIES[name]
    base = made_base(recipe, tmp_path / "base")
    judged = judge(write_merged(base, tmp_path / "merged", made))
    folder = write_adapter(base, tmp_path / "adapter", made)
    asked = prompts(3, seed=3)
    wanted = [generated(judged, one) for one in asked]
    for engine in ("native", "torch") if name in ("qwen2", "qwen3", "biases") else ("native",):
        driver = Mixed(engine_of(base, {"x": folder}, engine=engine), 16)
        driver.numbers = {tuple(one): 1 for one in asked}
        for found, one in zip(driver.greedy(asked, 10), wanted, strict=True):
            assert found.new == one.new, engine
            assert (found.logprobs - one.logprobs).abs().max() < 1e-4, engine


@pytest.mark.parametrize(
    ("options", "most"),
    [({"dtype": "bfloat16"}, 0.1), ({"quantize": "int8"}, 0.2)],
    ids=["bfloat16", "int8"],
)
def test_rounded_weights_stay_as_close_with_adapters_as_without(
    base: Path, judges: list[Any], folders: dict[str, Path], options: dict[str, Any], most: float
) -> None:
    driver = Mixed(engine_of(base, folders, engine="native", **options), 16)
    prompt = prompts(8, seed=4)[-1]
    for number, judged in enumerate(judges):
        driver.numbers = {tuple(prompt): number}
        exact = judged(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
        assert 0 < (driver.score(prompt) - exact).abs().mean() < most


def test_a_row_is_the_same_to_the_last_bit_whatever_adapters_are_beside_it(
    base: Path, folders: dict[str, Path]
) -> None:
    asked = prompts(9, seed=5)
    numbers = {tuple(one): index % 5 for index, one in enumerate(asked)}
    found = []
    for threads, together in ((1, True), (2, True), (1, False)):
        driver = Mixed(engine_of(base, folders, engine="native", threads=threads), 16)
        driver.numbers = numbers
        found.append(torch.stack([one.logprobs for one in driver.greedy(asked, 4, 0, together)]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_number_without_an_adapter_is_refused(base: Path, folders: dict[str, Path]) -> None:
    engine = engine_of(base, folders, engine="native")
    driver = Mixed(engine, 16)
    driver.numbers = {(1, 2): len(folders) + 1}
    with pytest.raises(ValueError, match="an adapter or a state that is out of range"):
        driver.score([1, 2])


def test_adapters_change_what_is_said(judges: list[Any]) -> None:
    """What the test above compares: models that differ."""
    said = {tuple(generated(one, [5, 9, 2]).new) for one in judges}
    assert len(said) == len(judges)
