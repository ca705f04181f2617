"""Every family that our own decoder knows gives, on the emulated device, the tokens that it gives on
the processor.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import NotSupported
from lmprog.native import compiler
from lmprog.runtime.engine.device import device_decoder
from lmprog.runtime.engine.device.device_engine import DeviceEngine
from lmprog.runtime.engine.device.emulated_driver import CaptureRefused
from lmprog.runtime.engine.engine import SelectedEngine, select_engine
from lmprog.runtime.engine.model.families import device_families
from lmprog.runtime.engine.model.locate import dummy_shape
from lmprog.runtime.engine.model.mixture import Mixture
from lmprog.runtime.engine.model.shape import FAMILIES, read_config
from lmprog.runtime.engine.torch_engine.decoder import (
    ExpertBiases,
    MixtureWeights,
    _routes,
    activated,
    mixed,
    mixed_blindly,
)
from lmprog.wire import SamplingParams
from tests.cuda.conftest import named
from tests.model.checkpoints import FURTHER, LATER, MIXTURES, VOCABULARY, Recipe
from tests.runtime.rig import Rig

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
GROWN = LATER["ministral3"].fields["rope_parameters"] | {"llama_4_scaling_beta": 9.0}
RECIPES = FURTHER | MIXTURES | LATER
RECIPES["ministral3"] = Recipe("Ministral3", {"head_dim": 16, "rope_parameters": GROWN})
SHAPE = dummy_shape("dummy:tiny")
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
    found = tokens_of(made)
    assert not isinstance(made.engine, DeviceEngine) or made.engine.num_replays >= 4
    return found


def tokens_of(made: SelectedEngine) -> list[list[int]]:
    """Six steps at least, of which those that only decode are graphs on a device."""
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


def test_a_mixture_of_which_the_host_reads_where_tokens_go_gives_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_decoder, "MOST_BLIND", 0)
    folder, wanted = checkpoint("qwen3-moe")
    config = RuntimeConfig(
        folder.name, dtype="float32", device=named("emulated"), scheduler=SCHEDULER
    )
    made = select_engine(replace(config, context_len=512))
    assert tokens_of(made) == wanted
    assert isinstance(made.engine, DeviceEngine)
    assert made.engine.num_replays == 0


@pytest.mark.parametrize("changes", [{}, {"sigmoid": True, "share_floor": 0.1}])
@pytest.mark.parametrize(("num_tokens", "experts"), [(1, 6), (1, 9), (4, 24), (5, 24), (40, 5)])
def test_nobody_need_read_where_tokens_go(
    num_tokens: int, experts: int, changes: dict[str, Any]
) -> None:
    """Whether experts' weights are copied for tokens or each computes all, also where a token is
    too large for an expert that it does not go to."""
    draw = torch.Generator().manual_seed(experts)

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=draw, dtype=torch.float64)

    mixture = Mixture(experts, 2, 8, frozenset([0]), share_scale=1.5, **changes)
    biases = ExpertBiases(random(experts), random(experts, 16), random(experts, 16))
    choice = None if not changes else random(experts)
    given = random(experts, 16, 16), random(experts, 8, 16)
    weights = MixtureWeights(random(16, experts), *given, biases, choice)
    x = random(num_tokens, 16)
    opened = partial(activated, SHAPE)
    wanted = mixed(x, weights, mixture, opened)
    assert torch.allclose(mixed_blindly(x, weights, mixture, opened), wanted, atol=1e-12)
    _, chosen, _ = _routes(x, weights, mixture)
    for expert in set(range(experts)) - set(chosen.flatten().tolist()):
        weights.gate_up[expert] = torch.inf
    assert torch.allclose(mixed_blindly(x, weights, mixture, opened), wanted, atol=1e-12)


def test_a_graph_in_which_the_host_reads_where_tokens_go_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_decoder, "mixed_blindly", mixed)
    with pytest.raises(CaptureRefused, match=r"nonzero\.default reads what is computed"):
        family_is_right("qwen3-moe")


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
