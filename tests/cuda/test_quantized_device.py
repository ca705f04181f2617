"""Models with weights of 8 and 4 bits on the emulated device: checkpoints that others quantized, and
those that are rounded when they are loaded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.native import compiler
from lmprog.runtime.engine.device.device_engine import DeviceEngine
from lmprog.runtime.engine.device.products import QuantizedWeight, rounded, unpacked
from lmprog.runtime.engine.engine import load_engine, select_engine
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.text.tokenizer import load_tokenizer
from tests.model.checkpoints import MIXTURES, Recipe
from tests.model.driver import AnyEngine, Driver
from tests.model.quantized_layouts import FORMATS, Format, float8, rewrite, rewrite_in_mxfp4

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}
TEXT = "The capital of France is Paris."
PROMPT = [(7 * at) % 150 for at in range(20)]
LAYOUTS = {
    "gptq": "int4",
    "gptq-asymmetric-ordered": "int8",
    "awq-symmetric": "int4",
    "compressed-int8": "int8",
    "compressed-float8": "fp8",
    "fp8": "fp8",
}


class Awaited:
    """An engine whose logits are read when they are there."""

    states = None

    def __init__(self, engine: DeviceEngine) -> None:
        self._engine = engine
        self.num_pages = engine.num_pages

    def forward(self, batch: Batch) -> torch.Tensor:
        logits = self._engine.forward(batch)
        self._engine.finish()
        self._engine.finish()
        return logits.values[: len(batch.logit_tokens)].clone()


def on_device(folder: str, **changes: Any) -> DeviceEngine:
    scheduler = SchedulerConfig(num_pages=16, token_budget=128)
    config = RuntimeConfig(model=folder, device="emulated", scheduler=scheduler, **changes)
    engine = select_engine(config).engine
    assert isinstance(engine, DeviceEngine)
    return engine


def driven(engine: DeviceEngine) -> Driver:
    return Driver(cast(AnyEngine, Awaited(engine)), 16)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    Recipe("Qwen2", SIZES).make(folder)
    return folder


def round_products(meant: Path, kind: str) -> None:
    """Integers are those of a whole output or of 32 inputs, whatever the checkpoint's groups are;
    the head, which it leaves as it is, is rounded too.
    """
    if kind == "fp8":
        return
    weights = load_file(meant / "model.safetensors")
    for name in [name for name in weights if name.endswith(("_proj.weight", "lm_head.weight"))]:
        weights[name] = unpacked(rounded(weights[name], cast(Any, kind)))
    save_file(weights, meant / "model.safetensors")


def check(folder: Path, meant: Path, kind: str) -> DeviceEngine:
    """As a prompt and one token after the other: by unpacked weights, and by our products."""
    round_products(meant, kind)
    engine = on_device(str(folder))
    assert engine.dtype == kind
    judge = load_engine(RuntimeConfig(model=str(meant), dtype="float32", engine="torch"))
    (wanted,) = Driver(judge, 16).greedy([PROMPT], 4)
    (got,) = driven(engine).greedy([PROMPT], 4)
    (again,) = driven(engine).greedy([PROMPT * 4], 1)
    (wanted_again,) = Driver(judge, 16).greedy([PROMPT * 4], 1)
    assert got.new == wanted.new
    assert torch.allclose(got.logprobs, wanted.logprobs.float(), atol=2e-4)
    assert torch.allclose(again.logprobs, wanted_again.logprobs.float(), atol=2e-4)
    return engine


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_checkpoint_that_others_quantized_gives_the_numbers_that_it_means(
    plain: Path, tmp_path: Path, name: str
) -> None:
    rewrite(plain, tmp_path / "quantized", tmp_path / "meant", FORMATS[name])
    found = check(tmp_path / "quantized", tmp_path / "meant", LAYOUTS[name])
    layer = found._decoder._weights.layers[0]
    assert isinstance(layer.qkv, QuantizedWeight)
    assert layer.qkv.kind == LAYOUTS[name]


@pytest.mark.parametrize(("block", "is_kept"), [(64, True), (48, False)])
def test_blocks_of_floats_are_kept_where_they_are_whole_chunks(
    plain: Path, tmp_path: Path, block: int, is_kept: bool
) -> None:
    described = {"quant_method": "fp8", "weight_block_size": [block, block]}
    layout = Format(described, float8, {"block": block})
    rewrite(plain, tmp_path / "quantized", tmp_path / "meant", layout)
    found = check(tmp_path / "quantized", tmp_path / "meant", "fp8")
    product = found._decoder._weights.layers[0].gate_up
    assert isinstance(product, QuantizedWeight) == is_kept


def test_small_weights_of_a_mixture_become_the_models_type(tmp_path: Path) -> None:
    recipe = MIXTURES["gpt-oss"]
    replace(recipe, fields=recipe.fields | {"head_dim": 32}).make(tmp_path / "plain")
    rewrite_in_mxfp4(tmp_path / "plain", tmp_path / "quantized", tmp_path / "meant")
    engine = on_device(str(tmp_path / "quantized"))
    judge = load_engine(RuntimeConfig(str(tmp_path / "meant"), dtype="float32", kv_memory_mb=8))
    (wanted,) = Driver(judge, 16).greedy([PROMPT], 4)
    (got,) = driven(engine).greedy([PROMPT], 4)
    assert engine.dtype == "float32"
    assert got.new == wanted.new
    assert torch.allclose(got.logprobs, wanted.logprobs.float(), atol=2e-4)


def test_a_type_that_is_asked_for_is_had(plain: Path, tmp_path: Path) -> None:
    rewrite(plain, tmp_path / "quantized", tmp_path / "meant", FORMATS["gptq"])
    engine = on_device(str(tmp_path / "quantized"), dtype="float32")
    assert engine.dtype == "float32"
    assert isinstance(engine._decoder._weights.layers[0].qkv, torch.Tensor)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_rounded_weights_give_the_tokens_of_the_processor(kind: Any, dtype: Any) -> None:
    """The processor rounds a token's numbers to 8 bits as well, the device does not: log-
    probabilities are near, and tokens the same wherever the two best are not as near.
    """
    nano = Path(__file__).parents[2] / "lmprog" / "nano"
    if not (nano / "model.safetensors").exists():
        pytest.skip("the shipped model is not in this checkout")
    scheduler = SchedulerConfig(num_pages=16)
    judge = load_engine(RuntimeConfig("nano", quantize=kind, scheduler=scheduler), keep=False)
    prompt = load_tokenizer(nano).encode(TEXT, start=True)
    wanted = Driver(judge, 16).score(prompt).float()
    got = driven(on_device("nano", quantize=kind, dtype=dtype)).score(prompt)
    off = float((got - wanted).abs().mean())
    assert off < 0.2
    best = wanted.topk(2).values
    is_clear = best[:, 0] - best[:, 1] > 8 * off
    assert int(is_clear.sum()) >= 3
    assert torch.equal(got.argmax(-1)[is_clear], wanted.argmax(-1)[is_clear])
