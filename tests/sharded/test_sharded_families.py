"""Every family that our own decoder knows: on one rank it computes what transformers computes, on
several what it computes on one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter
from lmprog.runtime.engine.model.families import read_native_shape, shardable_families
from lmprog.runtime.engine.model.shape import ModelShape, read_config
from lmprog.runtime.engine.sharded.shard import shardable_shape
from tests.model.checkpoints import FURTHER, MIXTURES, NATIVE, VOCABULARY, Recipe
from tests.model.driver import Driver
from tests.sharded.threaded_ranks import PAGE_SIZE, ThreadedRanks, Whole

RECIPES = NATIVE | FURTHER | {name: MIXTURES[name] for name in MIXTURES if name != "gpt-oss"}
DTYPES = ((torch.float64, 1e-12), (torch.float32, 5e-5))


@dataclass(frozen=True)
class Saved:
    """A checkpoint, and the model of transformers that was saved there."""

    folder: Path
    model: Any

    @property
    def shape(self) -> ModelShape:
        return read_native_shape(read_config(self.folder))


@pytest.fixture(scope="module", params=RECIPES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp(request.param)
    return Saved(folder, RECIPES[request.param].make(folder))


@pytest.fixture(autouse=True)
def _one_thread_each() -> Iterator[None]:
    """Threads of torch that wait for each other would spin."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def prompts() -> list[list[int]]:
    """The last one is longer than every window."""
    draw = random.Random(4)
    shared = [draw.randrange(VOCABULARY) for _ in range(30)]
    return [shared + [draw.randrange(VOCABULARY) for _ in range(n)] for n in (1, 20, 80)]


def test_our_decoder_computes_what_transformers_computes(saved: Saved) -> None:
    prompt = prompts()[-1]
    with torch.inference_mode():
        wanted = saved.model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    found = Driver(Whole(saved.shape, torch.float32, saved.folder), PAGE_SIZE).score(prompt)
    assert (found - wanted).abs().max() < 2e-4


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_together_compute_the_logits_of_one(saved: Saved, size: int) -> None:
    """With four ranks, keys and values are copied: each checkpoint has two heads of them."""
    for dtype, bound in DTYPES:
        ranks = ThreadedRanks(saved.shape, dtype, size, saved.folder)
        whole = Whole(saved.shape, dtype, saved.folder)
        wanted = Driver(whole, PAGE_SIZE).greedy(prompts(), 5, chunk=50)
        found = Driver(ranks, PAGE_SIZE).greedy(prompts(), 5, chunk=50)
        assert [one.new for one in found] == [one.new for one in wanted]
        for one, other in zip(found, wanted, strict=True):
            assert (one.logprobs - other.logprobs).abs().max() <= bound


def test_every_family_is_tried_here() -> None:
    kinds = {recipe.config().model_type for recipe in RECIPES.values()}
    assert kinds == set(shardable_families())


def test_mixtures_over_several_devices_are_refused(tmp_path: Path) -> None:
    MIXTURES["mixtral"].config().save_pretrained(tmp_path)
    with pytest.raises(InvalidParameter, match="computed on the processor only"):
        shardable_shape(RuntimeConfig(model=str(tmp_path), tp=2, device="emulated"), tmp_path)


def test_another_family_is_refused_by_name_with_those_that_can(tmp_path: Path) -> None:
    Recipe("Starcoder2").config().save_pretrained(tmp_path)
    with pytest.raises(
        InvalidParameter, match=r"own decoder \(llama, .*granite, .*\), not for star"
    ):
        shardable_shape(RuntimeConfig(model=str(tmp_path), tp=2), tmp_path)
