"""Every family that our own decoder knows gives, on the emulated device, the tokens that it gives on
the processor.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import NotSupported
from lmprog.native import compiler
from lmprog.runtime.engine.device.device_engine import DeviceEngine
from lmprog.runtime.engine.engine import select_engine
from lmprog.runtime.engine.model.families import device_families
from lmprog.runtime.engine.model.shape import FAMILIES, read_config
from lmprog.wire import SamplingParams
from tests.cuda.conftest import named
from tests.model.checkpoints import FURTHER, MIXTURES, VOCABULARY, Recipe
from tests.runtime.rig import Rig

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
RECIPES = FURTHER | MIXTURES
SCHEDULER = SchedulerConfig(num_pages=64, token_budget=128, max_chunk=40, speculation="off")


def wide(recipe: Recipe) -> Recipe:
    """With heads of 32, the smallest that kernels have."""
    own = {"head_dim": 32} if "head_dim" in recipe.fields else {}
    return replace(recipe, fields=recipe.fields | {"hidden_size": 128} | own)


def prompts() -> list[list[int]]:
    """The last one is longer than every window; the first ones have much in common."""
    draw = random.Random(4)
    shared = [draw.randrange(VOCABULARY) for _ in range(30)]
    return [shared + [draw.randrange(VOCABULARY) for _ in range(n)] for n in (1, 20, 50)]


def tokens(folder: Path, device: str, **changes: object) -> list[list[int]]:
    config = RuntimeConfig(
        str(folder), dtype="float32", device=named(device), context_len=512, scheduler=SCHEDULER
    )
    made = select_engine(replace(config, **changes))  # type: ignore[arg-type]
    assert isinstance(made.engine, DeviceEngine) is (device == "emulated")
    rig = Rig(SCHEDULER, 512, 0, made.engine, made.sampler)
    begun = [rig.gen(prompt, 6, SamplingParams(temperature=1.0, seed=3)) for prompt in prompts()]
    rig.run()
    return [list(one.tokens) for one in begun]


@cache
def checkpoint(name: str) -> tuple[TemporaryDirectory[str], list[list[int]]]:
    """Where it is, and what it gives on the processor."""
    folder = TemporaryDirectory()
    wide(RECIPES[name]).make(Path(folder.name))
    return folder, tokens(Path(folder.name), "cpu")


def family_is_right(name: str) -> None:
    folder, wanted = checkpoint(name)
    assert tokens(Path(folder.name), "emulated") == wanted


@pytest.mark.parametrize("name", RECIPES)
def test_a_family_gives_the_tokens_of_the_processor(name: str) -> None:
    family_is_right(name)


def test_every_family_of_our_decoder_is_among_them(tmp_path: Path) -> None:
    found = set()
    for name, recipe in RECIPES.items():
        recipe.config().save_pretrained(tmp_path / name)
        found.add(read_config(tmp_path / name)["model_type"])
    assert found | set(FAMILIES) == set(device_families())


def test_what_small_weights_would_change_is_refused(tmp_path: Path) -> None:
    wide(FURTHER["granite"]).make(tmp_path)
    with pytest.raises(NotSupported, match="no int8 products on a device for models with"):
        tokens(tmp_path, "emulated", quantize="int8")


def test_flashinfer_is_not_asked_for_sinks(tmp_path: Path) -> None:
    recipe = MIXTURES["gpt-oss"]
    replace(recipe, fields=recipe.fields | {"head_dim": 64}).make(tmp_path)
    with pytest.raises(NotSupported, match="the model has sinks"):
        tokens(tmp_path, "emulated", attention="flashinfer", dtype="bfloat16")
