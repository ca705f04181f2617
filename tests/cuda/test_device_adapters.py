"""Adapters on the emulated device: what the processor computes, whoever else is in the batch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.native import compiler
from lmprog.runtime.engine.device.device_engine import DeviceEngine
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.model.locate import NANO
from tests.adapters.peft_files import Made, write_adapter
from tests.adapters.test_adapted_engines import Mixed
from tests.cuda.test_quantized_device import SIZES, Awaited, on_device, round_products
from tests.model.checkpoints import Recipe
from tests.model.driver import AnyEngine
from tests.model.quantized_layouts import FORMATS, rewrite

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
needs_nano = pytest.mark.skipif(
    not (NANO / "model.safetensors").exists(),
    reason="the shipped model is not in this checkout",
)
MADES = {
    "all": Made(strength=0.5, seed=5),
    "some": Made(3, 5.0, ("q_proj", "o_proj", "up_proj"), strength=0.5, seed=6),
}


def adapters_of(base: Path, folder: Path) -> tuple[str, ...]:
    return tuple(
        f"{name}={write_adapter(base, folder / name, made)}" for name, made in MADES.items()
    )


def judge_of(model: str, lora: tuple[str, ...]) -> AnyEngine:
    scheduler = SchedulerConfig(num_pages=16, token_budget=128)
    return load_engine(
        RuntimeConfig(model, engine="torch", dtype="float32", lora=lora, scheduler=scheduler)
    )


def check(judge: AnyEngine, device: DeviceEngine, vocab: int) -> None:
    """Prompts, chunks of them, and decoding, of the base and of two adapters together."""
    assert device.adapters == judge.adapters
    asked = [[(17 * at + 5 * row) % vocab for at in range(3 + 4 * row)] for row in range(4)]
    found = []
    for engine in (judge, Awaited(device)):
        driver = Mixed(cast(AnyEngine, engine), 16)
        driver.numbers = {tuple(one): index % 3 for index, one in enumerate(asked)}
        found.append(driver.greedy(asked, 3, chunk=9))
    for wanted, got in zip(*found, strict=True):
        assert got.new == wanted.new
        assert (got.logprobs - wanted.logprobs).abs().max() < 1e-4
    assert device.num_replays == 0, "whose a token is stands in no graph"


@needs_nano
def test_several_adapters_in_one_batch_give_what_they_give_on_the_processor(
    tmp_path: Path,
) -> None:
    lora = adapters_of(NANO, tmp_path)
    device = on_device("nano", dtype="float32", lora=lora)
    check(judge_of("nano", lora), device, 2000)


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_adapters_are_added_beside_small_weights(tmp_path: Path, kind: Any) -> None:
    """To what the small weights mean. Norms are not folded into these."""
    plain = tmp_path / "plain"
    Recipe("Qwen2", SIZES).make(plain)
    lora = adapters_of(plain, tmp_path)
    if kind == "fp8":
        base, meant = tmp_path / "quantized", tmp_path / "meant"
        rewrite(plain, base, meant, FORMATS["fp8"])
        device = on_device(str(base), lora=lora)
    else:
        meant = Path(shutil.copytree(plain, tmp_path / "meant"))
        round_products(meant, kind)
        device = on_device(str(plain), quantize=kind, lora=lora)
    assert device.dtype == kind
    check(judge_of(str(meant), lora), device, 150)
